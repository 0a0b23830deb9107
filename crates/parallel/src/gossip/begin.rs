//! The start of a round: the ranks agree on the replicas that continue, and the others copy one.

use std::sync::Arc;

use ronde_core::layout::Role;
use ronde_core::{CollectiveError, GroupRank, Work};
use ronde_protocol::gossip::{GossipRound, GossipStart, Pairings, ReplicaHolding, UpdateLog};

use super::messages::COPIED;
use super::peer::send_values;
use super::{Gossip, GossipPeer, RoundReplica, SavedState};
use crate::error::ParallelError;
use crate::parameter_servers::RoundStart;
use crate::parameter_servers::messages::{gather_words, receive_values};

fn failed(source: CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: "begin a round".to_owned(),
        source,
    }
}

impl Gossip {
    /// Does [`Gossip::begin_round`].
    pub(super) fn begin(&mut self, start: &RoundStart) -> Result<Arc<GossipPeer>, ParallelError> {
        self.restore_state();
        let round = GossipRound {
            step: start.step,
            start: self.inner.digest(None),
            updates: start.updates,
        };
        self.first = start.first;
        let is_current = |replica: &RoundReplica| replica.log.round() == round;
        self.replica = self.replica.take().filter(is_current);
        let holding = self.replica.as_ref();
        let holding = holding.map(|replica| ReplicaHolding::of(&replica.log));
        let group = self.group.clone();
        let words = gather_words(&*group, &ReplicaHolding::encode(holding.as_ref()));
        let words = words.map_err(failed)?;
        let holdings = ReplicaHolding::decode_all(&words, group.size());
        let holdings = holdings.ok_or_else(|| ParallelError::OutOfOrder {
            problem: "a rank has sent an invalid description of its replica".to_owned(),
        })?;
        let decided = GossipStart::decide(round, &holdings);
        if !decided.continues[group.rank().index()] {
            self.replica = None;
        }
        let copied = self.copy_replica(&decided)?;
        let before = self.saved();
        if let Some(state) = copied {
            self.restore(&state);
        }
        self.before = Some(before);
        let replica = self.replica.get_or_insert_with(|| RoundReplica {
            log: UpdateLog::new(round),
            state: None,
        });
        replica.log.enter(start.attempt);
        let pairings = Pairings::new(self.config.seeds, start.step, group.size() as u32);
        let weights = self.inner.weights().values().to_vec();
        let buffers = self.elements_of(Role::Buffer);
        Ok(Arc::new(GossipPeer::new(
            group,
            self.waits.clock(),
            (weights, buffers),
            (pairings, &decided.done),
        )))
    }

    /// Returns the replica with which this rank begins: its own, or that of the source; `None`: it begins with the state before the
    /// round.
    fn copy_replica(&mut self, decided: &GossipStart) -> Result<Option<SavedState>, ParallelError> {
        let own = self.replica.as_mut().and_then(|own| own.state.take());
        let Some(source) = decided.source else {
            return Ok(own);
        };
        let is_source = self.group.rank().index() == source;
        let exchanged = match &own {
            Some(state) if is_source => self.send_replica(state, decided).map(|()| None),
            Some(_) => Ok(None),
            None => self.receive_replica(GroupRank(source as u32)).map(Some),
        };
        match exchanged {
            Ok(received) => Ok(received.or(own)),
            Err(error) => {
                // The next group continues with it.
                if let Some(replica) = &mut self.replica {
                    replica.state = own;
                }
                Err(error)
            }
        }
    }

    /// Sends the replica of this rank to those that have none.
    fn send_replica(&self, state: &SavedState, decided: &GossipStart) -> Result<(), ParallelError> {
        let mut works: Vec<Box<dyn Work>> = Vec::new();
        let ranks = decided.continues.iter().zip(0..);
        for (_, rank) in ranks.filter(|(continues, _)| !**continues) {
            for values in std::iter::once(&state.weights).chain(&state.states) {
                let sent = send_values(&*self.group, GroupRank(rank), COPIED, values);
                works.push(sent.map_err(failed)?);
            }
        }
        for work in works {
            work.wait().map_err(failed)?;
        }
        Ok(())
    }

    fn receive_replica(&self, from: GroupRank) -> Result<SavedState, ParallelError> {
        let len = self.inner.weights().len();
        let receive = || -> Result<Vec<f32>, ParallelError> {
            let values = receive_values(&*self.group, from, COPIED, len);
            Ok(values.map_err(failed)?.as_slice::<f32>().to_vec())
        };
        let weights = receive()?;
        let states = self.inner.optimizer_states().iter();
        let states = states.map(|_| receive());
        Ok(SavedState {
            weights,
            states: states.collect::<Result<_, _>>()?,
        })
    }
}
