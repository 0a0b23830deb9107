//! `ronde bench train`: training steps of this command, in turns with PyTorch.

use std::ffi::OsString;
use std::path::PathBuf;

use ronde_bench::{
    BenchError, Programs, TrainingCase, TrainingReport, TrainingSettings, Variant,
    matrix_peak_flops, measure,
};
use ronde_cluster::StopFlag;

use super::arguments::TrainingArguments;
use super::{print, refuse};

pub(super) fn bench(arguments: &TrainingArguments, stop: &StopFlag) -> i32 {
    match run(arguments, stop) {
        Ok(report) => print(&report.table(), stop),
        Err(_) if stop.signal() != 0 => 128 + stop.signal(),
        Err(error) => refuse(&error),
    }
}

fn run(arguments: &TrainingArguments, stop: &StopFlag) -> Result<TrainingReport, BenchError> {
    let settings = settings(arguments)?;
    let folder = tempfile::tempdir().map_err(|source| BenchError::File {
        path: std::env::temp_dir().display().to_string(),
        source,
    })?;
    let programs = Programs {
        ronde: std::env::current_exe()
            .map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string),
        python: arguments.python.clone().into_os_string(),
        folder: folder.path(),
        go_on: &|| stop.signal() == 0,
    };
    let mut report = TrainingReport::new(settings, matrix_peak_flops());
    let count = report.variants.len();
    for round in 1..=report.settings.rounds {
        // Each has its turn after each other one: what ended before leaves memory and caches in some state.
        for turn in 0..count {
            let place = (turn + round as usize - 1) % count;
            let variant = report.variants[place].variant;
            let run = measure(&report.settings, variant, &programs)?;
            let (name, rate) = (variant.name(), run.samples_per_s);
            eprintln!("round {round}: {name}, {rate:.1} samples/s");
            report.variants[place].runs.push(run);
        }
    }
    if let Some(path) = &arguments.json {
        ronde_bench::write(path, &report.to_json()?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(report)
}

fn settings(arguments: &TrainingArguments) -> Result<TrainingSettings, BenchError> {
    let case = TrainingCase::of(&arguments.model)?;
    let mut variants = vec![Variant::Together];
    for name in &arguments.against {
        let variant = match name.trim() {
            "one" => Variant::Alone,
            "independent" => Variant::Apart,
            "pytorch" if case.in_pytorch => Variant::Pytorch,
            "pytorch" => {
                let problem = format!("the script of PyTorch does not know {}", case.model);
                return Err(refused(problem));
            }
            other => {
                let problem = format!("`{other}` is none of one, independent, pytorch");
                return Err(refused(problem));
            }
        };
        // One worker by itself is what runs anyway.
        let repeats = arguments.workers == 1 && matches!(variant, Variant::Alone | Variant::Apart);
        if !variants.contains(&variant) && !repeats {
            variants.push(variant);
        }
    }
    let shards = arguments.shards.unwrap_or(arguments.workers);
    if shards < arguments.workers {
        return Err(BenchError::Setting {
            what: "--shards",
            problem: format!(
                "{shards} shards for {} workers; each needs one",
                arguments.workers
            ),
        });
    }
    Ok(TrainingSettings {
        case,
        workers: arguments.workers,
        shards,
        steps: arguments.steps,
        rounds: arguments.rounds,
        bucket_bytes: arguments.bucket_bytes,
        variants,
    })
}

fn refused(problem: String) -> BenchError {
    BenchError::Setting {
        what: "--against",
        problem,
    }
}
