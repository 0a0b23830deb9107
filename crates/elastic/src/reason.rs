//! [`Reason`]: why something was decided, as a value for tests and one sentence for people.

use std::time::Duration;

use ronde_core::{Generation, Rank, Step};
use serde::{Deserialize, Serialize};

use crate::{Place, Term, WorkerId};

/// What is known of a worker's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// Its process called exit.
    ExitCode(i32),
    /// A signal ended its process.
    Signal(i32),
    /// Its control connection broke; whether it runs is not known.
    Disconnected(String),
    /// Not heard for this long; whether it runs is not known.
    Silent(Duration),
}

/// A member that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The process.
    pub worker: WorkerId,
    /// Its rank in the generation that it was lost from.
    pub rank: Rank,
    /// The machine.
    pub host: String,
    /// How it was lost.
    pub cause: LossCause,
}

/// Why something was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// A coordinator leads from now on.
    Leads {
        /// Its term.
        term: Term,
        /// The newest generation in the record.
        generation: Generation,
    },
    /// A coordinator leads no longer.
    Deposed {
        /// The term that is over.
        term: Term,
        /// What took it away.
        cause: String,
    },
    /// Another coordinator leads; this one waits.
    StandsBy {
        /// The other's term.
        term: Term,
    },
    /// The first generation.
    Begun {
        /// Its number.
        generation: Generation,
        /// Its members.
        workers: u32,
    },
    /// Members were lost.
    Lost {
        /// Who and how, the earliest first.
        losses: Vec<Loss>,
        /// The generation that goes on.
        generation: Generation,
        /// Its members.
        workers: u32,
        /// The step that was in flight, when a survivor told of it.
        redone: Option<Step>,
    },
    /// A generation is over because of these losses; the next one is being formed.
    GivenUp {
        /// Who and how, the earliest first.
        losses: Vec<Loss>,
        /// Which generation.
        generation: Generation,
    },
    /// The group failed although all members are alive.
    Reformed {
        /// The generation that goes on.
        generation: Generation,
        /// Its members.
        workers: u32,
        /// What the first member said.
        cause: String,
        /// A member that the others cannot reach, and that stays out for a while.
        excluded: Option<WorkerId>,
    },
    /// Workers came or left in good order.
    Changed {
        /// The generation that goes on.
        generation: Generation,
        /// Its members.
        workers: u32,
        /// How many came.
        joined: u32,
        /// How many left.
        left: u32,
    },
    /// All who held the state are gone for certain.
    StateLost {
        /// The generation that begins anew.
        generation: Generation,
        /// Its members.
        workers: u32,
        /// The published checkpoint's next step; `None`: from the initial weights.
        checkpoint: Option<Step>,
    },
    /// All who held the state were lost again and again on the way from the same point.
    NoProgress {
        /// How often in a row.
        times: u32,
        /// The published checkpoint's next step; `None`: the initial weights.
        checkpoint: Option<Step>,
    },
    /// Too few workers to go on.
    TooFew {
        /// How many there are.
        have: u32,
        /// How many are needed.
        need: u32,
    },
    /// A generation may still be training where it cannot be seen.
    NoSuccession {
        /// Which generation.
        generation: Generation,
        /// Members of it that are here.
        here: u32,
        /// Members of it that may still run.
        of: u32,
    },
    /// Nobody here holds the state, but somebody who cannot be reached may.
    NoState {
        /// Members that may.
        unreachable: u32,
    },
    /// A worker is started, for the first time or again.
    Starts {
        /// Where.
        place: Place,
        /// Restarts at this place so far.
        restarts: u32,
        /// How the one before ended.
        after: Option<LossCause>,
    },
    /// Workers at this place die again and again.
    PlaceGivenUp {
        /// Where.
        place: Place,
        /// Restarts within the window.
        restarts: u32,
        /// How the last one ended.
        cause: LossCause,
    },
    /// A worker was left out of the job's generation and waits for a place.
    Fenced {
        /// Where the worker was.
        was: Generation,
        /// Where the job is.
        generation: Generation,
    },
    /// A worker has left its group and waits for the next generation.
    LeftGroup {
        /// Which generation.
        generation: Generation,
        /// Why.
        cause: String,
    },
    /// No coordinator answered a worker for too long.
    NoCoordinator {
        /// For how long.
        silence: Duration,
    },
    /// A worker left in good order.
    Drained,
    /// The whole job was asked to stop.
    Stopped {
        /// By what.
        by: String,
        /// Next step of the checkpoint that was published for it.
        checkpoint: Option<Step>,
    },
    /// All steps are committed.
    Finished {
        /// How many, where that is known.
        steps: Option<Step>,
    },
    /// The job cannot go on.
    Failed {
        /// What it waited for in vain.
        cause: Box<Reason>,
        /// The first failure that led there.
        first: Option<Box<Reason>>,
    },
}

mod sentences;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_with_all_that_matters() {
        let loss = Loss {
            worker: WorkerId(9),
            rank: Rank(3),
            host: "host b".to_owned(),
            cause: LossCause::Signal(9),
        };
        let reason = Reason::Lost {
            losses: vec![loss.clone()],
            generation: Generation(7),
            workers: 3,
            redone: Some(Step(1284)),
        };
        assert_eq!(
            reason.to_string(),
            "rank 3 on host b lost: connection closed by signal 9; generation 7; 3 workers; step 1284 redone"
        );
        let failed = Reason::Failed {
            cause: Box::new(Reason::TooFew { have: 1, need: 2 }),
            first: Some(Box::new(Reason::GivenUp {
                losses: vec![loss],
                generation: Generation(7),
            })),
        };
        assert_eq!(
            failed.to_string(),
            "rank 3 on host b lost: connection closed by signal 9; generation 7 is given up; then: waiting: 1 worker of at least 2"
        );
    }

    #[test]
    fn reasons_travel_as_json() {
        let reason = Reason::Fenced {
            was: Generation(2),
            generation: Generation(5),
        };
        let line = serde_json::to_string(&reason).unwrap();
        assert_eq!(line, r#"{"reason":"fenced","was":2,"generation":5}"#);
        assert_eq!(serde_json::from_str::<Reason>(&line).unwrap(), reason);
    }
}
