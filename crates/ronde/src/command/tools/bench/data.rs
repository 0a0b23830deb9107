//! `ronde bench data`: measures data loading without training.

use std::time::Duration;

use ronde_cluster::StopFlag;
use ronde_core::GroupRank;
use ronde_data::{Loader, LoaderPlan, LoaderSettings, LoaderTimes, Split};
use ronde_report::TextTable;
use ronde_train::{Plan, TrainError};
use serde_json::json;

use super::arguments::BenchDataArguments;
use super::run_file::RunFileText;
use super::{exit, print};
use crate::command::console::message;

/// One measurement of the loader.
struct LoaderMeasurement {
    threads: usize,
    seconds: f64,
    times: LoaderTimes,
    /// Peak memory of the process during the measurement.
    peak_bytes: u64,
}

pub(super) fn bench(arguments: &BenchDataArguments, stop: &StopFlag) -> i32 {
    match run(arguments, stop) {
        Ok(text) => print(&text, stop),
        Err(_) if stop.signal() != 0 => 128 + stop.signal(),
        Err(message) => {
            message!("{message}");
            exit::USER_ERROR
        }
    }
}

fn run(arguments: &BenchDataArguments, stop: &StopFlag) -> Result<String, String> {
    let failed = |error: TrainError| format!("error: {error}");
    let file = RunFileText::read(arguments.file.as_deref())?;
    let (plan, split) = file.open(&arguments.sets, arguments.json)?;
    let mut turns = Vec::new();
    for round in 1..=arguments.rounds {
        for &threads in &arguments.threads {
            let settings = LoaderSettings {
                threads,
                ..plan.config.loader.settings(&*split.train, 1)
            };
            let turn = measure(&plan, &split, settings, arguments, stop).map_err(failed)?;
            message!("round {round}: {}", show(&turn));
            turns.push(turn);
        }
    }
    Ok(if arguments.json {
        turns.iter().map(|turn| to_json(turn) + "\n").collect()
    } else {
        table(&arguments.threads, &turns)
    })
}

fn measure(
    plan: &Plan,
    split: &Split,
    settings: LoaderSettings,
    arguments: &BenchDataArguments,
    stop: &StopFlag,
) -> Result<LoaderMeasurement, TrainError> {
    reset_peak();
    let begun = ronde_clock::now();
    let steps = arguments
        .steps
        .unwrap_or_else(|| plan.batches.steps_per_epoch());
    let all = LoaderPlan {
        batches: plan.batches,
        shards: plan.shards.clone(),
        run: plan.shards.run(GroupRank(0)),
        steps: 0..steps,
        stride: 1,
    };
    let mut loader = Loader::start(split.train.clone(), all, settings)?;
    while stop.signal() == 0 && loader.next()?.is_some() {}
    Ok(LoaderMeasurement {
        threads: settings.threads,
        seconds: begun.elapsed().as_secs_f64(),
        times: loader.times(),
        peak_bytes: peak(),
    })
}

impl LoaderMeasurement {
    fn samples_per_s(&self) -> f64 {
        self.times.samples as f64 / self.seconds
    }

    fn bytes_per_s(&self) -> f64 {
        self.times.bytes as f64 / self.seconds
    }
}

fn show(turn: &LoaderMeasurement) -> String {
    let s = if turn.threads == 1 { "" } else { "s" };
    format!(
        "{} thread{s}: {:.0} samples/s, {:.1} MB/s as stored",
        turn.threads,
        turn.samples_per_s(),
        turn.bytes_per_s() / 1e6
    )
}

fn to_json(turn: &LoaderMeasurement) -> String {
    json!({
        "threads": turn.threads,
        "seconds": turn.seconds,
        "samples": turn.times.samples,
        "samples_per_s": turn.samples_per_s(),
        "stored_bytes": turn.times.bytes,
        "stored_bytes_per_s": turn.bytes_per_s(),
        "fetching_s": turn.times.fetching.as_secs_f64(),
        "decoding_s": turn.times.decoding.as_secs_f64(),
        "skipped": turn.times.skipped,
        "peak_bytes": turn.peak_bytes,
    })
    .to_string()
}

/// Formats the medians of the rounds.
fn table(threads: &[usize], turns: &[LoaderMeasurement]) -> String {
    let mut table = TextTable::new([
        "threads",
        "samples/s",
        "MB/s stored",
        "fetching",
        "decoding",
        "peak MiB",
    ])
    .right(0..6);
    for &threads in threads {
        let median = |value: &dyn Fn(&LoaderMeasurement) -> f64| {
            let mine = turns.iter().filter(|turn| turn.threads == threads);
            let mut values: Vec<f64> = mine.map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let all = |turn: &LoaderMeasurement| turn.seconds * turn.threads.max(1) as f64;
        let share = |time: &dyn Fn(&LoaderMeasurement) -> Duration| {
            let share = median(&|turn| time(turn).as_secs_f64() / all(turn));
            format!("{:.0} %", 100.0 * share)
        };
        table.row([
            threads.to_string(),
            format!("{:.0}", median(&LoaderMeasurement::samples_per_s)),
            format!("{:.1}", median(&|turn| turn.bytes_per_s() / 1e6)),
            share(&|turn| turn.times.fetching),
            share(&|turn| turn.times.decoding),
            format!(
                "{:.0}",
                median(&|turn| turn.peak_bytes as f64 / f64::from(1 << 20))
            ),
        ]);
    }
    format!("{table}\n")
}

/// Resets the peak memory of the process, where the system allows it.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
