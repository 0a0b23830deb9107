//! The lines printed for events as soon as they happen.

use ronde_core::Event;
use ronde_core::units::{bytes, count};

use super::values::counted;
use super::{metrics, started};
use crate::view::{RunView, SharesView, StragglerView};

/// Returns the line printed for an event as soon as it happens, or `None` for most events. `view` must
/// include the event already. Only the first failure is printed: later ones are usually caused by it.
#[must_use]
pub fn announcement(view: &RunView, event: &Event) -> Option<String> {
    match event {
        Event::RunStarted { .. } => Some(started(view)),
        Event::Notice {
            rank: None,
            message,
        } => Some(format!("note: {message}")),
        Event::Notice {
            rank: Some(rank),
            message,
        } => Some(format!("note: rank {rank}: {message}")),
        Event::MembershipChanged { reason, .. } => Some(reason.clone()),
        Event::RunExtended { step, changes, .. } => Some(format!(
            "extending the run from step {}: {changes}",
            count(step.0)
        )),
        Event::Recovered {
            step, duration_s, ..
        } => Some(format!(
            "recovered: step {} committed {duration_s:.2} s after the loss was detected",
            count(step.0)
        )),
        Event::WorkerFailed {
            rank,
            message,
            secondary: false,
            ..
        } if view.failures == 1 => Some(format!(
            "rank {rank} failed: {}",
            message.lines().next().unwrap_or("no reason given")
        )),
        Event::EpochFinished {
            epoch,
            missing,
            repeated,
            ..
        } if *missing + *repeated > 0 => Some(format!(
            "note: epoch {}: {} samples not used, {} used more than once",
            epoch.0 + 1,
            count(*missing),
            count(*repeated),
        )),
        Event::DataRead {
            rank,
            epoch,
            remote_bytes,
            cached_bytes,
        } => Some(format!(
            "rank {rank}: epoch {} read {} from remote storage, {} from the cache",
            epoch.0 + 1,
            bytes(*remote_bytes),
            bytes(*cached_bytes)
        )),
        Event::Evaluated { step, .. } if step.0.saturating_add(1) < view.steps => {
            let result = view.evaluation.as_ref()?;
            let mut metrics = metrics(result);
            // The number of samples is the same for all evaluations and is in the summary.
            metrics.pop();
            Some(format!(
                "evaluation at step {}: {}",
                count(step.0.saturating_add(1)),
                metrics.join(", ")
            ))
        }
        Event::StragglerDetected { .. }
        | Event::StragglerRecovered { .. }
        | Event::SharesChanged { .. } => of_speed(view, event),
        _ => of_checkpoints(event),
    }
}

/// Returns whether the line of an event is a warning, which is printed even when progress is not.
#[must_use]
pub fn is_warning(event: &Event) -> bool {
    matches!(
        event,
        Event::CheckpointFailed { .. } | Event::WorkerFailed { .. } | Event::EpochFinished { .. }
    )
}

/// Returns a sentence about a straggler.
#[must_use]
pub fn straggler(straggler: &StragglerView) -> String {
    let until = straggler
        .until
        .map_or_else(String::new, |step| format!(" to {}", count(step)));
    let verb = match straggler.until {
        Some(_) => "delayed the others from step",
        None => "has delayed the others since step",
    };
    format!(
        "rank {} {verb} {}{until} by {:.1} ms per step ({:.0} % of the time), most in {}",
        straggler.rank,
        count(straggler.since),
        1e3 * straggler.delay_s,
        100.0 * straggler.share,
        straggler.phase
    )
}

/// Returns the shares of workers of different speed, and the measured times behind them.
#[must_use]
pub fn shares(shares: &SharesView) -> String {
    let total: u64 = shares
        .ranks
        .iter()
        .map(|&(share, _)| u64::from(share))
        .sum();
    let each = shares
        .ranks
        .iter()
        .enumerate()
        .map(|(rank, (share, time))| {
            format!(
                "rank {rank} {} ({:.1} ms each)",
                count((*share).into()),
                1e3 * time
            )
        });
    format!(
        "{} of {} shards since step {}",
        each.collect::<Vec<_>>().join(", "),
        count(total),
        count(shares.since)
    )
}

/// Returns the additional lines of verbose output: the process of a started worker.
#[must_use]
pub fn details(event: &Event) -> Option<String> {
    match event {
        Event::WorkerStarted { place, host, pid } => {
            Some(format!("worker {place} started: pid {pid} on {host}"))
        }
        _ => None,
    }
}

/// Returns the line printed for an event that concerns the speed of ranks.
fn of_speed(view: &RunView, event: &Event) -> Option<String> {
    match event {
        Event::StragglerDetected { .. } => {
            let sentence = straggler(view.straggler()?);
            Some(format!("note: {sentence}"))
        }
        Event::SharesChanged { .. } => {
            let sentence = shares(view.shares.as_ref()?);
            Some(format!("shards divided by speed: {sentence}"))
        }
        Event::StragglerRecovered { rank, .. } => {
            Some(format!("rank {rank} no longer delays the other ranks"))
        }
        _ => None,
    }
}

/// Returns the line printed for an event about checkpoints.
fn of_checkpoints(event: &Event) -> Option<String> {
    match event {
        Event::CheckpointSaved {
            step,
            bytes: size,
            held_up_s,
            total_s,
            ..
        } => Some(format!(
            "checkpoint saved at step {}: {} in {total_s:.2} s, training paused for {:.1} ms",
            count(step.0),
            bytes(*size),
            1e3 * held_up_s
        )),
        Event::CheckpointFailed {
            step,
            rank,
            message,
            is_last,
        } => Some(format!(
            "warning: {} at step {} not saved{}; rank {rank}: {message}",
            if *is_last { "last checkpoint" } else { "checkpoint" },
            count(step.0),
            if *is_last { "" } else { ", training continues" },
        )),
        Event::CheckpointLoaded {
            step,
            world_size,
            duration_s,
            address,
            skipped,
            ..
        } => Some(
            std::iter::once(match address {
                Some(address) => format!(
                    "resuming from the checkpoint at step {} in {address}, saved by {}, loaded in {duration_s:.2} s",
                    count(step.0),
                    counted((*world_size).into(), "worker"),
                ),
                None => format!(
                    "resuming from the copies of step {} in the memory of {}, loaded in {duration_s:.2} s",
                    count(step.0),
                    counted((*world_size).into(), "worker"),
                ),
            })
            .chain(skipped.iter().map(|skipped| {
                format!("note: a newer checkpoint is unusable: {skipped}")
            }))
            .collect::<Vec<_>>()
            .join("\n"),
        ),
        Event::RunRestarted { lost, reason } => Some(format!(
            "starting again from the first step: {reason}; {} computed again",
            counted(lost.0, "step")
        )),
        Event::RunStopped { step, .. } => {
            Some(format!("training stopped after {}", counted(step.0, "step")))
        }
        _ => None,
    }
}
