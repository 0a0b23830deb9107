//! [`RoundServer`]: the slots, the copies and the leases that a rank serves during a round.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_core::sparse::SparseValues;
use ronde_core::{Buffer, CollectiveError, Group, GroupRank, Work};
use ronde_engine::sum_of_squares;
use ronde_protocol::served::{LeaseAnswer, PushVerdict, ServedRound, UpdateLeases, UpdateSamples};

use super::messages::{
    ANSWER, GRADIENT, REQUEST, REQUEST_WORDS, SAMPLES, ServerAnswer, ServerRequest, SlotPush,
    VALUES, copy_tags, receive_gradient, receive_words, send_gradient, send_words,
};
use super::slice::{ServedSlot, SliceRules};
use crate::error::ParallelError;
use crate::synchronous::ComputeClock;

/// The number of updates that are on their way to a copy before the slot waits.
const COPIES_IN_FLIGHT: usize = 4;
/// The longest wait of a request for a lease until the group is looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// A slot that this rank serves.
pub(super) struct ServingSlot {
    pub(super) slot: ServedSlot,
    /// The rank that has the copy.
    copy: Option<GroupRank>,
    /// The messages to it that are on their way.
    sends: VecDeque<Box<dyn Work>>,
}

/// The leases, on the rank that leads the round.
struct LeadState {
    leases: UpdateLeases,
    /// The tensor whose gradient was not finite.
    diverged: Option<u64>,
}

/// What a rank serves during a round. Threads call [`RoundServer::serve`] for each worker and [`RoundServer::serve_copy`] for each
/// copy.
pub struct RoundServer {
    group: Arc<dyn Group>,
    round: ServedRound,
    /// The number of updates before the round.
    first: u64,
    rules: Arc<SliceRules>,
    slots: BTreeMap<u32, Mutex<ServingSlot>>,
    copies: BTreeMap<u32, (GroupRank, Mutex<ServedSlot>)>,
    lead: Option<Mutex<LeadState>>,
    /// Notified when an update is complete.
    changed: Condvar,
    clock: ComputeClock,
    workers: Vec<GroupRank>,
}

/// The state of a [`RoundServer`] at the start of a round.
pub(super) struct RoundServerParts {
    pub(super) group: Arc<dyn Group>,
    pub(super) round: ServedRound,
    pub(super) first: u64,
    pub(super) rules: Arc<SliceRules>,
    /// The slots with the ranks of their copies.
    pub(super) slots: BTreeMap<u32, (ServedSlot, Option<GroupRank>)>,
    /// The copies with the ranks that serve their slots.
    pub(super) copies: BTreeMap<u32, (GroupRank, ServedSlot)>,
    pub(super) leases: Option<UpdateLeases>,
    pub(super) clock: ComputeClock,
    pub(super) workers: Vec<GroupRank>,
}

/// Ends a group when the thread that holds it panics, so that no other thread and no other rank waits for it.
pub struct AbortOnPanic<'a>(pub &'a dyn Group);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a thread of a round has panicked");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exchange(source: CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: "serve the state of a round".to_owned(),
        source,
    }
}

fn out_of_order(problem: String) -> ParallelError {
    ParallelError::OutOfOrder { problem }
}

impl RoundServer {
    pub(super) fn new(parts: RoundServerParts) -> Self {
        let slots = parts.slots.into_iter().map(|(number, (slot, copy))| {
            let sends = VecDeque::new();
            (number, Mutex::new(ServingSlot { slot, copy, sends }))
        });
        let copies = parts.copies.into_iter();
        let copies = copies.map(|(number, (from, slot))| (number, (from, Mutex::new(slot))));
        let lead = parts.leases.map(|leases| {
            let diverged = None;
            Mutex::new(LeadState { leases, diverged })
        });
        Self {
            group: parts.group,
            round: parts.round,
            first: parts.first,
            rules: parts.rules,
            slots: slots.collect(),
            copies: copies.collect(),
            lead,
            changed: Condvar::new(),
            clock: parts.clock,
            workers: parts.workers,
        }
    }

    /// Returns the workers of other ranks that this rank serves; each needs a thread that calls [`RoundServer::serve`].
    #[must_use]
    pub fn workers(&self) -> Vec<GroupRank> {
        let me = self.group.rank();
        let others = self.workers.iter().copied().filter(|rank| *rank != me);
        match self.slots.is_empty() {
            true => Vec::new(),
            false => others.collect(),
        }
    }

    /// Returns the slots whose copy this rank has; each needs a thread that calls [`RoundServer::serve_copy`].
    #[must_use]
    pub fn copied_slots(&self) -> Vec<u32> {
        self.copies.keys().copied().collect()
    }

    /// Answers the requests of a worker until it leaves. If it fails, the group ends on all ranks.
    ///
    /// # Errors
    /// A rank was lost, or the worker sent invalid bytes.
    pub fn serve(&self, worker: GroupRank) -> Result<(), ParallelError> {
        self.ending_the_group(|| self.serve_worker(worker))
    }

    /// Runs a serving thread. An error or a panic ends the group on all ranks, so that none waits for the thread.
    fn ending_the_group(
        &self,
        serve: impl FnOnce() -> Result<(), ParallelError>,
    ) -> Result<(), ParallelError> {
        let guard = AbortOnPanic(&*self.group);
        let served = serve();
        drop(guard);
        if let Err(error) = &served {
            self.group.abort(&error.to_string());
        }
        served
    }

    fn serve_worker(&self, worker: GroupRank) -> Result<(), ParallelError> {
        let group = &*self.group;
        loop {
            let words = receive_words(group, worker, REQUEST, REQUEST_WORDS).map_err(exchange)?;
            let request = <&[u64; REQUEST_WORDS]>::try_from(words.as_slice());
            let request = request.ok().and_then(ServerRequest::decode);
            let answer = match request {
                Some(ServerRequest::Leave) => return Ok(()),
                Some(ServerRequest::Lease) => self.lease(worker)?,
                Some(ServerRequest::Diverged(tensor)) => self.diverged(tensor)?,
                Some(ServerRequest::Pull(slot)) => {
                    let (version, values) = self.pull(slot)?;
                    let answer = ServerAnswer::Version(version).encode();
                    let sends = [
                        send_words(group, worker, ANSWER, &answer),
                        group.send(worker, VALUES, values),
                    ];
                    for sent in sends {
                        sent.and_then(Work::wait).map_err(exchange)?;
                    }
                    continue;
                }
                Some(ServerRequest::Push(push)) => {
                    let (gradient, ids) = self.receive_push(&push, worker, (GRADIENT, SAMPLES))?;
                    self.push(&push, gradient, ids)?
                }
                None => {
                    return Err(out_of_order(format!(
                        "worker {worker} sent an unknown request"
                    )));
                }
            };
            let sent = send_words(group, worker, ANSWER, &answer.encode());
            sent.and_then(Work::wait).map_err(exchange)?;
        }
    }

    /// Receives the gradient and the sample numbers of a push.
    fn receive_push(
        &self,
        push: &SlotPush,
        from: GroupRank,
        (gradient, samples): (ronde_core::Tag, ronde_core::Tag),
    ) -> Result<(Buffer, Vec<u64>), ParallelError> {
        let served = self.slots.get(&push.slot);
        let len = match (served, self.copies.get(&push.slot)) {
            (Some(serving), _) => lock(serving).slot.slice.weights.len(),
            (None, Some((_, copy))) => lock(copy).slice.weights.len(),
            (None, None) => return Err(self.no_slot(push.slot)),
        };
        let form = (len, push.sparse);
        let values = receive_gradient(&*self.group, from, gradient, form).map_err(exchange)?;
        let ids = match usize::try_from(push.ids).unwrap_or(usize::MAX) {
            0 => Vec::new(),
            count => receive_words(&*self.group, from, samples, count).map_err(exchange)?,
        };
        Ok((values, ids))
    }

    fn no_slot(&self, slot: u32) -> ParallelError {
        let rank = self.group.rank();
        out_of_order(format!("rank {rank} does not serve slot {slot}"))
    }

    fn lead(&self) -> Result<MutexGuard<'_, LeadState>, ParallelError> {
        let lead = self.lead.as_ref().map(lock);
        lead.ok_or_else(|| {
            let rank = self.group.rank();
            out_of_order(format!("rank {rank} does not lead the round"))
        })
    }

    fn now_ms(&self) -> u64 {
        ((self.clock)() * 1e3) as u64
    }

    /// Waits until there is work for a worker, or the round is complete.
    pub(super) fn lease(&self, worker: GroupRank) -> Result<ServerAnswer, ParallelError> {
        let mut lead = self.lead()?;
        loop {
            let now_ms = self.now_ms();
            let until_ms = match lead.leases.request(worker.0, now_ms) {
                LeaseAnswer::Granted(update) => return Ok(ServerAnswer::Granted(update)),
                LeaseAnswer::Complete => return Ok(ServerAnswer::Complete),
                LeaseAnswer::Wait(until_ms) => until_ms,
            };
            if let Some(failure) = self.group.failure() {
                return Err(exchange(failure));
            }
            let limit = Duration::from_millis(until_ms.saturating_sub(now_ms).max(1));
            let waited = self.changed.wait_timeout(lead, limit.min(LOOK));
            lead = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the round, because the gradient of a tensor is not finite.
    pub(super) fn diverged(&self, tensor: u64) -> Result<ServerAnswer, ParallelError> {
        let mut lead = self.lead()?;
        lead.leases.end();
        lead.diverged.get_or_insert(tensor);
        drop(lead);
        self.changed.notify_all();
        Ok(ServerAnswer::Counted)
    }

    /// Returns a slot for one request. A slot whose update was interrupted by a panic is not served any more: its copy may have
    /// received a part of that update, and would take the next message for the rest of it.
    fn serving(&self, slot: u32) -> Result<MutexGuard<'_, ServingSlot>, ParallelError> {
        let serving = self.slots.get(&slot).ok_or_else(|| self.no_slot(slot))?;
        let serving = serving.lock();
        serving.map_err(|_| {
            out_of_order(format!(
                "a thread has panicked while it updated slot {slot}"
            ))
        })
    }

    /// Returns the version and the weights of a slot.
    pub(super) fn pull(&self, slot: u32) -> Result<(u64, Buffer), ParallelError> {
        let serving = self.serving(slot)?;
        let values = Buffer::copy_of(&serving.slot.slice.weights);
        Ok((serving.slot.log.version(), values))
    }

    /// Decides about a gradient, and applies it.
    pub(super) fn push(
        &self,
        push: &SlotPush,
        gradient: Buffer,
        ids: Vec<u64>,
    ) -> Result<ServerAnswer, ParallelError> {
        let number = push.slot;
        let mut serving = self.serving(number)?;
        let verdict = self.apply(&mut serving.slot, push, gradient.as_slice(), &ids);
        if matches!(verdict, PushVerdict::Apply { .. }) {
            self.send_copy(&mut serving, push, gradient, &ids)?;
        }
        drop(serving);
        let answer = ServerAnswer::of(verdict);
        if number == 0 && answer == ServerAnswer::Counted {
            let now_ms = self.now_ms();
            let (worker, update) = (push.push.worker, push.push.update);
            self.lead()?.leases.complete(worker, update, now_ms);
            self.changed.notify_all();
        }
        Ok(answer)
    }

    /// Applies a gradient to a slot or a copy, unless it is refused.
    fn apply(
        &self,
        slot: &mut ServedSlot,
        push: &SlotPush,
        gradient: &[f32],
        ids: &[u64],
    ) -> PushVerdict {
        let report = match push.slot {
            0 => UpdateSamples {
                counts: push.scale.counts,
                skipped: push.skipped,
                loss_sum: push.loss_sum,
                sample_ids: ids.to_vec(),
            },
            _ => UpdateSamples::default(),
        };
        let is_finite = sum_of_squares(gradient).is_finite();
        let verdict = slot.log.offer(&push.push, is_finite, report);
        if let PushVerdict::Apply { staleness, version } = verdict {
            let number = self.first + version + 1;
            let slice = &mut slot.slice;
            self.rules
                .update(slice, (number, staleness), &push.scale, gradient);
        }
        verdict
    }

    /// Sends an applied gradient to the copy of its slot. The lock of the slot keeps the order.
    fn send_copy(
        &self,
        serving: &mut ServingSlot,
        push: &SlotPush,
        gradient: Buffer,
        ids: &[u64],
    ) -> Result<(), ParallelError> {
        let Some(to) = serving.copy else {
            return Ok(());
        };
        let group = &*self.group;
        let [request, values, samples] = copy_tags(push.slot);
        let words = ServerRequest::Push(*push).encode();
        let all = gradient.as_slice();
        let sparse = push
            .sparse
            .and_then(|size| SparseValues::of(all, size.bytes()));
        let mut sends = vec![
            send_words(group, to, request, &words),
            match &sparse {
                Some(_) => send_gradient(group, to, values, all, sparse.as_ref()),
                None => group.send(to, values, gradient),
            },
        ];
        if push.ids > 0 {
            sends.push(send_words(group, to, samples, ids));
        }
        for sent in sends {
            serving.sends.push_back(sent.map_err(exchange)?);
        }
        while serving.sends.len() > 3 * COPIES_IN_FLIGHT {
            if let Some(work) = serving.sends.pop_front() {
                work.wait().map_err(exchange)?;
            }
        }
        Ok(())
    }

    /// Applies the updates of a slot to its copy, in their order, until the slot is closed. If it fails, the group ends on all
    /// ranks.
    ///
    /// # Errors
    /// A rank was lost, or the copy has other updates than its slot.
    pub fn serve_copy(&self, slot: u32) -> Result<(), ParallelError> {
        self.ending_the_group(|| self.serve_copies_of(slot))
    }

    fn serve_copies_of(&self, number: u32) -> Result<(), ParallelError> {
        let (from, copy) = self
            .copies
            .get(&number)
            .ok_or_else(|| self.no_slot(number))?;
        let [request, values, samples] = copy_tags(number);
        loop {
            let words =
                receive_words(&*self.group, *from, request, REQUEST_WORDS).map_err(exchange)?;
            let request = <&[u64; REQUEST_WORDS]>::try_from(words.as_slice());
            let push = match request.ok().and_then(ServerRequest::decode) {
                Some(ServerRequest::Leave) => return Ok(()),
                Some(ServerRequest::Push(push)) if push.slot == number => push,
                _ => {
                    return Err(out_of_order(format!(
                        "rank {from} sent an unknown update of slot {number}"
                    )));
                }
            };
            let (gradient, ids) = self.receive_push(&push, *from, (values, samples))?;
            let verdict = self.apply(&mut lock(copy), &push, gradient.as_slice(), &ids);
            if !matches!(verdict, PushVerdict::Apply { .. }) {
                let update = push.push.update;
                return Err(out_of_order(format!(
                    "the copy of slot {number} cannot apply update {update} after its slot has: {verdict:?}"
                )));
            }
        }
    }

    /// Ends the copies of this rank's slots, after all workers have left.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn close(&self) -> Result<(), ParallelError> {
        for number in self.slots.keys() {
            let mut serving = self.serving(*number)?;
            if let Some(to) = serving.copy {
                let [request, ..] = copy_tags(*number);
                let words = ServerRequest::Leave.encode();
                let sent = send_words(&*self.group, to, request, &words);
                serving.sends.push_back(sent.map_err(exchange)?);
            }
            for work in serving.sends.drain(..) {
                work.wait().map_err(exchange)?;
            }
        }
        Ok(())
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> ServedRound {
        self.round
    }

    /// Returns the slots and the copies, and the tensor whose gradient was not finite.
    pub(super) fn into_parts(self) -> (BTreeMap<u32, ServedSlot>, Option<u64>) {
        let lead = self.lead.map(Mutex::into_inner);
        let lead = lead.map(|lead| lead.unwrap_or_else(PoisonError::into_inner));
        let slots = self.slots.into_iter().map(|(number, serving)| {
            let serving = serving.into_inner();
            (number, serving.unwrap_or_else(PoisonError::into_inner).slot)
        });
        let copies = self.copies.into_iter().map(|(number, (_, copy))| {
            let copy = copy.into_inner();
            (number, copy.unwrap_or_else(PoisonError::into_inner))
        });
        let held = slots.chain(copies).collect();
        (held, lead.and_then(|lead| lead.diverged))
    }
}

#[cfg(test)]
mod tests;
