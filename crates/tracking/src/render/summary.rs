//! The summary printed at the end of a run.

use ronde_core::SkippedUpdates;
use ronde_core::event::PhaseTimes;
use ronde_core::units::{bytes, count};
use ronde_report::TextTable;

use super::values::{counted, duration, number, percent};
use super::{metrics, straggler};
use crate::view::RunView;

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
    lines.extend(saved_evaluation(view, columns));
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
    if let Some(text) = skipped_updates(&view.skipped_updates) {
        lines.extend(field("no update", &[text], columns));
    }
    lines.extend(restarts(view, columns));
    lines.extend(staleness(view, columns));
    lines.extend([consensus(view, columns), predictions(view, columns)].concat());
    lines.extend(table(view, columns));
    for late in &view.stragglers {
        lines.extend(field("straggler", &[straggler(late)], columns));
    }
    if let Some(model) = &view.model {
        lines.extend(field("model", std::slice::from_ref(&model.path), columns));
        lines.extend(field(
            "configuration",
            std::slice::from_ref(&model.config_path),
            columns,
        ));
        lines.extend(hash(&model.blake3, columns));
    }
    lines.join("\n")
}

/// Returns the lines about how often the run began again.
fn restarts(view: &RunView, columns: usize) -> Vec<String> {
    if view.restarts == 0 {
        return Vec::new();
    }
    let times = counted(view.restarts, "time");
    let text = format!("{times} from the first step, because a part of the state was lost");
    field("restarted", &[text], columns)
}

/// Describes the steps that have updated no parameter, such as `3 steps: 2 overflows of f16, 1 without counted targets`; `None`
/// without any.
#[must_use]
pub fn skipped_updates(skipped: &SkippedUpdates) -> Option<String> {
    let causes = [
        (skipped.overflow > 0).then(|| counted(skipped.overflow, "overflow") + " of f16"),
        (skipped.no_targets > 0)
            .then(|| format!("{} without counted targets", count(skipped.no_targets))),
    ];
    let causes: Vec<String> = causes.into_iter().flatten().collect();
    (!causes.is_empty()).then(|| {
        format!(
            "{}: {}",
            counted(skipped.total(), "step"),
            causes.join(", ")
        )
    })
}

/// Returns the lines with the evaluation of the model that the run saves.
fn saved_evaluation(view: &RunView, columns: usize) -> Vec<String> {
    let Some(result) = view.saved_evaluation() else {
        return Vec::new();
    };
    let mut parts = metrics(result);
    let after = format!("after step {}", count(result.steps));
    match &view.best {
        Some(best) => parts.push(format!("{after} (best {})", best.metric)),
        // The model of the last step needs no step.
        None if view.progress.map(|now| now.committed) == Some(result.steps) => {}
        None => parts.push(after),
    }
    field("test", &parts, columns)
}

/// Returns the lines with the hash of the model: two in a narrow terminal.
fn hash(blake3: &str, columns: usize) -> Vec<String> {
    match blake3.split_at_checked(HASH_HALF) {
        Some((half, rest)) if columns < HASH_COLUMNS => [
            field("blake3", &[half.to_owned()], columns),
            field("", &[rest.to_owned()], columns),
        ]
        .concat(),
        _ => field("blake3", &[blake3.to_owned()], columns),
    }
}

/// Returns the lines about stale gradients: for each worker their mean and highest staleness; none without parameter servers.
fn staleness(view: &RunView, columns: usize) -> Vec<String> {
    let workers = view.staleness.workers();
    let parts = workers.iter().map(|worker| {
        let (rank, mean, most) = (worker.rank, worker.mean(), worker.most());
        format!("rank {rank} {mean:.1} (at most {most})")
    });
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => Vec::new(),
        false => field("staleness", &parts, columns),
    }
}

/// Returns the lines about replicas that average in pairs: their distance from their mean at the ends of rounds, and their exchanges.
fn consensus(view: &RunView, columns: usize) -> Vec<String> {
    let tally = &view.consensus;
    if tally.rounds == 0 {
        return Vec::new();
    }
    let (last, most) = (100.0 * tally.last, 100.0 * tally.most);
    let mut parts = vec![format!("distance {last:.2} % (at most {most:.2} %)")];
    if tally.exchanges + tally.missed > 0 {
        let each = bytes(tally.bytes_each());
        parts.push(format!(
            "{} of {each}",
            counted(tally.exchanges, "exchange")
        ));
        parts.push(format!("{} missed", count(tally.missed)));
    }
    field("replicas", &parts, columns)
}

/// Returns the lines about predicted gradients in the last round: for each predictor the cosine with the gradients that arrived, and the
/// norm of the error relative to theirs.
fn predictions(view: &RunView, columns: usize) -> Vec<String> {
    let of_border = |(border, (cosine, error)): (usize, &(f64, f64))| {
        format!(
            "border {} cosine {cosine:.2} (error {:.0} %)",
            border + 1,
            100.0 * error
        )
    };
    let parts: Vec<String> = view.predictions.iter().enumerate().map(of_border).collect();
    match parts.is_empty() {
        true => Vec::new(),
        false => field("predictions", &parts, columns),
    }
}

/// Returns the lines of a field of the summary, broken between its parts. A value that is too long for the column of
/// values has a separate line.
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

/// Columns of a hash with its indentation; narrower terminals get it in two lines.
const HASH_COLUMNS: usize = 68;
/// Characters of a hash in the first of two lines.
const HASH_HALF: usize = 32;

/// Returns a row per worker: seconds and percentage of each phase, bytes sent.
fn table(view: &RunView, columns: usize) -> Vec<String> {
    if view.workers.is_empty() {
        return Vec::new();
    }
    let [wide, narrow] = [true, false].map(|is_wide| workers(view, is_wide));
    let is_too_wide = wide.iter().any(|line| line.chars().count() > columns);
    let mut lines = if is_too_wide { narrow } else { wide };
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

/// Returns the table of workers: with seconds, or with percentages only.
fn workers(view: &RunView, is_wide: bool) -> Vec<String> {
    let head = match is_wide {
        true => [
            "rank",
            "compute",
            "communication",
            "waiting for data",
            "bytes sent",
        ],
        false => ["rank", "compute", "comm", "data", "bytes sent"],
    };
    let mut table = TextTable::new(head).right(1..5).indented(2);
    for (rank, worker) in &view.workers {
        let total = worker.times.total_s();
        let cell = |part: f64| match is_wide {
            true => format!("{part:.2} s {:>5}", percent(part, total)),
            false => percent(part, total),
        };
        table.row([
            rank.to_string(),
            cell(worker.times.compute_s),
            cell(worker.times.communicate_s),
            cell(worker.times.wait_data_s),
            bytes(worker.bytes_sent),
        ]);
    }
    table.lines().collect()
}
