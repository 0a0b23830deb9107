//! [`CodedSum`]: the sum of contributions that are sent in a short form.
//!
//! Every rank sends each owner its senders' contributions to the owner's units. The owner adds these along the tree over senders,
//! encodes the sum, and all ranks gather it. Cost of a rank among `n`: (n - 1) / n of a short form for each of its senders, and
//! as much for the sum.

use std::ops::Range;

use ronde_core::exact::{ExactSum, TreeSum};
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Operation, Work};
use ronde_protocol::holdings::HeldRanges;

use super::codec::{Codec, CodedUnit, units};
use crate::state::ModelState;

/// Returns the values that are added to the sum of some elements.
type ResidualOf<'f, 'a> = &'f dyn Fn(&Range<usize>) -> Option<&'a [f32]>;

/// The units of a rank.
#[derive(Debug, Clone, Default)]
struct OwnedUnits {
    units: Vec<CodedUnit>,
    bytes: usize,
    elements: usize,
}

impl OwnedUnits {
    fn push(&mut self, unit: CodedUnit) {
        self.bytes += unit.bytes();
        self.elements += unit.elements.len();
        self.units.push(unit);
    }
}

/// Divides units among ranks: those of each layer nearly evenly by their bytes, beginning with another rank for each layer. So
/// the owner of a unit does not depend on buckets, and every bucket has many owners.
fn divide(units: Vec<CodedUnit>, ranks: usize) -> Vec<OwnedUnits> {
    let mut owners = vec![OwnedUnits::default(); ranks];
    for layer in units.chunk_by(|one, other| one.layer == other.layer) {
        let total: usize = layer.iter().map(CodedUnit::bytes).sum();
        let mut before = 0;
        for unit in layer {
            // The rank in whose part of the bytes the middle of the unit is.
            let middle = 2 * before + unit.bytes();
            let part = (middle as u128 * ranks as u128 / (2 * total.max(1)) as u128) as usize;
            owners[(part.min(ranks - 1) + unit.layer.1) % ranks].push(unit.clone());
            before += unit.bytes();
        }
    }
    owners
}

/// Returns the elements that each rank owns of a whole state, the padding after a unit included.
pub(super) fn owned(state: &ModelState, codec: Codec, ranks: usize) -> Vec<HeldRanges> {
    let all = units(state, &(0..state.len()), codec);
    let starts = all.iter().map(|unit| unit.elements.start);
    let mut borders: Vec<usize> = starts.collect();
    borders.push(state.len());
    if let Some(first) = borders.first_mut() {
        *first = 0;
    }
    let padded = |unit: &CodedUnit| {
        let index = borders.partition_point(|border| *border <= unit.elements.start);
        borders[index - 1]..borders[index]
    };
    let owners = divide(all.clone(), ranks).into_iter();
    owners
        .map(|own| HeldRanges::new(own.units.iter().map(padded)))
        .collect()
}

/// A collective under way.
type InFlight = Option<Box<dyn Work>>;

/// The sum of one rank.
pub(crate) struct CodedSum {
    /// The units of each rank.
    owners: Vec<OwnedUnits>,
    /// The elements of the flat state.
    elements: Range<usize>,
    /// The padding among them.
    gaps: Vec<Range<usize>>,
    /// The forms of the contributions of this rank's senders, by owner and unit.
    payloads: Vec<Vec<u8>>,
    /// Memory of earlier contributions.
    free: Vec<Vec<u8>>,
    in_flight: InFlight,
}

impl CodedSum {
    /// Creates the sum over a range of the flat state that consists of whole tensors.
    pub(crate) fn new(
        state: &ModelState,
        elements: Range<usize>,
        codec: Codec,
        ranks: usize,
    ) -> Self {
        let units = units(state, &elements, codec);
        let ends = units.iter().map(|unit| unit.elements.end);
        let starts = units.iter().map(|unit| unit.elements.start);
        let gaps = std::iter::once(elements.start)
            .chain(ends)
            .zip(starts.chain([elements.end]));
        let gaps = gaps.map(|(end, start)| end..start);
        Self {
            gaps: gaps.filter(|gap| !gap.is_empty()).collect(),
            owners: divide(units, ranks),
            elements,
            payloads: Vec::new(),
            free: Vec::new(),
            in_flight: None,
        }
    }

    /// Discards a sum.
    pub(crate) fn reset(&mut self) {
        self.free.append(&mut self.payloads);
        self.in_flight = None;
    }

    /// Adds the contribution of the next sender, which has the elements of the range. Leaves the error of its form in it,
    /// if `keeps_error`; padding becomes zero.
    pub(crate) fn add(&mut self, contribution: &mut [f32], keeps_error: bool) {
        let mut payload = self.free.pop().unwrap_or_default();
        payload.resize(self.owners.iter().map(|owner| owner.bytes).sum(), 0);
        let base = self.elements.start;
        let mut rest = payload.as_mut_slice();
        for unit in self.owners.iter().flat_map(|owner| &owner.units) {
            let (to, after) = rest.split_at_mut(unit.bytes());
            let values = &mut contribution[unit.elements.start - base..unit.elements.end - base];
            match keeps_error {
                true => unit.encode_with_error(values, to),
                false => unit.encode(values, to),
            }
            rest = after;
        }
        for gap in &self.gaps {
            contribution[gap.start - base..gap.end - base].fill(0.0);
        }
        self.payloads.push(payload);
    }

    /// Returns the bytes of the contributions that were added.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(Vec::len).sum()
    }

    /// Sends the contributions to the owners.
    pub(crate) fn start(
        &mut self,
        group: &dyn Group,
        senders: &ExactSum,
    ) -> Result<(), CollectiveError> {
        let own = self.owners[group.rank().index()].bytes;
        let owners = self.owners.iter();
        let send_lens: Vec<usize> = owners.map(|o| o.bytes * self.payloads.len()).collect();
        let receive_lens = (0..group.size())
            .map(|rank| own * senders.run(GroupRank(rank as u32)).len())
            .collect();
        let mut buffer = group.allocate(DType::U8, send_lens.iter().sum())?;
        let (mut rest, mut at) = (buffer.bytes_mut(), 0);
        for owner in &self.owners {
            for payload in &self.payloads {
                let (to, after) = rest.split_at_mut(owner.bytes);
                to.copy_from_slice(&payload[at..at + owner.bytes]);
                rest = after;
            }
            at += owner.bytes;
        }
        self.free.append(&mut self.payloads);
        let operation = Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        };
        self.in_flight = Some(group.start(operation, buffer)?);
        Ok(())
    }

    /// Waits for the contributions to this rank's units, adds them, and begins to gather the sums of all units. `residual` returns
    /// the values of a unit's elements that are added to the sum, if there are any. Returns the elements of this rank and the
    /// error of the form of their sum; `None` if the sum was not started.
    pub(crate) fn gather<'a>(
        &mut self,
        group: &dyn Group,
        senders: &ExactSum,
        residual: Option<ResidualOf<'_, 'a>>,
    ) -> Option<Result<(HeldRanges, Buffer), CollectiveError>> {
        let received = self.in_flight.take()?.wait();
        Some(received.and_then(|received| {
            let mut sum = self.add_received(group, senders.shards(), &received);
            let own = &self.owners[group.rank().index()];
            let mut bytes = group.allocate(DType::U8, own.bytes)?;
            let (mut rest, mut to) = (sum.as_mut_slice::<f32>(), bytes.bytes_mut());
            for unit in &own.units {
                let (values, after) = rest.split_at_mut(unit.elements.len());
                let (form, after_form) = to.split_at_mut(unit.bytes());
                match residual {
                    None => unit.encode(values, form),
                    Some(residual) => {
                        let kept = residual(&unit.elements).unwrap_or_default();
                        for (value, kept) in values.iter_mut().zip(kept) {
                            *value += *kept;
                        }
                        unit.encode_with_error(values, form);
                    }
                }
                (rest, to) = (after, after_form);
            }
            self.in_flight = Some(group.start(Operation::AllGather, bytes)?);
            let elements = own.units.iter().map(|unit| unit.elements.clone());
            Ok((HeldRanges::new(elements), sum))
        }))
    }

    /// Adds the contributions of all senders to this rank's units.
    fn add_received(&self, group: &dyn Group, senders: u32, received: &Buffer) -> Buffer {
        let own = &self.owners[group.rank().index()];
        let mut sum = TreeSum::new(senders);
        let mut free = Vec::new();
        let fresh = || Buffer::host(DType::F32, own.elements);
        if own.bytes == 0 {
            return fresh();
        }
        for (sender, mut form) in (0..).zip(received.bytes().chunks_exact(own.bytes)) {
            let mut values = free.pop().unwrap_or_else(fresh);
            let mut rest = values.as_mut_slice::<f32>();
            for unit in &own.units {
                let (bytes, after_form) = form.split_at(unit.bytes());
                let (to, after) = rest.split_at_mut(unit.elements.len());
                unit.decode(bytes, to);
                (form, rest) = (after_form, after);
            }
            free.extend(sum.add_shard(sender, values));
        }
        sum.take().pop().map_or_else(fresh, |(_, total)| total)
    }

    /// Waits for the sums of all units and writes them to `sum`, which has the elements of the range; `None` if they are not being
    /// gathered.
    pub(crate) fn finish(&mut self, sum: &mut [f32]) -> Option<Result<(), CollectiveError>> {
        let all = match self.in_flight.take()?.wait() {
            Ok(all) => all,
            Err(error) => return Some(Err(error)),
        };
        sum.fill(0.0);
        let (mut rest, base) = (all.bytes(), self.elements.start);
        for unit in self.owners.iter().flat_map(|owner| &owner.units) {
            let (form, after) = rest.split_at(unit.bytes());
            let values = &mut sum[unit.elements.start - base..unit.elements.end - base];
            unit.decode(form, values);
            rest = after;
        }
        Some(Ok(()))
    }
}
