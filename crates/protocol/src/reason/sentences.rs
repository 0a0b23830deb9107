//! The sentences of [`Reason`].

use crate::reason::{LossCause, Reason, WaitEnd, WorkerLoss};

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExitCode(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "killed ({name})"),
                None => write!(f, "killed (signal {signal})"),
            },
            Self::Disconnected(cause) => write!(f, "lost its connection ({cause})"),
            Self::Silent(silence) => write!(f, "silent for {:.1} s", silence.as_secs_f64()),
        }
    }
}

impl std::fmt::Display for WorkerLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} on {} {}", self.rank, self.host, self.cause)
    }
}

/// Returns the name of a signal whose number is the same on all Unix systems.
fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: [(i32, &str); 11] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
    ];
    let named = NAMES.iter().find(|(number, _)| *number == signal);
    named.map(|(_, name)| *name)
}

/// Number of workers that a sentence lists.
const SPELLED: usize = 4;

fn listed(losses: &[WorkerLoss]) -> String {
    let mut listed: Vec<String> = losses
        .iter()
        .take(SPELLED)
        .map(WorkerLoss::to_string)
        .collect();
    if losses.len() > SPELLED {
        listed.push(format!("and {} more", losses.len() - SPELLED));
    }
    listed.join("; ")
}

fn workers(count: u32) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

/// Writes how many workers joined and left.
fn moved(joined: u32, left: u32, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let some = |n: u32, verb| match n {
        1 => format!("worker {verb}"),
        n => format!("{n} workers {verb}"),
    };
    match (joined, left) {
        (joined, 0) => f.write_str(&some(joined, "joined")),
        (0, left) => f.write_str(&some(left, "left")),
        (joined, left) => write!(f, "{}, {}", some(joined, "joined"), some(left, "left")),
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Leads { term, generation } => {
                write!(f, "this coordinator leads in term {term}, ")?;
                match generation {
                    Some(generation) => write!(f, "generation {generation}"),
                    None => f.write_str("before the first generation"),
                }
            }
            Self::Deposed { term, cause } => write!(f, "term {term} has ended: {cause}"),
            Self::StandsBy { term } => write!(f, "another coordinator leads in term {term}"),
            Self::Fenced { was, generation } => {
                f.write_str("excluded: this worker is in ")?;
                match was {
                    Some(was) => write!(f, "generation {was}")?,
                    None => f.write_str("no generation")?,
                }
                write!(f, ", the job is in generation {generation}")
            }
            Self::LeftGroup { generation, cause } => {
                write!(f, "left the group of generation {generation}: {cause}")
            }
            Self::NoCoordinator { .. } | Self::NoCoordinatorRuns { .. } => self.contact_sentence(f),
            Self::Begun {
                generation,
                workers: n,
            } => {
                write!(f, "generation {generation} started with {}", workers(*n))
            }
            Self::GivenUp { losses, generation } => {
                write!(f, "{}; generation {generation} has ended", listed(losses))
            }
            Self::Drained => f.write_str("left the job in good order"),
            Self::Stopped { by, checkpoint } => match checkpoint {
                Some(step) => write!(f, "stopped by {by}; checkpoint at step {step}"),
                None => write!(f, "stopped by {by}"),
            },
            Self::Finished { steps: Some(steps) } => write!(f, "all {steps} steps are committed"),
            Self::Finished { steps: None } => f.write_str("all steps are committed"),
            Self::Failed {
                cause,
                latest,
                given_up,
            } => {
                let before = [latest, given_up];
                let before: Vec<String> = before
                    .into_iter()
                    .flatten()
                    .map(|reason| reason.to_string())
                    .collect();
                match before.is_empty() {
                    true => write!(f, "{cause}"),
                    false => write!(f, "{}; then: {cause}", before.join("; ")),
                }
            }
            Self::Starts { .. } | Self::SlotGivenUp { .. } => self.start_sentence(f),
            Self::Waiting { .. }
            | Self::TooFew { .. }
            | Self::NoSuccession { .. }
            | Self::NoState { .. }
            | Self::LacksState { .. }
            | Self::Saves { .. }
            | Self::NoProgress { .. } => self.wait_sentence(f),
            _ => self.generation_sentence(f),
        }
    }
}

impl Reason {
    fn contact_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoCoordinator { silence } => write!(
                f,
                "no answer from any coordinator for {:.1} s",
                silence.as_secs_f64()
            ),
            Self::NoCoordinatorRuns { silence } => write!(
                f,
                "the job has ended while this host was cut off: no coordinator has answered for {:.1} s, and none runs \
                 any more",
                silence.as_secs_f64()
            ),
            _ => Ok(()),
        }
    }

    fn start_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Starts {
                slot, after: None, ..
            } => write!(f, "worker in slot {slot} started"),
            Self::Starts {
                slot,
                restarts,
                after: Some(cause),
            } => write!(
                f,
                "worker in slot {slot} restarted (restart {restarts}); previous worker {cause}"
            ),
            Self::SlotGivenUp {
                slot,
                restarts,
                cause,
                joined,
            } => {
                let plural = if *restarts == 1 { "" } else { "s" };
                write!(
                    f,
                    "slot {slot} abandoned after {restarts} restart{plural}: the last worker {cause}"
                )?;
                match (cause, joined) {
                    (LossCause::ExitCode(0), false) => f.write_str(" without joining the job"),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn wait_sentence(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting {
                cause,
                missing,
                left,
                then,
                ..
            } => {
                write!(f, "{cause}")?;
                if !missing.is_empty() {
                    let listed: Vec<String> =
                        missing.iter().take(SPELLED).map(u64::to_string).collect();
                    let more = if missing.len() > SPELLED { ", ..." } else { "" };
                    write!(f, "; missing: worker {}{more}", listed.join(", "))?;
                }
                let consequence = match then {
                    WaitEnd::StartWithFewer => "starting with fewer workers",
                    WaitEnd::ReturnToEarlier => "returning to an earlier state",
                    WaitEnd::Fail => "giving up",
                };
                write!(f, "; {consequence} in {:.0} s", left.as_secs_f64())
            }
            Self::TooFew { have, need } => {
                write!(f, "waiting for workers: {have} of at least {need}")
            }
            Self::NoSuccession {
                generation,
                here,
                of,
            } => write!(
                f,
                "waiting: {here} of {of} members of generation {generation} are reachable, \
                 and the remaining ones may still be training"
            ),
            Self::NoProgress { times, checkpoint } => {
                write!(
                    f,
                    "all workers that held the state were lost {times} times in a row after starting from "
                )?;
                match checkpoint {
                    Some(step) => write!(f, "the checkpoint at step {step}"),
                    None => f.write_str("the initial weights"),
                }
            }
            Self::NoState { unreachable } => write!(
                f,
                "waiting: no reachable worker holds the state; {} that cannot be reached may hold it",
                workers(*unreachable)
            ),
            Self::Saves {
                generation,
                workers: n,
            } => write!(
                f,
                "saving the state with {} before the job ends (generation {generation})",
                workers(*n)
            ),
            Self::LacksState { silent } => write!(
                f,
                "waiting: the remaining workers have only parts of the state; {} without an answer may have the others",
                workers(*silent)
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
                write!(f, "{}; ", listed(losses))?;
                match redone {
                    Some(step) => write!(f, "recomputing step {step} with ")?,
                    None => f.write_str("continuing with ")?,
                }
                write!(f, "{} (generation {generation})", workers(*n))
            }
            Self::Reformed {
                generation,
                workers: n,
                cause,
                excluded,
            } => {
                write!(
                    f,
                    "the group failed ({cause}); generation {generation} with {}",
                    workers(*n)
                )?;
                excluded.map_or(Ok(()), |worker| {
                    write!(
                        f,
                        "; worker {worker} is excluded for a while because not all others can reach it"
                    )
                })
            }
            Self::Changed {
                generation,
                workers: n,
                joined,
                left,
            } => {
                moved(*joined, *left, f)?;
                write!(f, "; now {} (generation {generation})", workers(*n))
            }
            Self::Adopted {
                generation,
                workers: n,
                ..
            } => write!(
                f,
                "now {} (generation {generation}, formed by an earlier decision)",
                workers(*n)
            ),
            Self::StateLost {
                generation,
                workers: n,
                checkpoint,
            } => {
                write!(
                    f,
                    "all workers that held the state have ended; generation {generation} with {}, ",
                    workers(*n)
                )?;
                match checkpoint {
                    Some(step) => write!(f, "starting from the checkpoint at step {step}"),
                    None => f.write_str("starting from the initial weights"),
                }
            }
            _ => Ok(()),
        }
    }
}
