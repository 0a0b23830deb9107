//! The initial weights of a file in a [`Training`]: rank 0 reads them, and sends them to the other members.

use std::sync::mpsc;

use ronde_core::layout::StateLayout;
use ronde_core::{CollectivesExt, Event, GroupRank, Rank, Step};
use ronde_saved_model::InitialWeights;

use super::Training;
use super::beginning::Beginning;
use crate::checkpoints;
use crate::error::TrainError;
use crate::initial_weights::InitialWeightFile;
use crate::model_copies::ModelCopies;

/// The number of hexadecimal digits of the hash of a file.
const HASH_DIGITS: usize = 64;

/// What a member knows of the state before the first step.
#[derive(Default)]
pub(super) struct InitialState {
    /// The weights of a file; `None`: the seed determines them.
    pub(super) weights: Option<SharedInitialWeights>,
    /// The remaining state; `None` before the run has started.
    pub(super) rest: Option<Beginning>,
}

/// The initial weights of a file, as far as this member has them.
#[derive(Debug)]
pub(super) struct SharedInitialWeights {
    file: InitialWeightFile,
    /// Whether they are, or have been, the weights of this member.
    is_loaded: bool,
}

impl SharedInitialWeights {
    /// Notes that this member does not have the weights any more.
    pub(super) fn give_up(&mut self) {
        self.is_loaded = false;
    }
}

/// The needs of a generation's members for the initial weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SharedPart {
    /// The hash alone, from this member: the run has begun, and weights are copied as in any generation.
    Hash(usize),
    /// The hash and the weights, from this member.
    Weights(usize),
    /// Nothing: all members have the weights.
    Nothing,
}

/// A member has trained, so that its weights are not the initial ones any more.
const HAS_TRAINED: u8 = 2;
/// A member has the initial weights.
const HAS_WEIGHTS: u8 = 1;

impl SharedPart {
    /// Decides for all members from their reports. Rank 0 reads the file if no member has the weights.
    fn new(reports: &[u8]) -> Self {
        let first = |report| reports.iter().position(|one| *one == report);
        match first(HAS_TRAINED) {
            Some(member) => Self::Hash(member),
            None if reports.iter().all(|one| *one == HAS_WEIGHTS) => Self::Nothing,
            None => Self::Weights(first(HAS_WEIGHTS).unwrap_or(0)),
        }
    }
}

impl Training {
    /// Starts from the weights of a file, which rank 0 reads when the first generation begins; the other members receive
    /// them and its hash, which becomes part of the plan.
    #[must_use]
    pub fn with_initial_weights(mut self, file: Option<InitialWeightFile>) -> Self {
        self.initial.weights = file.map(|file| SharedInitialWeights {
            file,
            is_loaded: false,
        });
        self
    }

    /// Brings the initial weights of the file, if there is one, to all members of a generation that has not trained, and their
    /// hash to all members of any. All members call it together. Cost: two messages, and the weights at the first time.
    ///
    /// # Errors
    /// Rank 0 cannot use the file, or a peer was lost.
    pub(super) fn share_initial_weights(&mut self) -> Result<(), TrainError> {
        let Some(initial) = &self.initial.weights else {
            return Ok(());
        };
        let group = self.member.group.clone();
        // Another division of the layers needs other weights.
        let is_loaded = initial.is_loaded && !self.has_parts();
        let report = match is_loaded {
            _ if !self.session.is_fresh() && self.session.is_complete() => HAS_TRAINED,
            true => HAS_WEIGHTS,
            false => 0,
        };
        let reports = group.all_gather(&[report]).map_err(TrainError::Heal)?;
        let (source, needs_weights) = match SharedPart::new(&reports) {
            SharedPart::Nothing => return Ok(()),
            SharedPart::Hash(source) => (source, false),
            SharedPart::Weights(source) => (source, true),
        };
        let root = GroupRank(source as u32);
        let mut read = None;
        if needs_weights {
            let even = self.even_mesh()?;
            self.regroup(even)?;
            let mine = self.own_slices();
            self.hold(&mine).reload();
            if reports[source] != HAS_WEIGHTS {
                read = self.read_initial_weights(source)?;
            }
        }
        let mut hash = self.initial_hash().into_bytes();
        hash.resize(HASH_DIGITS, b'0');
        group.broadcast(&mut hash, root).map_err(TrainError::Heal)?;
        self.plan
            .bind_initial_weights(&String::from_utf8_lossy(&hash));
        if needs_weights {
            self.broadcast_weights(root, read.as_ref())?;
            self.start_from_state();
        }
        Ok(())
    }

    /// Sends the initial weights from one member to all, tensor by tensor. `read` has them on that member, if it has just read
    /// them; otherwise it sends its own.
    fn broadcast_weights(
        &mut self,
        root: GroupRank,
        read: Option<&InitialWeights>,
    ) -> Result<(), TrainError> {
        let group = self.member.group.clone();
        // Tensors that the file lacks are drawn.
        let draws = self.has_parts();
        let mut edit = self.policy.edit();
        if draws {
            let reset = edit.reset();
            reset.map_err(|source| TrainError::of_step(Step(0), source))?;
        }
        for tensor in edit.model().tensors().to_vec() {
            let mut values = vec![0.0; tensor.range.len()];
            edit.model().read(&tensor.range, &mut values);
            if let Some(read) = read {
                let whole = 0..tensor.range.len();
                read.write_into(std::iter::once((&tensor.entry, whole)), &mut values);
            }
            group
                .broadcast(&mut values, root)
                .map_err(TrainError::Heal)?;
            edit.write(&tensor.range, &values);
        }
        edit.reload();
        Ok(())
    }

    /// Reads the file on rank `reader` into its state, while the remaining ranks wait.
    fn read_initial_weights(
        &mut self,
        reader: usize,
    ) -> Result<Option<InitialWeights>, TrainError> {
        let (group, interval) = (self.member.group.clone(), self.poll_interval());
        let Some(initial) = &self.initial.weights else {
            return Ok(None);
        };
        let reads = group.rank().index() == reader;
        let tensors = self.policy.state().model().tensors().iter();
        let layout = StateLayout {
            tensors: tensors.map(|tensor| tensor.entry.clone()).collect(),
        };
        let (sender, receiver) = mpsc::channel();
        let what = "the file of `model.init` to be read".to_owned();
        let mut slow = checkpoints::SlowWait::start(what, self.member.rank, &*self.member.tracker);
        let read = std::thread::scope(|scope| {
            if reads {
                // The receiver is gone if a peer was lost; the file is then read again.
                scope.spawn(move || drop(sender.send(initial.file.read(&layout))));
            }
            checkpoints::wait_for_all(&*group, interval, &mut slow, |limit| match reads {
                true => receiver.recv_timeout(limit).ok().map(Some),
                false => Some(None),
            })
        });
        let read = read.map_err(TrainError::Heal)?.transpose();
        let has_failed = group.all_gather(&[u8::from(read.is_err())]);
        // A rank that failed reports its error, whatever the result on the remaining ranks.
        let read = read?;
        if has_failed.map_err(TrainError::Heal)?.contains(&1) {
            return Err(TrainError::InitialWeightsNotRead {
                rank: Rank(reader as u32),
            });
        }
        if let Some(weights) = &read {
            self.check_unchanged(weights)?;
            self.report_initial_weights(weights);
        }
        Ok(read)
    }

    /// Returns an error if a run that begins again finds another file than at first.
    fn check_unchanged(&self, weights: &InitialWeights) -> Result<(), TrainError> {
        let before = self.initial_hash();
        if before.is_empty() || before == weights.blake3() {
            return Ok(());
        }
        Err(TrainError::Impossible {
            problem: "the run cannot begin again: the file of `model.init` has changed".to_owned(),
            hint: "restore the file, or start a new run".to_owned(),
        })
    }

    /// Adds the weights that this member has read to the plan, and reports them.
    fn report_initial_weights(&mut self, weights: &InitialWeights) {
        self.plan.bind_initial_weights(weights.blake3());
        self.member.tracker.record(Event::Notice {
            rank: Some(self.member.rank),
            message: weights.summary(),
        });
    }

    /// Returns the hash of the file, 64 digits, if this member knows it.
    fn initial_hash(&self) -> String {
        let hash = self.plan.identity.part("model.init");
        let hash = hash.and_then(|hash| hash.strip_prefix("blake3:"));
        hash.unwrap_or_default().to_owned()
    }

    /// Starts from the weights that the state has.
    fn start_from_state(&mut self) {
        let state = self.policy.state();
        self.copies = ModelCopies::new(&self.plan.config.train, state.held_weights());
        self.session.set_digest(state.digest(None));
        if let Some(initial) = &mut self.initial.weights {
            initial.is_loaded = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_member_that_has_the_weights_sends_them() {
        for (reports, expected) in [
            (&[0, 0, 0][..], SharedPart::Weights(0)),
            (&[0, 1, 1], SharedPart::Weights(1)),
            (&[1, 1, 1], SharedPart::Nothing),
            (&[0, 1, 2], SharedPart::Hash(2)),
            (&[2, 2], SharedPart::Hash(0)),
        ] {
            assert_eq!(SharedPart::new(reports), expected, "{reports:?}");
        }
    }
}
