//! The displayed text, as pure functions of a [`RunView`]: here the progress of a run, in `announcement` the lines of
//! events, in `summary` the end.

mod announcement;
mod summary;
mod values;

use ronde_core::Rank;

pub use announcement::{announcement, details, is_warning, shares, straggler};
pub use ronde_core::units::{bytes, count};
pub use summary::{skipped_updates, summary};
pub use values::{duration, number, printable, short_number};

use values::{counted, percent};

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

/// Returns the state of the run in one line with a bar of the current epoch, for a terminal of `columns` columns: `epoch
/// 6/10 [=====>    ]  step 120/230  loss 0.0512  ...`. Narrow terminals get no learning rate, then no bar; speed and
/// remaining time are shown at 60 columns.
#[must_use]
pub fn bar(view: &RunView, columns: usize) -> String {
    let mut parts = parts(view);
    let share = view.epoch_share();
    let (Some(share), Some(at)) = (share, parts.iter().position(|part| part.priority == EPOCH))
    else {
        return fit(&parts, columns);
    };
    let mut epoch = parts.remove(at);
    let text = std::mem::take(&mut epoch.text);
    parts.insert(0, epoch);
    let mut line = String::new();
    for cells in (BAR_MIN..=BAR_MAX).rev() {
        parts[0].text = format!("{text} {}", cells_of(share, cells));
        line = fit(&parts, columns);
        if line.starts_with(&parts[0].text) {
            break;
        }
    }
    line
}

/// Returns a bar with a filled share of its cells.
fn cells_of(share: f64, cells: usize) -> String {
    let filled = ((share * cells as f64) as usize).min(cells);
    let head = if filled < cells { ">" } else { "" };
    format!("[{}{head:<1$}]", "=".repeat(filled), cells - filled)
}

/// Smallest and largest number of cells of the bar.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 16;
/// The priority of the epoch in the progress line.
const EPOCH: u8 = 4;

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
        part(EPOCH, format!("epoch {}/{}", now.epoch + 1, view.epochs)),
        part(3, format!("loss {}", number(now.loss))),
        part(5, format!("lr {}", short_number(now.learning_rate))),
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

#[cfg(test)]
mod tests;
