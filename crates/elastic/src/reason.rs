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

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExitCode(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "connection closed by signal {signal}"),
            Self::Disconnected(cause) => write!(f, "connection lost ({cause})"),
            Self::Silent(silence) => write!(f, "silent for {:.1} s", silence.as_secs_f64()),
        }
    }
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

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} on {} lost: {}",
            self.rank, self.host, self.cause
        )
    }
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

fn listed(losses: &[Loss]) -> String {
    const SPELLED: usize = 4;
    let mut told: Vec<String> = losses.iter().take(SPELLED).map(Loss::to_string).collect();
    if losses.len() > SPELLED {
        told.push(format!("and {} more", losses.len() - SPELLED));
    }
    told.join("; ")
}

fn workers(count: u32) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Leads { term, generation } => {
                write!(
                    f,
                    "this coordinator leads: term {term}; generation {generation}"
                )
            }
            Self::Deposed { term, cause } => write!(f, "term {term} is over: {cause}"),
            Self::StandsBy { term } => write!(f, "another coordinator leads in term {term}"),
            Self::Fenced { was, generation } => write!(
                f,
                "left out: this worker was in generation {was}, the job is in {generation}"
            ),
            Self::LeftGroup { generation, cause } => {
                write!(f, "left the group of generation {generation}: {cause}")
            }
            Self::NoCoordinator { silence } => write!(
                f,
                "no coordinator answered for {:.1} s",
                silence.as_secs_f64()
            ),
            Self::Drained => f.write_str("left in good order"),
            Self::Stopped { by, checkpoint } => match checkpoint {
                Some(step) => write!(f, "stopped by {by}; checkpoint at step {step}"),
                None => write!(f, "stopped by {by}; no checkpoint"),
            },
            Self::Finished { steps: Some(steps) } => write!(f, "all {steps} steps are committed"),
            Self::Finished { steps: None } => f.write_str("all steps are committed"),
            Self::Failed { cause, first } => match first {
                Some(first) => write!(f, "{first}; then: {cause}"),
                None => write!(f, "{cause}"),
            },
            Self::Starts { .. } | Self::PlaceGivenUp { .. } => self.start_sentence(f),
            Self::TooFew { .. } | Self::NoSuccession { .. } | Self::NoState { .. } => {
                self.wait_sentence(f)
            }
            _ => self.generation_sentence(f),
        }
    }
}

impl Reason {
    fn start_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Starts {
                place, after: None, ..
            } => write!(f, "worker at place {place} started"),
            Self::Starts {
                place,
                restarts,
                after: Some(cause),
            } => write!(
                f,
                "worker at place {place} started again (restart {restarts}): the one before {cause}"
            ),
            Self::PlaceGivenUp {
                place,
                restarts,
                cause,
            } => write!(
                f,
                "place {place} is given up after {restarts} restarts: the last worker {cause}"
            ),
            _ => Ok(()),
        }
    }

    fn wait_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooFew { have, need } => {
                write!(f, "waiting: {} of at least {need}", workers(*have))
            }
            Self::NoSuccession {
                generation,
                here,
                of,
            } => write!(
                f,
                "waiting: {here} of {of} members of generation {generation} are here, \
                 and the others may still train"
            ),
            Self::NoState { unreachable } => write!(
                f,
                "waiting: nobody here holds the state; {} that cannot be reached may",
                workers(*unreachable)
            ),
            _ => Ok(()),
        }
    }

    fn generation_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begun {
                generation,
                workers: n,
            } => {
                write!(f, "generation {generation}: {} begin", workers(*n))
            }
            Self::Lost {
                losses,
                generation,
                workers: n,
                redone,
            } => {
                write!(
                    f,
                    "{}; generation {generation}; {}",
                    listed(losses),
                    workers(*n)
                )?;
                redone.map_or(Ok(()), |step| write!(f, "; step {step} redone"))
            }
            Self::GivenUp { losses, generation } => {
                write!(f, "{}; generation {generation} is given up", listed(losses))
            }
            Self::Reformed {
                generation,
                workers: n,
                cause,
                excluded,
            } => {
                write!(
                    f,
                    "the group failed ({cause}); generation {generation}; {}",
                    workers(*n)
                )?;
                excluded.map_or(Ok(()), |worker| {
                    write!(
                        f,
                        "; worker {worker} stays out, for the others cannot reach it"
                    )
                })
            }
            Self::Changed {
                generation,
                workers: n,
                joined,
                left,
            } => write!(
                f,
                "{joined} joined, {left} left; generation {generation}; {}",
                workers(*n)
            ),
            Self::StateLost {
                generation,
                workers: n,
                checkpoint,
            } => {
                write!(
                    f,
                    "all who held the state are gone; generation {generation}; {}; ",
                    workers(*n)
                )?;
                match checkpoint {
                    Some(step) => write!(f, "from the checkpoint at step {step}"),
                    None => f.write_str("from the initial weights"),
                }
            }
            _ => Ok(()),
        }
    }
}

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
