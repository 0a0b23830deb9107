//! What the members of a new generation do first: [`RecoveryPlan`], pure and equal on all of them.
//!
//! The first thing that a new group does is to tell each other their [`Position`]s over the data
//! plane. The largest step that any of them has committed wins: all members of its generation had
//! voted for it. Who only missed the outcome still holds the gradient and applies it; anybody else
//! takes the state over from those that have it. Nobody asks the coordinator, and the dead are not
//! counted: a step that only they had committed is computed again, with the same bits.

use ronde_core::Step;
use ronde_core::session::{self, Courses, Standing};
use serde::{Deserialize, Serialize};

use crate::{ElasticError, StartFrom};

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Its next step, when its state is complete: all steps before are committed and applied.
    pub next: Option<Step>,
    /// Whether it holds the complete reduced gradient of that step.
    pub holds_gradient: bool,
}

impl Position {
    /// The same in the words of the session, which decides about members that train.
    fn standing(&self) -> Standing {
        Standing {
            next: self.next.unwrap_or_default(),
            holds_gradient: self.holds_gradient,
            is_whole: self.next.is_some(),
        }
    }
}

/// What a member does before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// Nothing: it has the newest state.
    Keep,
    /// It applies the gradient that it holds, and takes the votes of that step from a member that
    /// keeps: sample ids and losses are in them.
    Apply,
    /// It takes the state over from the members that keep, from several at once. Until it is complete
    /// it holds no shards, but takes part in reductions and votes.
    Heal,
    /// It loads the checkpoint or the initial weights.
    Load,
}

/// How a generation begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPlan {
    /// The step that all compute first.
    pub next: Step,
    /// What each rank does before.
    pub courses: Vec<Course>,
}

impl RecoveryPlan {
    /// Decides for all members from their positions, by rank.
    ///
    /// # Errors
    /// [`ElasticError::NoState`] when no member has a complete state and `start` does not allow to
    /// begin anew.
    pub fn new(positions: &[Position], start: StartFrom) -> Result<Self, ElasticError> {
        let standings: Vec<Standing> = positions.iter().map(Position::standing).collect();
        let Some(decided) = Courses::of(&standings) else {
            let StartFrom::Checkpoint(checkpoint) = start else {
                return Err(ElasticError::NoState {
                    members: positions.len(),
                });
            };
            return Ok(Self {
                next: checkpoint.unwrap_or_default(),
                courses: vec![Course::Load; positions.len()],
            });
        };
        let courses = decided.each.iter().map(|course| match course {
            session::Course::Level => Course::Keep,
            session::Course::Apply => Course::Apply,
            session::Course::Heal => Course::Heal,
        });
        Ok(Self {
            next: decided.next,
            courses: courses.collect(),
        })
    }

    /// The ranks that hold the newest state: those that heal take it from all of them.
    #[must_use]
    pub fn holders(&self) -> Vec<usize> {
        let keeps = |rank: &usize| self.courses[*rank] == Course::Keep;
        (0..self.courses.len()).filter(keeps).collect()
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

    fn check(positions: &[Position], next: u64, courses: &[Course], holders: &[usize]) {
        let plan = RecoveryPlan::new(positions, StartFrom::Peers).unwrap();
        assert_eq!(plan.next, Step(next));
        assert_eq!(plan.courses, courses);
        assert_eq!(plan.holders(), holders);
    }

    #[test]
    fn the_largest_committed_step_wins() {
        use Course::{Apply, Heal, Keep};
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
    fn without_a_state_a_generation_begins_only_where_it_may() {
        let error = RecoveryPlan::new(&[FRESH, FRESH], StartFrom::Peers).unwrap_err();
        assert_eq!(error, ElasticError::NoState { members: 2 });
        let plan = |positions: &[Position], checkpoint: Option<u64>| {
            RecoveryPlan::new(positions, StartFrom::Checkpoint(checkpoint.map(Step))).unwrap()
        };
        let anew = plan(&[FRESH, FRESH], Some(40));
        assert_eq!((anew.next, anew.courses), (Step(40), vec![Course::Load; 2]));
        assert_eq!(plan(&[FRESH], None).next, Step(0));
        // A state that somebody holds is never thrown away.
        let kept = plan(&[FRESH, at(50, false)], Some(40));
        assert_eq!(
            (kept.next, kept.courses),
            (Step(50), vec![Course::Heal, Course::Keep])
        );
    }
}
