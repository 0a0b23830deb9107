//! The sentences of the reasons.

use crate::reason::{Loss, LossCause, Reason};

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

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} on {} lost: {}",
            self.rank, self.host, self.cause
        )
    }
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
            Self::Begun {
                generation,
                workers: n,
            } => {
                write!(f, "generation {generation}: {} begin", workers(*n))
            }
            Self::GivenUp { losses, generation } => {
                write!(f, "{}; generation {generation} is given up", listed(losses))
            }
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
            Self::TooFew { .. }
            | Self::NoSuccession { .. }
            | Self::NoState { .. }
            | Self::NoProgress { .. } => self.wait_sentence(f),
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
            Self::NoProgress { times, checkpoint } => {
                write!(
                    f,
                    "all who held the state were lost {times} times in a row on the way from "
                )?;
                match checkpoint {
                    Some(step) => write!(f, "the checkpoint at step {step}"),
                    None => f.write_str("the initial weights"),
                }
            }
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
