//! The state between rounds: it is put back when a round is left, and joined from all ranks when one is complete. Predictors get
//! theirs at the start of a round.

use std::ops::Range;

use ronde_core::{Buffer, DType, GroupRank, Operation};

use super::{SyntheticGradients, exchange_failed, no_round};
use crate::error::ParallelError;

impl SyntheticGradients {
    /// Returns the state of the predictors as they are: the weights of all of them, then each state of their optimizer.
    pub(super) fn predictor_vectors(&self) -> Vec<Vec<f32>> {
        let mut joined: Vec<Vec<f32>> = Vec::new();
        for predictor in &self.predictors {
            let vectors = predictor.vectors();
            for (index, values) in vectors.enumerate() {
                if joined.len() == index {
                    joined.push(Vec::new());
                }
                joined[index].extend_from_slice(values);
            }
        }
        joined
    }

    /// Returns the predictors to the state after the last round.
    pub(super) fn restore_predictors(&mut self) {
        let mut start = 0;
        for predictor in &mut self.predictors {
            let own = start..start + predictor.len();
            start = own.end;
            if let Some((weights, states)) = self.committed.split_first() {
                let states = states.iter().map(|state| state[own.clone()].to_vec());
                let states: Vec<Vec<f32>> = states.collect();
                predictor.restore(&weights[own], &states);
            }
        }
    }

    /// Returns the state to that before the round, if one is under way.
    pub(super) fn restore_start(&mut self) {
        if let Some(running) = self.running.take() {
            let states: Vec<&[f32]> = running.states.iter().map(Vec::as_slice).collect();
            self.inner.restore(&running.weights, Some(&states));
        }
    }

    /// Leaves the round under way, if there is one: the inner strategy has the state of the run again.
    pub(super) fn leave_round(&mut self) {
        self.is_computed = false;
        self.restore_start();
    }

    /// Returns the elements of the joined state that the stages of a rank change.
    fn changed_by(&self, rank: GroupRank) -> Vec<Range<usize>> {
        let own = self.stages_of(rank);
        let len = self.inner.weights().len();
        let vectors = 1 + self.inner.optimizer_states().len();
        let mut changed = Vec::new();
        for plan in self.inner.bucket_plans() {
            if own.contains(&plan.stage) {
                let of_vector = |vector: usize| {
                    plan.elements.start + vector * len..plan.elements.end + vector * len
                };
                changed.extend((0..vectors).map(of_vector));
            }
        }
        let all: usize = self
            .predictors
            .iter()
            .map(super::GradientPredictor::len)
            .sum();
        let mut start = vectors * len;
        for (stage, predictor) in self.predictors.iter().enumerate() {
            if own.contains(&stage) {
                let of_vector = |vector: usize| {
                    let start = start + vector * all;
                    start..start + predictor.len()
                };
                changed.extend((0..self.committed.len()).map(of_vector));
            }
            start += predictor.len();
        }
        changed
    }

    /// Returns the state at the end of the round of all stages, each from the rank that has computed it: the weights, the states of the
    /// optimizer, and the vectors of the predictors.
    pub(super) fn join_state(&mut self) -> Result<Buffer, ParallelError> {
        let predictors = self.predictor_vectors();
        let mut all = Vec::new();
        all.extend_from_slice(self.inner.weights().values());
        let vectors = self.inner.optimizer_states().iter().chain(&predictors);
        vectors.for_each(|values| all.extend_from_slice(values));
        let ranks = self.group.size() as u32;
        for root in (0..ranks).map(GroupRank) {
            if ranks == 1 {
                break;
            }
            let changed = self.changed_by(root);
            let len = changed.iter().map(Range::len).sum();
            let failed = |source| exchange_failed("send the state of a stage", source);
            let mut buffer = self.group.allocate(DType::F32, len).map_err(failed)?;
            if root == self.group.rank() {
                let mut rest = buffer.as_mut_slice::<f32>();
                for range in &changed {
                    let (to, after) = rest.split_at_mut(range.len());
                    to.copy_from_slice(&all[range.clone()]);
                    rest = after;
                }
            }
            let operation = Operation::Broadcast { root };
            let buffer = self.group.start_and_wait(operation, buffer);
            let buffer = buffer.map_err(failed)?;
            let mut rest = buffer.as_slice::<f32>();
            for range in changed {
                let (from, after) = rest.split_at(range.len());
                all[range].copy_from_slice(from);
                rest = after;
            }
        }
        let mut joined = Buffer::host(DType::F32, all.len());
        joined.as_mut_slice().copy_from_slice(&all);
        Ok(joined)
    }

    /// Takes over a joined state. Returns the norm of the change of the parameters.
    pub(super) fn take_over(&mut self, joined: &[f32]) -> Result<f64, ParallelError> {
        self.restore_start();
        let taken = self.inner.take_over(joined);
        let (norm, mut predictors) = taken.ok_or_else(no_round)?;
        for to in &mut self.committed {
            let (from, after) = predictors.split_at_checked(to.len()).ok_or_else(no_round)?;
            to.copy_from_slice(from);
            predictors = after;
        }
        Ok(norm)
    }
}
