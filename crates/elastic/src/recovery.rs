//! [`RecoveryPlan`]: the first actions of the members of a new generation; pure and equal on all of
//! them.
//!
//! A new group first exchanges the [`Position`]s of its members over the data plane. The largest
//! step that any of them has committed wins, because all members of its generation had voted for
//! it. A member that only missed the outcome still holds the gradient and applies it; any other
//! member copies the state from those that have it. The coordinator is not involved, and ended
//! workers do not count: a step that only they had committed is computed again, with the same bits.

use ronde_core::Step;
use ronde_core::session::{CatchUp, CatchUpPlan, StateReport};
use serde::{Deserialize, Serialize};

use crate::{ElasticError, StartFrom};

/// A member's position in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Its next step, if its state is complete: all earlier steps are committed and applied.
    pub next: Option<Step>,
    /// Whether it holds the complete reduced gradient of that step.
    pub holds_gradient: bool,
}

impl Position {
    /// Converts the position to the type with which the session decides.
    fn standing(&self) -> StateReport {
        StateReport {
            next: self.next.unwrap_or_default(),
            holds_gradient: self.holds_gradient,
            is_complete: self.next.is_some(),
        }
    }
}

/// A member's action before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// Nothing: it has the newest state.
    Keep,
    /// It applies the gradient that it holds, and copies the votes of that step (sample ids and
    /// losses) from an up-to-date member.
    Apply,
    /// It copies the state from all up-to-date members in parallel. Until the copy is complete it
    /// holds no shards, but takes part in reductions and votes.
    Heal,
    /// It loads the checkpoint or the initial weights.
    Load,
}

/// How a generation starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPlan {
    /// The first step that all members compute.
    pub next: Step,
    /// The action of each rank before that step.
    pub actions: Vec<RecoveryAction>,
}

impl RecoveryPlan {
    /// Decides for all members from their positions, by rank.
    ///
    /// # Errors
    /// Returns [`ElasticError::NoState`] if no member has a complete state and `start` does not
    /// allow a start without one.
    pub fn new(positions: &[Position], start: StartFrom) -> Result<Self, ElasticError> {
        let standings: Vec<StateReport> = positions.iter().map(Position::standing).collect();
        let Some(decided) = CatchUpPlan::new(&standings) else {
            let StartFrom::Checkpoint(checkpoint) = start else {
                return Err(ElasticError::NoState {
                    members: positions.len(),
                });
            };
            return Ok(Self {
                next: checkpoint.unwrap_or_default(),
                actions: vec![RecoveryAction::Load; positions.len()],
            });
        };
        let actions = decided.each.iter().map(|course| match course {
            CatchUp::UpToDate => RecoveryAction::Keep,
            CatchUp::ApplyGradient => RecoveryAction::Apply,
            CatchUp::CopyState => RecoveryAction::Heal,
        });
        Ok(Self {
            next: decided.next,
            actions: actions.collect(),
        })
    }

    /// Returns the ranks that hold the newest state, from all of which the others copy it.
    #[must_use]
    pub fn holders(&self) -> Vec<usize> {
        let keeps = |rank: &usize| self.actions[*rank] == RecoveryAction::Keep;
        (0..self.actions.len()).filter(keeps).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next: u64, holds_gradient: bool) -> Position {
        Position {
            next: Some(Step(next)),
            holds_gradient,
        }
    }

    const FRESH: Position = Position {
        next: None,
        holds_gradient: false,
    };

    fn check(positions: &[Position], next: u64, actions: &[RecoveryAction], holders: &[usize]) {
        let plan = RecoveryPlan::new(positions, StartFrom::Peers).unwrap();
        assert_eq!(plan.next, Step(next));
        assert_eq!(plan.actions, actions);
        assert_eq!(plan.holders(), holders);
    }

    #[test]
    fn the_largest_committed_step_wins() {
        use RecoveryAction::{Apply, Heal, Keep};
        check(&[at(7, false), at(7, true)], 7, &[Keep, Keep], &[0, 1]);
        check(
            &[at(6, true), at(7, false), at(6, false), FRESH],
            7,
            &[Apply, Keep, Heal, Heal],
            &[1],
        );
        check(&[at(5, true), at(7, true)], 7, &[Heal, Keep], &[1]);
    }

    #[test]
    fn without_a_state_a_generation_starts_only_from_an_allowed_checkpoint() {
        let error = RecoveryPlan::new(&[FRESH, FRESH], StartFrom::Peers).unwrap_err();
        assert_eq!(error, ElasticError::NoState { members: 2 });
        let plan = |positions: &[Position], checkpoint: Option<u64>| {
            RecoveryPlan::new(positions, StartFrom::Checkpoint(checkpoint.map(Step))).unwrap()
        };
        let loaded = plan(&[FRESH, FRESH], Some(40));
        assert_eq!(
            (loaded.next, loaded.actions),
            (Step(40), vec![RecoveryAction::Load; 2])
        );
        assert_eq!(plan(&[FRESH], None).next, Step(0));
        // A state that any member holds is never discarded.
        let kept = plan(&[FRESH, at(50, false)], Some(40));
        assert_eq!(
            (kept.next, kept.actions),
            (Step(50), vec![RecoveryAction::Heal, RecoveryAction::Keep])
        );
    }
}
