//! The displayed text, as pure functions of a [`RunView`].

use std::borrow::Cow;

use ronde_core::event::PhaseTimes;
use ronde_core::{Event, Rank};

use crate::view::{EvaluationView, RunView, WorkerView};

/// Maximum number of workers that are shown with a line each during a run.
pub const WORKER_LINES_MAX: usize = 8;

/// Returns the line printed when a run starts: `digits: 1,250 parameters, 230 steps in 10 epochs, ...`.
#[must_use]
pub fn started(view: &RunView) -> String {
    format!(
        "{}: {}, {} in {} on {} (plan {})",
        view.name,
        counted(view.parameters, "parameter"),
        counted(view.steps, "step"),
        counted(view.epochs, "epoch"),
        counted(view.world_size.into(), "worker"),
        view.plan.get(..8).unwrap_or(&view.plan),
    )
}

/// Returns the state of the run in one line without a bar: `step 120/230  epoch 6/10  loss 0.0512  ...`.
#[must_use]
pub fn progress(view: &RunView) -> String {
    fit(&parts(view), usize::MAX)
}

/// Returns the state of the run in one line with a bar, for a terminal of `columns` columns. Narrow terminals get no bar,
/// then no epoch and no learning rate; speed and remaining time are shown at 60 columns.
#[must_use]
pub fn bar(view: &RunView, columns: usize) -> String {
    let parts = parts(view);
    let line = fit(&parts, columns);
    let rest = columns.saturating_sub(line.chars().count() + 2);
    let is_whole = line == fit(&parts, usize::MAX);
    if !is_whole || rest < BAR_MIN + 2 {
        return line;
    }
    let cells = (rest - 2).min(BAR_MAX);
    let committed = view.progress.map_or(0, |now| now.committed).min(view.steps);
    let filled = (cells as u64 * committed)
        .checked_div(view.steps)
        .unwrap_or(0) as usize;
    format!(
        "[{}{}]  {line}",
        "=".repeat(filled),
        " ".repeat(cells - filled)
    )
}

/// Smallest and largest number of cells of the bar.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 16;

/// A part of the progress line with the priority of keeping it; 0 is the highest.
struct LinePart {
    text: String,
    priority: u8,
}

/// Returns the parts of the progress line in their order.
fn parts(view: &RunView) -> Vec<LinePart> {
    let part = |priority, text| LinePart { text, priority };
    let Some(now) = view.progress else {
        let steps = part(0, format!("step 0/{}", view.steps));
        return vec![steps, part(1, "waiting for the first step".to_owned())];
    };
    let mut parts = vec![
        part(0, format!("step {}/{}", now.committed, view.steps)),
        part(5, format!("epoch {}/{}", now.epoch + 1, view.epochs)),
        part(3, format!("loss {}", number(now.loss))),
        part(4, format!("lr {}", short_number(now.learning_rate))),
    ];
    if let Some(speed) = view.throughput.recent() {
        let speed = count(speed.round() as u64);
        parts.push(part(2, format!("{speed} {}/s", view.unit.plural())));
    }
    if let Some(left) = view.left_s() {
        parts.push(part(1, format!("{} left", duration(left))));
    }
    parts
}

/// Joins the parts, without those of the lowest priority if `columns` are too few for all.
fn fit(parts: &[LinePart], columns: usize) -> String {
    for lowest in (0..=5).rev() {
        let kept = parts.iter().filter(|part| part.priority <= lowest);
        let texts: Vec<&str> = kept.map(|part| part.text.as_str()).collect();
        let line = texts.join("  ");
        if line.chars().count() <= columns || lowest == 0 {
            return line;
        }
    }
    String::new()
}

/// Returns the results of an evaluation: the accuracy where there is one, the loss, further metrics by name, and the
/// number of samples.
fn metrics(result: &EvaluationView) -> Vec<String> {
    let mut parts = Vec::new();
    for (name, value) in &result.metrics {
        match (name.as_str(), name.strip_prefix("accuracy_top")) {
            ("accuracy", _) => parts.insert(0, format!("accuracy {:.2} %", 100.0 * value)),
            (_, Some(top)) => parts.push(format!("top-{top} {:.2} %", 100.0 * value)),
            ("perplexity", _) => parts.push(format!("perplexity {value:.3}")),
            _ => parts.push(format!("{name} {}", number(*value))),
        }
    }
    let after_accuracy = usize::from(result.metrics.contains_key("accuracy"));
    parts.insert(after_accuracy, format!("loss {}", number(result.loss)));
    parts.push(format!("{} samples", count(result.samples)));
    parts
}

/// Returns one worker's time by phase: `rank 2  compute 81 %  communication 15 %  waiting for data 4 %  sent 1.2 MiB`,
/// shorter where `columns` are too few.
#[must_use]
pub fn worker(rank: Rank, worker: &WorkerView, columns: usize) -> String {
    let total = worker.times.total_s();
    let percent = |part: f64| percent(part, total);
    let (compute, communicate, wait) = (
        percent(worker.times.compute_s),
        percent(worker.times.communicate_s),
        percent(worker.times.wait_data_s),
    );
    let sent = bytes(worker.bytes_sent);
    let long = format!(
        "rank {rank}  compute {compute}  communication {communicate}  waiting for data {wait}  sent {sent}"
    );
    if long.chars().count() <= columns {
        return long;
    }
    format!("rank {rank}  compute {compute}  comm {communicate}  data {wait}  {sent}")
}

/// Returns a line per worker, at most [`WORKER_LINES_MAX`], and the number of workers not shown.
#[must_use]
pub fn workers(view: &RunView, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = view
        .workers
        .iter()
        .take(WORKER_LINES_MAX)
        .map(|(rank, state)| worker(*rank, state, columns))
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

/// Returns the summary printed at the end of a run: several lines of at most `columns` columns where their values
/// permit, without a newline at the end.
#[must_use]
pub fn summary(view: &RunView, columns: usize) -> String {
    let mut lines = Vec::new();
    if let Some(seconds) = view.finished_s {
        let mut line = format!("{} finished in {}", view.name, duration(seconds));
        if view.attempt > 1 {
            let total = duration(view.earlier_s + seconds);
            line.push_str(&format!(" (attempt {}; {total} in total)", view.attempt));
        }
        lines.push(line);
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
        let mut parts = vec![
            format!("{} of {}", count(now.committed), count(view.steps)),
            format!("last loss {}", number(now.loss)),
        ];
        if let Some(speed) = view.throughput.overall() {
            let speed = count(speed.round() as u64);
            parts.push(format!("{speed} {}/s", view.unit.plural()));
        }
        lines.extend(field("steps", &parts, columns));
    }
    if let Some(result) = &view.evaluation {
        lines.extend(field("test", &metrics(result), columns));
    }
    if let Some(epoch) = view.epoch {
        let mut parts = vec![format!("{} samples used once", count(epoch.used_once))];
        if epoch.missing + epoch.repeated > 0 {
            parts.push(format!("{} not used", count(epoch.missing)));
            parts.push(format!("{} more than once", count(epoch.repeated)));
        }
        lines.extend(field("last epoch", &parts, columns));
    }
    if view.skipped > 0 {
        lines.extend(field(
            "skipped",
            &[counted(view.skipped, "record")],
            columns,
        ));
    }
    lines.extend(table(view, columns));
    if let Some(model) = &view.model {
        lines.extend(field("model", std::slice::from_ref(&model.path), columns));
        lines.extend(field(
            "configuration",
            std::slice::from_ref(&model.config_path),
            columns,
        ));
        // The whole hash is in the configuration file, too.
        let hash = match columns < HASH_COLUMNS {
            true => format!("{}...", model.blake3.get(..32).unwrap_or(&model.blake3)),
            false => model.blake3.clone(),
        };
        lines.extend(field("blake3", &[hash], columns));
    }
    lines.join("\n")
}

/// Returns the lines of a field of the summary, broken between its parts. A value that is too long for the column of
/// values has a line of its own.
fn field(label: &str, parts: &[String], columns: usize) -> Vec<String> {
    const INDENT: usize = 17;
    let mut lines = vec![format!("  {label:<15}")];
    for (at, part) in parts.iter().enumerate() {
        let comma = if at + 1 < parts.len() { "," } else { "" };
        let line = lines.last().map_or(0, |line| line.chars().count());
        let width = part.chars().count() + comma.len();
        let is_first = line == INDENT;
        if line + width + usize::from(!is_first) > columns
            && (!is_first || INDENT + width > columns)
        {
            let indent = if INDENT + width > columns { 4 } else { INDENT };
            if let Some(line) = lines.last_mut() {
                line.truncate(line.trim_end().len());
            }
            lines.push(" ".repeat(indent));
        } else if !is_first {
            lines.last_mut().into_iter().for_each(|line| line.push(' '));
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(part);
            line.push_str(comma);
        }
    }
    lines
}

/// Columns of a hash with its indentation; narrower terminals get a part of it.
const HASH_COLUMNS: usize = 68;
/// Columns of the table of workers with seconds; narrower terminals get percentages only.
const TABLE_COLUMNS: usize = 77;

/// Returns a row per worker: seconds and percentage of each phase, bytes sent.
fn table(view: &RunView, columns: usize) -> Vec<String> {
    if view.workers.is_empty() {
        return Vec::new();
    }
    let is_wide = columns >= TABLE_COLUMNS;
    let row = |cells: [&str; 5]| {
        let [rank, compute, communication, data, sent] = cells;
        match is_wide {
            true => format!("  {rank:<6}{compute:>18}{communication:>18}{data:>20}{sent:>13}"),
            false => format!("  {rank:<6}{compute:>9}{communication:>9}{data:>9}{sent:>13}"),
        }
    };
    let mut lines = vec![match is_wide {
        true => row([
            "rank",
            "compute",
            "communication",
            "waiting for data",
            "bytes sent",
        ]),
        false => row(["rank", "compute", "comm", "data", "bytes sent"]),
    }];
    for (rank, worker) in &view.workers {
        let total = worker.times.total_s();
        let cell = |part: f64| match is_wide {
            true => format!("{part:.2} s {:>5}", percent(part, total)),
            false => percent(part, total),
        };
        lines.push(row([
            &rank.to_string(),
            &cell(worker.times.compute_s),
            &cell(worker.times.communicate_s),
            &cell(worker.times.wait_data_s),
            &bytes(worker.bytes_sent),
        ]));
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

/// Replaces control characters by their escapes, except line breaks and tabs, so that text from files cannot control the
/// terminal.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match is_unsafe(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Formats a loss: `0.0512`, `12345.6789`; very large and very small values as `7.0000e33`.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || size == 0.0 || (1e-3..1e6).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.4e}")
    }
}

/// Formats a learning rate with up to three significant digits: `0.1`, `0.00234`, `3.2e-5`.
#[must_use]
pub fn short_number(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return format!("{value}");
    }
    let scientific = format!("{value:.2e}");
    let rounded: f64 = scientific.parse().unwrap_or(value);
    match rounded.abs() {
        1e-3..1e6 => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
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
