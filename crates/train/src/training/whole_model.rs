//! The whole model at the end of a [`Training`], for workers that return it.
//!
//! Each rank broadcasts the elements for which it is responsible, within the transaction that publishes the model. So the loss of a
//! worker leads to another generation, as in any step. A saved model needs less memory: rank 0 receives its tensors one after
//! another (`export.rs`).

use std::ops::Range;

use ronde_core::{CollectivesExt, GroupRank};
use ronde_parallel::ModelState;

use super::Training;
use crate::error::TrainError;
use crate::finished_model::FinishedModel;

/// The largest number of elements that a rank sends at once: 4 MiB.
const PIECE_MAX: usize = 1 << 20;

/// The whole model of a run whose workers divide the weights.
#[derive(Debug, Default)]
pub(super) struct WholeModel {
    /// Whether every worker needs it at the end.
    is_needed: bool,
    gathered: Option<ModelState>,
}

impl Training {
    /// Returns the whole model from [`Training::into_model`] on every worker. Cost: if the workers divide the weights, memory for
    /// the whole model on each of them, and as many received bytes, at the end of the run.
    #[must_use]
    pub fn with_whole_model(mut self) -> Self {
        self.whole.is_needed = true;
        self
    }

    /// Receives the elements that other ranks answer for, if every worker needs the whole model. All members call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn gather_whole_model(&mut self) -> Result<(), TrainError> {
        self.whole.gathered = None;
        if !self.whole.is_needed || !self.divides_weights() {
            return Ok(());
        }
        let group = self.member.group.clone();
        let state = self.policy.state().model();
        let mut whole = state.clone();
        whole.store(whole.all());
        for (rank, owned) in self.owned().iter().enumerate() {
            let root = GroupRank(rank as u32);
            for piece in pieces(owned.ranges().iter().cloned()) {
                let mut values = vec![0.0; piece.len()];
                if group.rank() == root {
                    state.read(&piece, &mut values);
                }
                let sent = group.broadcast(&mut values, root);
                sent.map_err(TrainError::Farewell)?;
                whole.write(&piece, &values);
            }
        }
        self.whole.gathered = Some(whole);
        Ok(())
    }

    /// Drops the whole model, because another generation trains further.
    pub(super) fn drop_whole_model(&mut self) {
        self.whole.gathered = None;
    }

    /// Ends the training, and returns its model on a worker that has all of it.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] when the workers divide the weights, and [`Training::with_whole_model`] was not called before
    /// the run.
    pub fn into_model(self) -> Result<FinishedModel, TrainError> {
        let (rank, steps) = (self.rank(), self.steps());
        let state = match self.whole.gathered {
            Some(whole) => whole,
            None if self.divides_weights() => {
                return Err(TrainError::Impossible {
                    problem: "this worker has a part of the weights only".to_owned(),
                    hint:
                        "call `Training::with_whole_model` before the run, or load the saved model"
                            .to_owned(),
                });
            }
            None => self.policy.state().model().clone(),
        };
        let chain = self.policy.into_chain();
        let sample = self.data.split.train.description().shape.clone();
        let of_run = (rank, steps);
        Ok(FinishedModel::new(
            self.plan,
            of_run,
            (chain, state),
            sample,
        ))
    }
}

/// Returns the ranges of elements that are sent one after the other for some ranges.
pub(crate) fn pieces(
    ranges: impl Iterator<Item = Range<usize>>,
) -> impl Iterator<Item = Range<usize>> {
    ranges.flat_map(|range| {
        let starts = range.clone().step_by(PIECE_MAX);
        starts.map(move |start| start..range.end.min(start + PIECE_MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_elements_in_order() {
        let end = 2 * PIECE_MAX + 7;
        let found: Vec<Range<usize>> = pieces([0..5, 9..end].into_iter()).collect();
        let second = 9 + PIECE_MAX;
        assert_eq!(found, [0..5, 9..second, second..end]);
    }
}
