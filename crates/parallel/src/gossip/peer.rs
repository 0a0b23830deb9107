//! [`GossipPeer`]: the replica of a rank during a round, which its worker trains and which other ranks average with theirs.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_core::{Buffer, CollectiveError, Group, GroupRank, Tag, Work};
use ronde_protocol::gossip::{
    ExchangeBook, ExchangeVerdict, NextUpdate, PairExchange, Pairings, UpdateClaims, WorkerProgress,
};

use super::messages::{
    ANSWER, ANSWER_WORDS, MEAN, PeerAnswer, PeerRequest, REQUEST, REQUEST_WORDS, WEIGHTS,
};
use crate::error::ParallelError;
use crate::parameter_servers::AbortOnPanic;
use crate::parameter_servers::messages::{receive_values, receive_words, send_words};
use crate::synchronous::ComputeClock;

/// The longest wait until the group is looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// The replica as other ranks see it, and the claims and exchanges of the rank.
struct SharedReplica {
    weights: Vec<f32>,
    /// The number of times that other ranks have changed the weights.
    version: u64,
    claims: UpdateClaims,
    book: ExchangeBook,
    /// The tensor whose gradient was not finite.
    diverged: Option<u64>,
    /// The bytes of weights of the exchanges that this rank has begun, both ways.
    bytes: u64,
}

/// The results of a rank at the end of its part of a round.
pub(super) struct FinishedReplica {
    pub(super) weights: Vec<f32>,
    pub(super) diverged: Option<u64>,
    /// The exchanges that this rank has begun, with and without an effect, and their bytes.
    pub(super) averaged: u64,
    pub(super) missed: u64,
    pub(super) bytes: u64,
}

/// A rank's part in a round. One thread calls [`GossipPeer::serve`] for each other rank, while the worker computes.
pub struct GossipPeer {
    group: Arc<dyn Group>,
    clock: ComputeClock,
    /// The elements that are running statistics.
    buffers: Vec<Range<usize>>,
    shared: Mutex<SharedReplica>,
    /// Notified when this rank has granted an update.
    granted: Condvar,
}

fn exchange(action: &str) -> impl FnOnce(CollectiveError) -> ParallelError + use<> {
    let action = action.to_owned();
    move |source| ParallelError::Exchange { action, source }
}

fn out_of_order(problem: String) -> ParallelError {
    ParallelError::OutOfOrder { problem }
}

impl GossipPeer {
    pub(super) fn new(
        group: Arc<dyn Group>,
        clock: ComputeClock,
        (weights, buffers): (Vec<f32>, Vec<Range<usize>>),
        (pairings, done): (Pairings, &[bool]),
    ) -> Self {
        let (rank, ranks) = (group.rank().0, group.size() as u32);
        let shared = SharedReplica {
            weights,
            version: 0,
            claims: UpdateClaims::new(rank, ranks, done),
            book: ExchangeBook::new(rank, pairings),
            diverged: None,
            bytes: 0,
        };
        Self {
            group,
            clock,
            buffers,
            shared: Mutex::new(shared),
            granted: Condvar::new(),
        }
    }

    pub(super) fn into_finished(self) -> FinishedReplica {
        let shared = self.shared.into_inner();
        let shared = shared.unwrap_or_else(PoisonError::into_inner);
        FinishedReplica {
            weights: shared.weights,
            diverged: shared.diverged,
            averaged: shared.book.averaged(),
            missed: shared.book.missed(),
            bytes: shared.bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SharedReplica> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        ((self.clock)() * 1e3) as u64
    }

    /// Returns the other ranks; each needs a thread that calls [`GossipPeer::serve`].
    #[must_use]
    pub fn others(&self) -> Vec<GroupRank> {
        let me = self.group.rank();
        let all = (0..self.group.size() as u32).map(GroupRank);
        all.filter(|rank| *rank != me).collect()
    }

    /// Answers the requests of another rank until it leaves. An error or a panic ends the group on all ranks, so that none waits for
    /// the thread.
    ///
    /// # Errors
    /// A rank was lost, or the other one sent invalid bytes.
    pub fn serve(&self, other: GroupRank) -> Result<(), ParallelError> {
        let guard = AbortOnPanic(&*self.group);
        let served = self.serve_requests(other);
        drop(guard);
        if let Err(error) = &served {
            self.group.abort(&error.to_string());
        }
        served
    }

    fn serve_requests(&self, other: GroupRank) -> Result<(), ParallelError> {
        let failed = || exchange("answer another worker");
        loop {
            let words = receive_words(&*self.group, other, REQUEST, REQUEST_WORDS);
            let words = <[u64; REQUEST_WORDS]>::try_from(words.map_err(failed())?);
            let request = words.ok().and_then(PeerRequest::decode);
            let (answer, progress, mean) = match request {
                Some(PeerRequest::Leave) => return Ok(()),
                Some(PeerRequest::Ask(number, progress)) => self.grant(other, number, progress),
                Some(PeerRequest::Exchange(number, progress)) => {
                    let len = self.lock().weights.len();
                    let theirs = receive_values(&*self.group, other, WEIGHTS, len);
                    let theirs = theirs.map_err(failed())?;
                    self.meet((other, number), progress, theirs)
                }
                None => {
                    let problem = format!("worker {other} sent an unknown request");
                    return Err(out_of_order(problem));
                }
            };
            let sent = send_words(&*self.group, other, ANSWER, &answer.encode(progress));
            sent.and_then(Work::wait).map_err(failed())?;
            if let Some(mean) = mean {
                let sent = self.group.send(other, MEAN, mean);
                sent.and_then(Work::wait).map_err(failed())?;
            }
        }
    }

    fn grant(
        &self,
        other: GroupRank,
        number: u64,
        progress: WorkerProgress,
    ) -> (PeerAnswer, WorkerProgress, Option<Buffer>) {
        let mut shared = self.lock();
        let update = shared.claims.grant(other.0, number, progress);
        let own = shared.claims.progress();
        drop(shared);
        self.granted.notify_all();
        (PeerAnswer::Granted(update), own, None)
    }

    /// Averages the replica with that of another rank, if that is possible now. Returns the mean for it.
    fn meet(
        &self,
        (other, number): (GroupRank, u64),
        progress: WorkerProgress,
        mut theirs: Buffer,
    ) -> (PeerAnswer, WorkerProgress, Option<Buffer>) {
        let mut shared = self.lock();
        shared.claims.hear(other.0, progress);
        let own = shared.claims.progress();
        if shared.book.offer(other.0, number) != ExchangeVerdict::Average {
            return (PeerAnswer::Missed, own, None);
        }
        let values = theirs.as_mut_slice::<f32>();
        for (own, other) in shared.weights.iter_mut().zip(values) {
            *own = 0.5 * (*own + *other);
            *other = *own;
        }
        shared.version += 1;
        (PeerAnswer::Averaged, own, Some(theirs))
    }

    /// Sends a request, and returns the answer.
    fn request(
        &self,
        to: GroupRank,
        request: PeerRequest,
        weights: Option<Buffer>,
    ) -> Result<PeerAnswer, ParallelError> {
        let action = "ask another worker";
        let mut sends = vec![send_words(&*self.group, to, REQUEST, &request.encode())];
        if let Some(weights) = weights {
            sends.push(self.group.send(to, WEIGHTS, weights));
        }
        let words = receive_words(&*self.group, to, ANSWER, ANSWER_WORDS);
        let words = <[u64; ANSWER_WORDS]>::try_from(words.map_err(exchange(action))?);
        for sent in sends {
            sent.and_then(Work::wait).map_err(exchange(action))?;
        }
        let answer = words.ok().and_then(PeerAnswer::decode);
        let (answer, progress) =
            answer.ok_or_else(|| out_of_order(format!("worker {to} sent an unknown answer")))?;
        self.lock().claims.hear(to.0, progress);
        Ok(answer)
    }

    /// Returns the update that this rank computes next; `None`: nothing is left for it in the round. Waits if the other ranks finish
    /// the round earlier without this one.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn claim(&self) -> Result<Option<u32>, ParallelError> {
        loop {
            let mut shared = self.lock();
            let now_ms = self.now_ms();
            match shared.claims.next(now_ms) {
                NextUpdate::Compute(update) => return Ok(Some(update)),
                NextUpdate::Complete => return Ok(None),
                NextUpdate::Ask { owner, number } => {
                    let request = PeerRequest::Ask(number, shared.claims.progress());
                    drop(shared);
                    let answer = self.request(GroupRank(owner), request, None)?;
                    let PeerAnswer::Granted(update) = answer else {
                        let problem = format!("worker {owner} answered another request");
                        return Err(out_of_order(problem));
                    };
                    let now_ms = self.now_ms();
                    let mut shared = self.lock();
                    if let Some(update) = shared.claims.answered(owner, number, update, now_ms) {
                        return Ok(Some(update));
                    }
                }
                NextUpdate::Wait(until_ms) => {
                    let limit = Duration::from_millis(until_ms.saturating_sub(now_ms).max(1));
                    let waited = self.granted.wait_timeout(shared, limit.min(LOOK));
                    drop(waited);
                    if let Some(failure) = self.group.failure() {
                        return Err(exchange("wait for the end of the round")(failure));
                    }
                }
            }
        }
    }

    /// Copies the weights of the replica; returns their version.
    pub(super) fn read(&self, weights: &mut [f32]) -> u64 {
        let shared = self.lock();
        weights.copy_from_slice(&shared.weights);
        shared.version
    }

    /// Adds an update to the replica: that from the weights `before`, of a version, to `after`. If other ranks have changed the replica
    /// since, parameters get the difference, and running statistics become the mean of both.
    pub(super) fn write(&self, (before, version): (&[f32], u64), after: &[f32]) {
        let now_ms = self.now_ms();
        let mut shared = self.lock();
        shared.claims.finish(now_ms);
        if shared.version == version {
            shared.weights.copy_from_slice(after);
            return;
        }
        let mut buffers = self.buffers.iter().cloned().peekable();
        let weights = shared.weights.iter_mut().zip(before.iter().zip(after));
        for (index, (own, (before, after))) in weights.enumerate() {
            buffers.next_if(|range| range.end <= index);
            let is_buffer = buffers.peek().is_some_and(|range| range.contains(&index));
            *own = match is_buffer {
                true => 0.5 * (*own + *after),
                false => *own + (*after - *before),
            };
        }
    }

    /// Ends this rank's part of the round, because the gradient of a tensor is not finite.
    pub(super) fn diverge(&self, tensor: u64) {
        let mut shared = self.lock();
        shared.claims.end();
        shared.diverged = Some(tensor);
    }

    /// Begins the next exchange, and waits for its answer.
    pub(super) fn exchange(&self) -> Result<(), ParallelError> {
        let mut shared = self.lock();
        let Some(PairExchange { partner, number }) = shared.book.begin() else {
            return Ok(());
        };
        let request = PeerRequest::Exchange(number, shared.claims.progress());
        let weights = Buffer::copy_of(&shared.weights);
        let len = shared.weights.len();
        let bytes = weights.bytes().len() as u64;
        drop(shared);
        let to = GroupRank(partner);
        let answer = self.request(to, request, Some(weights))?;
        let mean = match answer {
            PeerAnswer::Averaged => {
                let mean = receive_values(&*self.group, to, MEAN, len);
                Some(mean.map_err(exchange("average with another worker"))?)
            }
            PeerAnswer::Missed => None,
            PeerAnswer::Granted(_) => {
                let problem = format!("worker {to} answered another request");
                return Err(out_of_order(problem));
            }
        };
        let mut shared = self.lock();
        shared.bytes += bytes;
        shared.book.end(mean.is_some());
        if let Some(mean) = mean {
            shared.weights.copy_from_slice(mean.as_slice());
            shared.bytes += bytes;
        }
        Ok(())
    }

    /// Tells all other ranks that this one has no more requests.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn leave(&self) -> Result<(), ParallelError> {
        for other in self.others() {
            let words = PeerRequest::Leave.encode();
            let sent = send_words(&*self.group, other, REQUEST, &words);
            let sent = sent.and_then(Work::wait);
            sent.map_err(exchange("leave the round"))?;
        }
        Ok(())
    }
}

/// Starts sending values.
pub(super) fn send_values(
    group: &dyn Group,
    to: GroupRank,
    tag: Tag,
    values: &[f32],
) -> Result<Box<dyn Work>, CollectiveError> {
    group.send(to, tag, Buffer::copy_of(values))
}
