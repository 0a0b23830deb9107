//! The answers of the server as JSON.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use ronde_core::Rank;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::buckets::{Buckets, SeriesBucket, ValueRange};
use crate::history::{RankHistory, RunHistory, StepBucket};
use crate::library::{RunLibrary, RunSnapshot};
use crate::settings::masked;

/// Largest number of points of a series in an answer.
const POINTS_MAX: usize = 2_048;

/// Makes an answer from a value.
pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => error.to_string().into_response(),
    }
}

/// Returns the summaries of all runs.
pub(super) fn list(library: &RunLibrary) -> Value {
    let (version, mut summaries, problem) = library.summaries();
    for summary in &mut summaries {
        summary.failure = summary.failure.as_deref().map(masked);
        summary.help = summary.help.as_deref().map(masked);
    }
    json!({
        "version": version,
        "folder": library.label(),
        "problem": problem,
        "runs": summaries,
    })
}

/// Returns the versions of all runs as text.
pub(super) fn versions(library: &RunLibrary) -> String {
    let (version, summaries, _) = library.summaries();
    let runs: serde_json::Map<String, Value> = summaries
        .into_iter()
        .map(|run| (run.id, run.version.into()))
        .collect();
    json!({"version": version, "runs": runs}).to_string()
}

/// The part of a run that the page lacks.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PartQuery {
    /// Largest number of points of a series.
    points: Option<String>,
    /// The first step of the last point that the page has, with `width`.
    from: Option<String>,
    /// The number of steps of a point that the page has; with another one, it receives the whole series.
    width: Option<String>,
    /// Whether the page shows ranks, members and checkpoints.
    detail: Option<String>,
}

impl PartQuery {
    /// Returns a number; `None` if it is missing or not valid.
    fn number(text: Option<&String>) -> Option<u64> {
        text?.parse().ok()
    }
}

/// A run as the page receives it.
#[derive(Serialize)]
pub(super) struct RunAnswer {
    summary: Value,
    steps: StepSeries,
    evaluations: Vec<Value>,
    /// The steps that have updated no parameter, in words.
    skipped_updates: Option<String>,
    detail: Option<Value>,
}

/// The series of a run; all lists have the same length.
#[derive(Serialize, Default)]
struct StepSeries {
    /// Number of steps of a point.
    width: u64,
    /// The first step of the answer; earlier points of the page remain.
    from: u64,
    step: Vec<u64>,
    t: Vec<f64>,
    loss: RangeSeries,
    learning_rate: Vec<f32>,
    gradient_norm: RangeSeries,
    rate: RangeSeries,
}

#[derive(Serialize, Default)]
struct RangeSeries {
    mean: Vec<f32>,
    min: Vec<f32>,
    max: Vec<f32>,
}

impl RangeSeries {
    fn push(&mut self, range: &ValueRange, mean: f64) {
        let extreme = |value: f64| match range.count {
            0 => f32::NAN,
            _ => value as f32,
        };
        self.mean.push(mean as f32);
        self.min.push(extreme(range.min));
        self.max.push(extreme(range.max));
    }
}

/// Returns a run.
pub(super) fn run(run: &RunSnapshot<'_>, query: &PartQuery) -> RunAnswer {
    let history = run.history;
    let evaluations = history.evaluations.iter().map(|record| {
        json!({"t": record.t, "step": record.step, "loss": record.loss, "metrics": record.metrics})
    });
    RunAnswer {
        summary: json!(run.summary),
        steps: step_series(&history.steps, query),
        evaluations: evaluations.collect(),
        skipped_updates: ronde_tracking::render::skipped_updates(&history.view.skipped_updates),
        detail: query.detail.is_some().then(|| detail(run)),
    }
}

/// Merges neighbours until there are at most `points`, and calls `visit` with the first step of each point from `from` on.
/// Returns the number of steps of a point and the first step.
fn points<B: SeriesBucket>(
    series: &Buckets<B>,
    points: usize,
    from: Option<(u64, u64)>,
    visit: &mut dyn FnMut(u64, &B),
) -> (u64, u64) {
    let number = series.from_step(0).last();
    let number = number.map_or(0, |(step, _)| step / series.steps_per_bucket() + 1);
    let times = number
        .div_ceil(points.max(1) as u64)
        .max(1)
        .next_power_of_two();
    let width = series.steps_per_bucket().saturating_mul(times);
    let from = match from {
        Some((from, same)) if same == width => from / width * width,
        _ => 0,
    };
    let mut point: Option<(u64, B)> = None;
    for (step, bucket) in series.from_step(from) {
        let start = step / width * width;
        match &mut point {
            Some((at, merged)) if *at == start => merged.merge(bucket),
            point => {
                if let Some((at, merged)) = point.take() {
                    visit(at, &merged);
                }
                let mut first = B::default();
                first.merge(bucket);
                *point = Some((start, first));
            }
        }
    }
    if let Some((at, merged)) = point {
        visit(at, &merged);
    }
    (width, from)
}

fn step_series(steps: &Buckets<StepBucket>, query: &PartQuery) -> StepSeries {
    let number = PartQuery::number(query.points.as_ref()).unwrap_or(POINTS_MAX as u64);
    let number = number.clamp(16, POINTS_MAX as u64) as usize;
    let known = PartQuery::number(query.from.as_ref()).zip(PartQuery::number(query.width.as_ref()));
    let mut series = StepSeries::default();
    let (width, from) = points(steps, number, known, &mut |step, bucket| {
        series.step.push(step);
        series.t.push((bucket.t * 1e3).round() / 1e3);
        series.loss.push(&bucket.loss, bucket.loss.mean());
        series
            .learning_rate
            .push(bucket.learning_rate.mean() as f32);
        series
            .gradient_norm
            .push(&bucket.gradient_norm, bucket.gradient_norm.mean());
        let rate = bucket.samples as f64 / bucket.seconds;
        series.rate.push(&bucket.rate, rate);
    });
    StepSeries {
        width,
        from,
        ..series
    }
}

/// Returns ranks, members and checkpoints.
fn detail(run: &RunSnapshot<'_>) -> Value {
    let history: &RunHistory = run.history;
    let checkpoints = history.checkpoints.iter().rev().map(|record| {
        json!({
            "t": record.t, "outcome": record.outcome, "step": record.step, "bytes": record.bytes,
            "seconds": record.seconds, "held_up_s": record.held_up_s, "text": masked(&record.text),
        })
    });
    let members = history.members.iter().rev().map(|record| {
        json!({
            "t": record.t, "generation": record.generation, "world_size": record.world_size,
            "text": masked(&record.text),
        })
    });
    let processes = history
        .view
        .processes
        .iter()
        .map(|(slot, (host, pid))| json!({"slot": slot, "host": host, "pid": pid}));
    let ranks = history
        .view
        .workers
        .keys()
        .map(|rank| rank_answer(history, *rank));
    json!({
        "ranks": ranks.collect::<Vec<_>>(),
        "members": members.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "straggler": history.view.straggler().map(ronde_tracking::render::straggler),
        "checkpoints": checkpoints.collect::<Vec<_>>(),
        "confusion": history.confusion.as_ref().map(|found| json!({"step": found.step, "rows": found.rows, "classes": found.classes})),
        "model": history.view.model.as_ref().map(|model| masked(&model.path)),
    })
}

fn rank_answer(history: &RunHistory, rank: Rank) -> Value {
    let totals = history.view.workers.get(&rank).copied().unwrap_or_default();
    let empty = RankHistory::default();
    let series = history.ranks.get(&rank).unwrap_or(&empty);
    let (mut step, mut compute, mut communicate, mut wait) = (vec![], vec![], vec![], vec![]);
    points(&series.times, 256, None, &mut |at, bucket| {
        let mean = |seconds: f64| seconds / f64::from(bucket.steps);
        step.push(at);
        compute.push(mean(bucket.compute_s));
        communicate.push(mean(bucket.communicate_s));
        wait.push(mean(bucket.wait_data_s));
    });
    let (mut memory_step, mut resident, mut peak) = (vec![], vec![], 0);
    points(&series.memory, 256, None, &mut |at, bucket| {
        memory_step.push(at);
        resident.push(bucket.resident.max);
        peak = peak.max(bucket.peak);
    });
    json!({
        "rank": rank,
        "compute_s": totals.times.compute_s,
        "communicate_s": totals.times.communicate_s,
        "wait_data_s": totals.times.wait_data_s,
        "hidden_share": totals.times.hidden_share(),
        "bytes_sent": totals.bytes_sent,
        "resident_bytes": resident.last(),
        "peak_bytes": (peak > 0).then_some(peak),
        "series": {"step": step, "compute": compute, "communicate": communicate, "wait": wait},
        "memory": {"step": memory_step, "resident": resident},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_merge_neighbours_and_continue_where_the_page_ends() {
        let mut series = Buckets::<ValueRange>::new(1_024);
        (0..1_000).for_each(|step| series.of_step(step).add(step as f64));
        let collect = |number, from| {
            let mut found = Vec::new();
            let of = points(&series, number, from, &mut |step, range| {
                found.push((step, range.count, range.max));
            });
            (of, found)
        };
        let (of, found) = collect(100, None);
        assert_eq!((of, found.len()), ((16, 0), 63));
        assert_eq!((found[0], found[62]), ((0, 16, 15.0), (992, 8, 999.0)));
        let (of, found) = collect(100, Some((980, 16)));
        assert_eq!(of, (16, 976));
        assert_eq!(found[0], (976, 16, 991.0));
        assert_eq!(collect(100, Some((980, 8))).0, (16, 0), "another width");
        assert_eq!(collect(2_000, None).1.len(), 1_000);
    }
}
