//! The operations over shared memory: who reads and writes which bytes when.
//!
//! | operation | bytes read and written by each of `n` ranks, `B` bytes each |
//! |---|---|
//! | short ones | `n B` read |
//! | all_reduce, exact sum | `B` read, `B` written, in slices: each rank's own of everybody's |
//! | reduce_scatter | `B` read, `B / n` written |
//! | all_gather | `n B` read and written |
//! | broadcast | `B` read and written |
//!
//! Memory that is not shared is copied through a ring of stages, piece by piece: while one rank
//! reduces a piece another one copies the next. A rank never copies its own slice to the stages:
//! nobody else reads it, and its result goes there instead.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::{Buffer, CollectiveError};

use super::control::{Place, STAGE_BYTES, STAGES, publish};
use super::exchange::{Current, Exchange, Halt};
use super::mapping::{Mapping, Span};
use super::tree::{self, Kernel, Tree};
use super::wait::reached;

/// Most bytes of a result whose length other ranks decide.
const TOLD_BYTES_MAX: u64 = 16 << 30;
/// Slices begin at multiples of this many elements.
const GRAIN: usize = 64;
/// Fewest bytes of a piece.
const PIECE_BYTES_MIN: usize = 32 << 10;
/// Pieces that a rank may be ahead of itself; see [`Exchange::flow`].
const AHEAD: u32 = STAGES / 2;

/// A step of a rank on a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Copy this rank's part to its stage.
    Bring,
    /// Reduce or read what all have brought.
    Work,
    /// Copy the results of the others.
    Take,
}

/// The part of `len` elements that belongs to `rank` of `size`.
fn slice(len: usize, rank: usize, size: usize) -> Range<usize> {
    let each = len.div_ceil(size).next_multiple_of(GRAIN);
    (rank * each).min(len)..((rank + 1) * each).min(len)
}

fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

fn moved(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

type Region = Option<(Arc<Mapping>, u64)>;

fn part<'a>(region: &'a (Arc<Mapping>, u64), range: &Range<usize>) -> Span<'a> {
    region.0.span(moved(range, region.1 as usize))
}

impl Exchange {
    /// Sums what all bring along a tree; the result is at the front of every buffer.
    pub(super) fn reduce_all(
        &mut self,
        current: &Current<'_>,
        tree: &Tree,
        kernel: Kernel,
        buffer: &mut Buffer,
    ) -> Result<(), Halt> {
        let (me, element) = (self.me, kernel.dtype.size());
        let own = tree.brought(me);
        let len = buffer.len() / own.max(1);
        if tree.operands_max * len * element <= self.inline_max() {
            return self.reduce_inline(current, tree, kernel, buffer, len * element);
        }
        let mut places = vec![self.place(buffer); self.size()];
        self.post(current, places[me], 0, &[]);
        self.meet(current, |peer, post| places[peer] = post.place)?;
        let each = 2 * (len * element) as u64 / self.size() as u64 * (self.size() as u64 - 1);
        self.mailbox.count(each, each);
        let mut regions = Vec::with_capacity(self.size());
        for (rank, &place) in places.iter().enumerate() {
            let bytes = tree.brought(rank) * len * element;
            regions.extend(self.region(rank, place, bytes)?);
        }
        if regions.len() == self.size() {
            self.reduce_in_place(current, tree, kernel, &regions, len)
        } else {
            self.reduce_staged(current, tree, kernel, buffer, len)
        }
    }

    /// Everybody reads everything, one operand of each rank.
    pub(super) fn reduce_short(
        &self,
        current: &Current<'_>,
        kernel: Kernel,
        buffer: &mut Buffer,
    ) -> Result<(), Halt> {
        self.post(current, Place::Inline, 0, buffer.bytes());
        self.meet(current, |_, _| ())?;
        let result = Span::of(buffer.bytes_mut());
        for (rank, neighbour) in self.neighbours.iter().enumerate() {
            let theirs = neighbour.control.inline(current.sequence, result.len());
            if rank > 0 {
                result.combine(theirs, |into, from| kernel.apply(into, from));
            } else if rank != self.me {
                result.copy_from(theirs);
            }
        }
        Ok(())
    }

    /// Everybody reads everything, several operands of a rank or in another order than that of ranks.
    fn reduce_inline(
        &mut self,
        current: &Current<'_>,
        tree: &Tree,
        kernel: Kernel,
        buffer: &mut Buffer,
        bytes: usize,
    ) -> Result<(), Halt> {
        self.post(current, Place::Inline, 0, buffer.bytes());
        self.meet(current, |_, _| ())?;
        let room = bytes.next_multiple_of(64);
        self.with_scratch(tree.operands.len() * room, |this, scratch| {
            let mut copies = Vec::with_capacity(tree.operands.len());
            for (at, &(rank, place)) in tree.operands.iter().enumerate() {
                let all = this
                    .control(rank)
                    .inline(current.sequence, tree.brought(rank) * bytes);
                let copy = scratch.part(at * room..at * room + bytes);
                copy.copy_from(all.part(place * bytes..(place + 1) * bytes));
                copies.push(copy);
            }
            let result = Span::of(&mut buffer.bytes_mut()[..bytes]);
            tree::reduce(&copies, &tree.additions, None, &[result], kernel);
        });
        Ok(())
    }

    /// All buffers are shared: each rank reduces its slice and writes it to everybody.
    fn reduce_in_place(
        &mut self,
        current: &Current<'_>,
        tree: &Tree,
        kernel: Kernel,
        regions: &[(Arc<Mapping>, u64)],
        len: usize,
    ) -> Result<(), Halt> {
        let element = kernel.dtype.size();
        let mine = scaled(&slice(len, self.me, self.size()), element);
        let work = |step, _| {
            if step == Step::Work && !mine.is_empty() {
                let of = |&(rank, place): &(usize, usize)| {
                    part(&regions[rank], &moved(&mine, place * len * element))
                };
                let operands: Vec<Span<'_>> = tree.operands.iter().map(of).collect();
                let results: Vec<Span<'_>> =
                    regions.iter().map(|region| part(region, &mine)).collect();
                tree::reduce(&operands, &tree.additions, None, &results, kernel);
            }
        };
        self.flow(current, 1, |_| false, len * element, work)
    }

    /// Some buffer is not shared: all go through the stages.
    fn reduce_staged(
        &mut self,
        current: &Current<'_>,
        tree: &Tree,
        kernel: Kernel,
        buffer: &mut Buffer,
        len: usize,
    ) -> Result<(), Halt> {
        let (me, size, element) = (self.me, self.size(), kernel.dtype.size());
        let own = tree.brought(me);
        let piece_len = piece_len(len, tree.operands_max * element, size);
        let pieces = len.div_ceil(piece_len) as u32;
        let host = Span::of(buffer.bytes_mut());
        let controls: Vec<_> = self
            .neighbours
            .iter()
            .map(|n| Arc::clone(&n.control))
            .collect();
        let stage = |rank: usize, piece: u32, node: usize, range: &Range<usize>| {
            controls[rank]
                .stage(piece)
                .part(scaled(&moved(range, node * piece_len), element))
        };
        let step = |step, piece: u32| {
            let start = piece as usize * piece_len;
            let count = piece_len.min(len - start);
            let at_host = |node: usize, range: &Range<usize>| {
                host.part(scaled(&moved(range, node * len + start), element))
            };
            let mine = slice(count, me, size);
            match step {
                Step::Bring => {
                    for node in 0..own {
                        for range in [0..mine.start, mine.end..count] {
                            stage(me, piece, node, &range).copy_from(at_host(node, &range));
                        }
                    }
                }
                Step::Work if mine.is_empty() => {}
                Step::Work => {
                    let of = |&(rank, node): &(usize, usize)| {
                        if rank == me {
                            at_host(node, &mine)
                        } else {
                            stage(rank, piece, node, &mine)
                        }
                    };
                    let operands: Vec<Span<'_>> = tree.operands.iter().map(of).collect();
                    let (home, shown) = (at_host(0, &mine), stage(me, piece, 0, &mine));
                    let seed = (tree.operands[0].0 != me).then_some(shown);
                    tree::reduce(&operands, &tree.additions, seed, &[home, shown], kernel);
                }
                Step::Take => {
                    for rank in (0..size).filter(|&rank| rank != me) {
                        let theirs = slice(count, rank, size);
                        at_host(0, &theirs).copy_from(stage(rank, piece, 0, &theirs));
                    }
                }
            }
        };
        self.flow(current, pieces, |_| true, len * element, step)
    }

    /// Each rank gets its part of the sum of all buffers, at the front of its own.
    pub(super) fn reduce_scatter(
        &mut self,
        current: &Current<'_>,
        kernel: Kernel,
        buffer: &mut Buffer,
    ) -> Result<(), Halt> {
        let (me, size, element) = (self.me, self.size(), kernel.dtype.size());
        let len = buffer.len() / size;
        let bytes = len * element;
        let inline = buffer.bytes().len() <= self.inline_max();
        let mut places = vec![
            if inline {
                Place::Inline
            } else {
                self.place(buffer)
            };
            size
        ];
        self.post(
            current,
            places[me],
            0,
            if inline { buffer.bytes() } else { &[] },
        );
        self.meet(current, |peer, post| places[peer] = post.place)?;
        if inline {
            let result = Span::of(&mut buffer.bytes_mut()[..bytes]);
            for (rank, neighbour) in self.neighbours.iter().enumerate() {
                let all = neighbour.control.inline(current.sequence, size * bytes);
                let theirs = all.part(me * bytes..(me + 1) * bytes);
                if rank == 0 {
                    result.copy_from(theirs);
                } else {
                    result.combine(theirs, |into, from| kernel.apply(into, from));
                }
            }
            buffer.truncate(len);
            return Ok(());
        }
        let sent = (bytes * (size - 1)) as u64;
        self.mailbox.count(sent, sent);
        let regions = self.regions(&places, size * bytes)?;
        let staged = |rank: usize| regions[rank].is_none();
        let any = (0..size).any(staged);
        let piece_len = if any {
            (STAGE_BYTES / size / element).max(1)
        } else {
            len
        };
        let pieces = len.div_ceil(piece_len) as u32;
        let controls: Vec<_> = self
            .neighbours
            .iter()
            .map(|n| Arc::clone(&n.control))
            .collect();
        let chain = Arc::clone(&self.chain);
        let host = match &regions[me] {
            Some(region) => part(region, &(0..size * bytes)),
            None => Span::of(buffer.bytes_mut()),
        };
        let step = |step, piece: u32, scratch: Span<'_>| {
            let start = piece as usize * piece_len;
            let count = piece_len.min(len - start);
            let from =
                |slice: usize| scaled(&(slice * len + start..slice * len + start + count), element);
            let at =
                |slice: usize| scaled(&(slice * piece_len..slice * piece_len + count), element);
            match step {
                Step::Bring => {
                    for slice in (0..size).filter(|&slice| slice != me) {
                        controls[me]
                            .stage(piece)
                            .part(at(slice))
                            .copy_from(host.part(from(slice)));
                    }
                }
                Step::Work => {
                    let of = |rank: usize| match &regions[rank] {
                        _ if rank == me => host.part(from(me)),
                        Some(region) => part(region, &from(me)),
                        None => controls[rank].stage(piece).part(at(me)),
                    };
                    let all: Vec<Span<'_>> = (0..size).map(of).collect();
                    blockwise(&all, &chain, kernel, scratch, host.part(from(me)));
                }
                Step::Take => {}
            }
        };
        self.with_flow_scratch(current, pieces, staged, size * bytes, step)?;
        buffer
            .bytes_mut()
            .copy_within(me * bytes..(me + 1) * bytes, 0);
        buffer.truncate(len);
        Ok(())
    }

    fn with_flow_scratch(
        &mut self,
        current: &Current<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        mut step: impl FnMut(Step, u32, Span<'_>),
    ) -> Result<(), Halt> {
        let outcome = self.with_scratch(SCRATCH_BYTES, |this, scratch| {
            let scratch = scratch.part(0..SCRATCH_BYTES);
            this.flow_from(current, this.base, pieces, brings, expected, |s, p| {
                step(s, p, scratch)
            })
        });
        self.base = self.base.wrapping_add(pieces);
        outcome
    }

    /// All ranks' elements in rank order, in a new buffer.
    pub(super) fn all_gather(
        &mut self,
        current: &Current<'_>,
        buffer: &mut Buffer,
    ) -> Result<Buffer, Halt> {
        let (me, size, dtype) = (self.me, self.size(), buffer.dtype());
        let own_bytes = buffer.bytes().len();
        let inline = own_bytes <= self.inline_max();
        let place = match own_bytes {
            0 => Place::Nothing,
            _ if inline => Place::Inline,
            _ => self.place(buffer),
        };
        let (mut places, mut lens) = (vec![place; size], vec![buffer.len() as u64; size]);
        self.post(
            current,
            place,
            lens[me],
            if inline { buffer.bytes() } else { &[] },
        );
        self.meet(current, |peer, post| {
            (places[peer], lens[peer]) = (post.place, post.own_len)
        })?;
        let total = lens
            .iter()
            .try_fold(0_u64, |sum, &len| sum.checked_add(len));
        let bytes = total.and_then(|total| total.checked_mul(dtype.size() as u64));
        if bytes.is_none_or(|bytes| bytes > TOLD_BYTES_MAX) {
            let problem = format!("lengths {lens:?} are too many");
            return Err(Halt::Error(crate::program::invalid("all_gather", problem)));
        }
        let counts: Vec<usize> = lens
            .iter()
            .map(|&len| len as usize * dtype.size())
            .collect();
        let starts: Vec<usize> = (0..size).map(|rank| counts[..rank].iter().sum()).collect();
        let mut result = self
            .pool
            .allocate(dtype, total.unwrap_or(0) as usize, false);
        let mut regions = Vec::with_capacity(size);
        for rank in 0..size {
            regions.push(self.region(rank, places[rank], counts[rank])?);
        }
        let staged = |rank: usize| places[rank] == Place::Staged;
        let pieces = (0..size).map(|rank| match places[rank] {
            Place::Staged => counts[rank].div_ceil(STAGE_BYTES) as u32,
            Place::Segment { .. } => 1,
            _ => 0,
        });
        let pieces = pieces.max().unwrap_or(0);
        let controls: Vec<_> = self
            .neighbours
            .iter()
            .map(|n| Arc::clone(&n.control))
            .collect();
        let (host, into) = (Span::of(buffer.bytes_mut()), Span::of(result.bytes_mut()));
        for rank in 0..size {
            let whole = starts[rank]..starts[rank] + counts[rank];
            match places[rank] {
                _ if rank == me => into.part(whole).copy_from(host),
                Place::Inline if counts[rank] <= self.inline_max() => {
                    into.part(whole)
                        .copy_from(controls[rank].inline(current.sequence, counts[rank]));
                }
                _ => {}
            }
        }
        if !inline {
            let sent = (own_bytes * (size - 1)) as u64;
            self.mailbox.count(sent, sent);
        }
        let piece = |rank: usize, piece: u32| {
            let start = counts[rank].min(piece as usize * STAGE_BYTES);
            start..counts[rank].min(start + STAGE_BYTES)
        };
        let step = |step, at: u32| match step {
            Step::Bring => {
                let range = piece(me, at);
                controls[me]
                    .stage(at)
                    .part(0..range.len())
                    .copy_from(host.part(range));
            }
            Step::Work => {
                for rank in (0..size).filter(|&rank| rank != me) {
                    let start = starts[rank];
                    match &regions[rank] {
                        Some(region) if at == 0 => {
                            let whole = 0..counts[rank];
                            into.part(moved(&whole, start))
                                .copy_from(part(region, &whole));
                        }
                        None if staged(rank) => {
                            let range = piece(rank, at);
                            let from = controls[rank].stage(at).part(0..range.len());
                            into.part(moved(&range, start)).copy_from(from);
                        }
                        _ => {}
                    }
                }
            }
            Step::Take => {}
        };
        self.flow(current, pieces, staged, bytes.unwrap_or(0) as usize, step)?;
        Ok(result)
    }

    /// Everybody gets the root's bytes.
    pub(super) fn broadcast(
        &mut self,
        current: &Current<'_>,
        root: usize,
        buffer: &mut Buffer,
    ) -> Result<(), Halt> {
        let (me, bytes) = (self.me, buffer.bytes().len());
        let inline = bytes <= self.inline_max();
        let mut place = match me == root {
            false => Place::Nothing,
            true if inline => Place::Inline,
            true => self.place(buffer),
        };
        let shown: &[u8] = if place == Place::Inline {
            buffer.bytes()
        } else {
            &[]
        };
        self.post(current, place, 0, shown);
        self.meet(current, |peer, post| {
            if peer == root {
                place = post.place;
            }
        })?;
        let controls: Vec<_> = self
            .neighbours
            .iter()
            .map(|n| Arc::clone(&n.control))
            .collect();
        if inline {
            if me != root {
                controls[root]
                    .inline(current.sequence, bytes)
                    .read(buffer.bytes_mut());
            }
            return Ok(());
        }
        let sent = if me == root {
            (bytes * (self.size() - 1)) as u64
        } else {
            0
        };
        self.mailbox.count(sent, sent);
        let region = self.region(root, place, bytes)?;
        let piece_bytes = if region.is_some() { bytes } else { STAGE_BYTES };
        let host = Span::of(buffer.bytes_mut());
        let step = |step, piece: u32| {
            let start = piece as usize * piece_bytes;
            let range = start..bytes.min(start + piece_bytes);
            let stage = || controls[root].stage(piece).part(0..range.len());
            match (step, &region) {
                (Step::Bring, _) => stage().copy_from(host.part(range)),
                (Step::Work, Some(region)) if me != root => {
                    host.part(range.clone()).copy_from(part(region, &range));
                }
                (Step::Work, None) if me != root => host.part(range.clone()).copy_from(stage()),
                _ => {}
            }
        };
        let pieces = bytes.div_ceil(piece_bytes) as u32;
        self.flow(
            current,
            pieces,
            |rank| rank == root && region.is_none(),
            bytes,
            step,
        )
    }

    fn regions(&mut self, places: &[Place], bytes: usize) -> Result<Vec<Region>, Halt> {
        let all = places.iter().enumerate();
        all.map(|(rank, &place)| self.region(rank, place, bytes))
            .collect()
    }

    /// Takes all pieces through their steps, each as soon as the other ranks allow it.
    fn flow(
        &mut self,
        current: &Current<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        step: impl FnMut(Step, u32),
    ) -> Result<(), Halt> {
        let outcome = self.flow_from(current, self.base, pieces, brings, expected, step);
        self.base = self.base.wrapping_add(pieces);
        outcome
    }

    /// A piece is worked on when all that bring have brought it, and taken when all have worked on
    /// it. A rank brings at most [`AHEAD`] pieces more than it has taken. So a rank that has worked
    /// on piece `p` knows that all have taken piece `p - AHEAD`, and one that brings `p` itself has
    /// worked on `p - AHEAD`: the stage of `p - 2 AHEAD` is free again. All stages are free at the
    /// beginning, for nobody posts an operation before it has ended the one before.
    fn flow_from(
        &self,
        current: &Current<'_>,
        base: u32,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        mut step: impl FnMut(Step, u32),
    ) -> Result<(), Halt> {
        let own = self.control(self.me);
        let (mut brought, mut worked, mut taken) = (0, 0, 0);
        let value = |piece: u32| base.wrapping_add(piece).wrapping_add(1);
        let behind = |peer: &usize, piece: u32, bring: bool| {
            let control = self.control(*peer);
            let word = if bring {
                control.brought()
            } else {
                control.worked()
            };
            let now = word.load(std::sync::atomic::Ordering::Acquire);
            (!bring || brings(*peer)) && !reached(now, value(piece))
        };
        let i_bring = brings(self.me);
        while taken < pieces {
            let late = if taken < worked {
                self.others()
                    .find(|peer| behind(peer, taken, false))
                    .map(|peer| (peer, taken, false))
            } else {
                None
            };
            if taken < worked && late.is_none() {
                step(Step::Take, taken);
                taken += 1;
                continue;
            }
            let ready = worked < pieces && (!i_bring || worked < brought);
            let lack = if ready {
                self.others()
                    .find(|peer| behind(peer, worked, true))
                    .map(|peer| (peer, worked, true))
            } else {
                None
            };
            if ready && lack.is_none() {
                step(Step::Work, worked);
                publish(own, own.worked(), value(worked));
                worked += 1;
                continue;
            }
            if i_bring && brought < pieces && brought < taken + AHEAD {
                step(Step::Bring, brought);
                publish(own, own.brought(), value(brought));
                brought += 1;
                continue;
            }
            let Some((peer, piece, bring)) = late.or(lack) else {
                return Err(Halt::Error(CollectiveError::Aborted {
                    by: "this rank".to_owned(),
                    reason: "an operation that waits for nobody".to_owned(),
                }));
            };
            let control = self.control(peer);
            let word = if bring {
                control.brought()
            } else {
                control.worked()
            };
            let there = |now| reached(now, value(piece));
            let waited = current.watch.wait(peer, control, word, there, || false);
            let received = (expected as u64 * u64::from(piece) / u64::from(pieces.max(1))) as usize;
            waited.map_err(|stop| Halt::Stopped {
                peer,
                stop,
                received,
            })?;
        }
        Ok(())
    }
}

/// Bytes of scratch for [`blockwise`].
const SCRATCH_BYTES: usize = 16 << 10;

/// Reduces operands that are only read, block by block, into `result`.
fn blockwise(all: &[Span<'_>], chain: &Tree, kernel: Kernel, scratch: Span<'_>, result: Span<'_>) {
    let bytes = result.len();
    let mut start = 0;
    while start < bytes {
        let block = start..bytes.min(start + SCRATCH_BYTES);
        let parts: Vec<Span<'_>> = all.iter().map(|span| span.part(block.clone())).collect();
        let seed = scratch.part(0..block.len());
        tree::reduce(
            &parts,
            &chain.additions,
            Some(seed),
            &[result.part(block.clone())],
            kernel,
        );
        start = block.end;
    }
}

/// Elements of a piece: a part of the whole that fits its stage, in whole slices.
fn piece_len(len: usize, bytes_each: usize, size: usize) -> usize {
    let most = (STAGE_BYTES / bytes_each.max(1)).max(1);
    let least = PIECE_BYTES_MIN / bytes_each.max(1);
    let wanted = len
        .div_ceil(AHEAD as usize)
        .max(least)
        .next_multiple_of(GRAIN * size);
    wanted.min(most).max(1)
}
