//! The displayed text, as pure functions of a [`RunView`].

use std::fmt::Write;

use ronde_core::event::PhaseTimes;
use ronde_core::{Event, Rank};

use crate::view::{EvaluationView, RunView, WorkerView};

/// Maximum number of workers that are shown with a line each during a run.
pub const WORKER_LINES_MAX: usize = 8;

/// Returns the line printed when a run starts: `digits: 1,250 parameters, 230 steps in 10 epochs, ...`.
#[must_use]
pub fn started(view: &RunView) -> String {
    format!(
        "{}: {}, {} in {} on {}, {} (plan {})",
        view.name,
        counted(view.parameters, "parameter"),
        counted(view.steps, "step"),
        counted(view.epochs, "epoch"),
        counted(view.world_size.into(), "worker"),
        counted(view.logical_shards.into(), "logical shard"),
        view.plan.get(..12).unwrap_or(&view.plan),
    )
}

/// Returns the state of the run without the bar: `step 120/230  epoch 6/10  loss 0.0512  ...`.
#[must_use]
pub fn progress(view: &RunView) -> String {
    let Some(now) = view.progress else {
        return format!("step 0/{}", view.steps);
    };
    let mut line = format!(
        "step {}/{}  {}",
        now.committed,
        view.steps,
        bar_message(view)
    );
    if let Some(left) = view.left_s() {
        let _ = write!(line, "  {} left", duration(left));
    }
    line
}

/// Returns the text next to the bar: epoch, loss and speed.
#[must_use]
pub fn bar_message(view: &RunView) -> String {
    let Some(now) = view.progress else {
        return "waiting for the first step".to_owned();
    };
    let mut line = format!(
        "epoch {}/{}  loss {:.4}",
        now.epoch + 1,
        view.epochs,
        now.loss
    );
    if let Some(speed) = view.throughput.recent() {
        let _ = write!(
            line,
            "  {} {}/s",
            count(speed.round() as u64),
            view.unit.plural()
        );
    }
    line
}

/// Returns the result of an evaluation: the accuracy where there are classes, the loss and further metrics.
fn evaluation(result: &EvaluationView) -> String {
    let samples = count(result.samples);
    if result.accuracy.is_nan() {
        return format!("  test loss      {:.4} on {samples} samples", result.loss);
    }
    let mut line = format!(
        "  test accuracy  {:.2} % on {samples} samples, loss {:.4}",
        100.0 * result.accuracy,
        result.loss
    );
    if let Some(share) = result.accuracy_top5 {
        let _ = write!(line, ", top-5 {:.2} %", 100.0 * share);
    }
    if let Some(perplexity) = result.perplexity {
        let _ = write!(line, ", perplexity {perplexity:.3}");
    }
    line
}

/// Returns one worker's time by phase: `rank 2  compute 81 %  communication 15 %  waiting for data 4 %  sent 1.2 MiB`.
#[must_use]
pub fn worker(rank: Rank, worker: &WorkerView) -> String {
    let total = worker.times.total_s();
    let percent = |part: f64| percent(part, total);
    format!(
        "rank {rank}  compute {}  communication {}  waiting for data {}  sent {}",
        percent(worker.times.compute_s),
        percent(worker.times.communicate_s),
        percent(worker.times.wait_data_s),
        bytes(worker.bytes_sent),
    )
}

/// Returns a line per worker, at most [`WORKER_LINES_MAX`], and the number of workers not shown.
#[must_use]
pub fn workers(view: &RunView) -> Vec<String> {
    let mut lines: Vec<String> = view
        .workers
        .iter()
        .take(WORKER_LINES_MAX)
        .map(|(rank, state)| worker(*rank, state))
        .collect();
    match view.workers.len().saturating_sub(WORKER_LINES_MAX) {
        0 => {}
        more => lines.push(format!("and {more} more workers")),
    }
    lines
}

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
        _ => of_checkpoints(event),
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
        } => Some(format!(
            "note: checkpoint at step {} not saved, training continues; rank {rank}: {message}",
            count(step.0)
        )),
        Event::CheckpointLoaded {
            step,
            world_size,
            duration_s,
            address,
            skipped,
            ..
        } => Some(
            std::iter::once(format!(
                "resuming from the checkpoint at step {} in {address}, saved by {}, loaded in {duration_s:.2} s",
                count(step.0),
                counted((*world_size).into(), "worker"),
            ))
            .chain(skipped.iter().map(|skipped| {
                format!("note: a newer checkpoint is unusable: {skipped}")
            }))
            .collect::<Vec<_>>()
            .join("\n"),
        ),
        Event::RunStopped { step, .. } => {
            Some(format!("training stopped after {}", counted(step.0, "step")))
        }
        _ => None,
    }
}

/// Returns the summary printed at the end of a run: several lines, without a newline at the end.
#[must_use]
pub fn summary(view: &RunView) -> String {
    let mut lines = Vec::new();
    if let Some(seconds) = view.finished_s {
        lines.push(format!("{} finished in {}", view.name, duration(seconds)));
    } else if let Some(now) = view.progress {
        lines.push(format!(
            "{} stopped after {} of {}",
            view.name,
            count(now.committed),
            counted(view.steps, "step")
        ));
    } else {
        return String::new();
    }
    if let Some(now) = view.progress {
        let mut line = format!(
            "  steps          {} of {}, last loss {:.4}",
            count(now.committed),
            count(view.steps),
            now.loss
        );
        if let Some(speed) = view.throughput.overall() {
            let _ = write!(
                line,
                ", {} {}/s",
                count(speed.round() as u64),
                view.unit.plural()
            );
        }
        lines.push(line);
    }
    if let Some(result) = view.evaluation {
        lines.push(evaluation(&result));
    }
    if let Some(epoch) = view.epoch {
        lines.push(format!(
            "  last epoch     {} samples used once, {} not used, {} more than once",
            count(epoch.used_once),
            count(epoch.missing),
            count(epoch.repeated)
        ));
    }
    lines.extend(table(view));
    if let Some(model) = &view.model {
        lines.push(format!("  model          {}", model.path));
        lines.push(format!("  configuration  {}", model.config_path));
        lines.push(format!("  blake3         {}", model.blake3));
    }
    lines.join("\n")
}

/// Returns a row per worker: seconds and percentage of each phase, bytes sent.
fn table(view: &RunView) -> Vec<String> {
    if view.workers.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "  {:<6}{:>18}{:>18}{:>20}{:>13}",
        "rank", "compute", "communication", "waiting for data", "bytes sent"
    )];
    for (rank, worker) in &view.workers {
        let total = worker.times.total_s();
        let cell = |part: f64| format!("{part:.2} s {:>5}", percent(part, total));
        lines.push(format!(
            "  {:<6}{:>18}{:>18}{:>20}{:>13}",
            rank.to_string(),
            cell(worker.times.compute_s),
            cell(worker.times.communicate_s),
            cell(worker.times.wait_data_s),
            bytes(worker.bytes_sent),
        ));
    }
    let mut all = PhaseTimes::default();
    view.workers
        .values()
        .for_each(|worker| all.add(&worker.times));
    if let Some(share) = all.hidden_share() {
        lines.push(format!(
            "  gradient exchange {:.2} s, {:.0} % overlapped with compute",
            all.reducing_s,
            100.0 * share
        ));
    }
    lines
}

/// Formats a fraction as `81 %`; `0 %` when the total is zero.
fn percent(part: f64, total: f64) -> String {
    let share = if total > 0.0 { part / total } else { 0.0 };
    format!("{:.0} %", 100.0 * share)
}

/// Formats a number with its noun: `1 step`, `1,234 steps`.
fn counted(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(n))
}

/// Formats a number with separators: `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of bytes: `512 B`, `1.5 KiB`, `12.0 MiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1024.0, 0);
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a duration: `0.8 s`, `42 s`, `3 min 05 s`, `2 h 07 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "unknown time".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests;
