//! [`RoundClient`]: the requests of a worker during a round.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::sparse::SparseValues;
use ronde_core::{Buffer, CollectiveError, Group, GroupRank, Work};
use ronde_protocol::served::{PushHeader, ServedRound};

use super::messages::{
    ANSWER, ANSWER_WORDS, GRADIENT, REQUEST, SAMPLES, ServerAnswer, ServerRequest, SlotPush,
    VALUES, receive_values, receive_words, send_gradient, send_words,
};
use super::server::RoundServer;
use super::slice::UpdateScale;
use crate::error::ParallelError;

/// A gradient that a worker has computed.
#[derive(Debug, Clone)]
pub(super) struct ComputedUpdate {
    pub(super) round: ServedRound,
    pub(super) update: u32,
    /// The version of each slot that it was computed from.
    pub(super) bases: Vec<u64>,
    pub(super) scale: UpdateScale,
    pub(super) skipped: u64,
    pub(super) loss_sum: f64,
    pub(super) sample_ids: Vec<u64>,
    /// The sum over the counted targets, for all elements of the flat state.
    pub(super) gradient: Vec<f32>,
}

/// The requests of a worker to the servers of a round.
pub struct RoundClient {
    pub(super) group: Arc<dyn Group>,
    pub(super) round: ServedRound,
    pub(super) attempt: u64,
    /// The server and the elements of each slot.
    pub(super) slots: Vec<(GroupRank, Range<usize>)>,
    /// The slots of this rank.
    pub(super) own: Option<Arc<RoundServer>>,
    /// Whether gradients are sent without their zeros where that takes less than half of the bytes.
    pub(super) sends_sparsely: bool,
}

fn exchange(action: &str) -> impl FnOnce(CollectiveError) -> ParallelError + use<> {
    let action = action.to_owned();
    move |source| ParallelError::Exchange { action, source }
}

fn unexpected(from: GroupRank) -> ParallelError {
    ParallelError::OutOfOrder {
        problem: format!("server {from} sent an unexpected answer"),
    }
}

impl RoundClient {
    /// Returns the server of a slot if it is this rank.
    fn own(&self, slot: usize) -> Option<&RoundServer> {
        let is_own = self.slots[slot].0 == self.group.rank();
        self.own.as_deref().filter(|_| is_own)
    }

    fn ask(
        &self,
        to: GroupRank,
        request: &ServerRequest,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        send_words(&*self.group, to, REQUEST, &request.encode())
    }

    fn answer(&self, from: GroupRank) -> Result<ServerAnswer, ParallelError> {
        let words = receive_words(&*self.group, from, ANSWER, ANSWER_WORDS);
        let words = words.map_err(exchange("receive the answer of a server"))?;
        let words = <[u64; ANSWER_WORDS]>::try_from(words);
        let answer = words.ok().and_then(ServerAnswer::decode);
        answer.ok_or_else(|| unexpected(from))
    }

    /// Asks the leading server, and returns its answer.
    fn ask_lead(&self, request: &ServerRequest) -> Result<ServerAnswer, ParallelError> {
        let lead = self.slots[0].0;
        if let Some(own) = self.own(0) {
            return match *request {
                ServerRequest::Diverged(tensor) => own.diverged(tensor),
                _ => own.lease(lead),
            };
        }
        let sent = self.ask(lead, request).and_then(Work::wait);
        sent.map_err(exchange("ask for an update"))?;
        self.answer(lead)
    }

    /// Waits for the number of the next update of this worker; `None`: the round is complete.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn lease(&self) -> Result<Option<u32>, ParallelError> {
        match self.ask_lead(&ServerRequest::Lease)? {
            ServerAnswer::Granted(update) => Ok(Some(update)),
            ServerAnswer::Complete => Ok(None),
            _ => Err(unexpected(self.slots[0].0)),
        }
    }

    /// Ends the round on all ranks, because the gradient of a tensor is not finite.
    pub(super) fn diverged(&self, tensor: u64) -> Result<(), ParallelError> {
        self.ask_lead(&ServerRequest::Diverged(tensor)).map(|_| ())
    }

    /// Fetches the weights of all slots; returns their versions.
    pub(super) fn pull(&self, weights: &mut [f32]) -> Result<Vec<u64>, ParallelError> {
        let action = "fetch the weights";
        let mut sends = Vec::new();
        for (slot, (server, _)) in self.slots.iter().enumerate() {
            if self.own(slot).is_none() {
                let sent = self.ask(*server, &ServerRequest::Pull(slot as u32));
                sends.push(sent.map_err(exchange(action))?);
            }
        }
        let mut versions = Vec::with_capacity(self.slots.len());
        for (slot, (server, elements)) in self.slots.iter().enumerate() {
            let (version, values) = if let Some(own) = self.own(slot) {
                own.pull(slot as u32)?
            } else {
                let ServerAnswer::Version(version) = self.answer(*server)? else {
                    return Err(unexpected(*server));
                };
                let values = receive_values(&*self.group, *server, VALUES, elements.len());
                (version, values.map_err(exchange(action))?)
            };
            weights[elements.clone()].copy_from_slice(values.as_slice());
            versions.push(version);
        }
        for sent in sends {
            sent.wait().map_err(exchange(action))?;
        }
        Ok(versions)
    }

    /// Pushes a gradient to all slots, to the first one last. Returns whether it counts; otherwise it has to be computed again.
    pub(super) fn push(&self, computed: &ComputedUpdate) -> Result<ServerAnswer, ParallelError> {
        let others = self.push_to(1..self.slots.len(), computed)?;
        if others != ServerAnswer::Counted {
            return Ok(others);
        }
        self.push_to(0..1, computed)
    }

    /// Pushes a gradient to some slots; returns the first answer that is not `Counted`.
    fn push_to(
        &self,
        slots: Range<usize>,
        computed: &ComputedUpdate,
    ) -> Result<ServerAnswer, ParallelError> {
        let action = "push a gradient";
        let group = &*self.group;
        let mut sends = Vec::new();
        let mut result = ServerAnswer::Counted;
        for slot in slots.clone() {
            let (server, elements) = &self.slots[slot];
            let ids: &[u64] = if slot == 0 { &computed.sample_ids } else { &[] };
            let values = &computed.gradient[elements.clone()];
            let sparse = match self.sends_sparsely {
                true => SparseValues::of(values, 2 * values.len()),
                false => None,
            };
            let push = SlotPush {
                slot: slot as u32,
                push: PushHeader {
                    round: computed.round,
                    attempt: self.attempt,
                    update: computed.update,
                    base: computed.bases[slot],
                    worker: group.rank().0,
                },
                scale: computed.scale,
                skipped: computed.skipped,
                loss_sum: computed.loss_sum,
                ids: ids.len() as u64,
                sparse: sparse.as_ref().map(SparseValues::size),
            };
            if let Some(own) = self.own(slot) {
                let answer = own.push(&push, Buffer::copy_of(values), ids.to_vec())?;
                result = first_problem(result, answer);
                continue;
            }
            let request = ServerRequest::Push(push);
            sends.push(self.ask(*server, &request));
            sends.push(send_gradient(
                group,
                *server,
                GRADIENT,
                values,
                sparse.as_ref(),
            ));
            if !ids.is_empty() {
                sends.push(send_words(group, *server, SAMPLES, ids));
            }
        }
        for slot in slots.filter(|slot| self.own(*slot).is_none()) {
            result = first_problem(result, self.answer(self.slots[slot].0)?);
        }
        for sent in sends {
            sent.and_then(Work::wait).map_err(exchange(action))?;
        }
        Ok(result)
    }

    /// Tells all servers that this worker sends no more requests.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn leave(&self) -> Result<(), ParallelError> {
        let me = self.group.rank();
        let mut servers: Vec<GroupRank> = self.slots.iter().map(|(server, _)| *server).collect();
        servers.sort_unstable();
        servers.dedup();
        for server in servers.into_iter().filter(|server| *server != me) {
            let sent = self.ask(server, &ServerRequest::Leave);
            let sent = sent.and_then(Work::wait);
            sent.map_err(exchange("leave the round"))?;
        }
        Ok(())
    }
}

/// Returns the first answer unless the gradient counts.
fn first_problem(first: ServerAnswer, second: ServerAnswer) -> ServerAnswer {
    match first {
        ServerAnswer::Counted => second,
        problem => problem,
    }
}
