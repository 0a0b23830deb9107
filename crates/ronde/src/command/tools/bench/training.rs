//! `ronde bench train`: measures training steps, alternating with PyTorch.

use std::ffi::OsString;
use std::path::PathBuf;

use ronde_bench::{
    BenchError, Programs, TrainingCase, TrainingReport, TrainingSettings, Variant,
    bytes_without_model, matrix_peak_flops, measure,
};
use ronde_cluster::StopFlag;

use super::arguments::BenchTrainArguments;
use super::{print, refuse};
use crate::command::console::message;

pub(super) fn bench(arguments: &BenchTrainArguments, stop: &StopFlag) -> i32 {
    match run(arguments, stop) {
        Ok(report) => print(&report.table(), stop),
        Err(_) if stop.signal() != 0 => 128 + stop.signal(),
        Err(error) => refuse(&error),
    }
}

fn run(arguments: &BenchTrainArguments, stop: &StopFlag) -> Result<TrainingReport, BenchError> {
    let settings = settings(arguments)?;
    let folder = tempfile::tempdir().map_err(|source| BenchError::File {
        path: std::env::temp_dir().display().to_string(),
        source,
    })?;
    let mut programs = Programs {
        ronde: std::env::current_exe()
            .map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string),
        python: arguments.python.clone().into_os_string(),
        folder: folder.path(),
        bytes_without_model: 0,
        go_on: &|| stop.signal() == 0,
    };
    if !settings.forward_only {
        programs.bytes_without_model = bytes_without_model(&programs)?;
    }
    let mut report = TrainingReport::new(settings, matrix_peak_flops());
    let count = report.variants.len();
    for round in 1..=report.settings.rounds {
        // The order rotates, because a run leaves memory and caches in a state that affects the next one.
        for turn in 0..count {
            let index = (turn + round as usize - 1) % count;
            let variant = report.variants[index].variant;
            let run = measure(&report.settings, variant, &programs)?;
            let (name, rate) = (variant.name(), run.samples_per_s);
            message!("round {round}: {name}, {rate:.1} samples/s");
            report.variants[index].runs.push(run);
        }
    }
    if let Some(path) = &arguments.json {
        ronde_bench::write(path, &report.to_json()?)?;
        message!("wrote {}", path.display());
    }
    Ok(report)
}

fn settings(arguments: &BenchTrainArguments) -> Result<TrainingSettings, BenchError> {
    let mut case = TrainingCase::of(&arguments.model)?;
    if let Some(files) = &arguments.records {
        case = case.with_records(&from_here(files))?;
    }
    let mut variants = vec![Variant::Together];
    for name in &arguments.against {
        let variant = match name.trim() {
            "one" => Variant::Alone,
            "independent" => Variant::Apart,
            "pytorch" | "pytorch-compiled" if arguments.records.is_some() => {
                let problem =
                    "benchmarks/pytorch_ddp.py trains on synthetic images; remove --records";
                return Err(refused(problem.to_owned()));
            }
            "pytorch" if case.in_pytorch => Variant::Pytorch,
            "pytorch-compiled" if case.in_pytorch => Variant::PytorchCompiled,
            "pytorch" | "pytorch-compiled" => {
                let problem = format!("benchmarks/pytorch_ddp.py does not support {}", case.model);
                return Err(refused(problem));
            }
            other => {
                let problem = format!(
                    "invalid value `{other}`: expected one, independent, pytorch or pytorch-compiled"
                );
                return Err(refused(problem));
            }
        };
        // With one worker these variants equal the measured run.
        let repeats = arguments.workers == 1 && matches!(variant, Variant::Alone | Variant::Apart);
        if !variants.contains(&variant) && !repeats {
            variants.push(variant);
        }
    }
    let shards = arguments.shards.unwrap_or(arguments.workers);
    if arguments.forward && arguments.workers > 1 {
        return Err(BenchError::Setting {
            what: "--forward",
            problem: format!(
                "{} workers: forward passes are measured with one; add -n 1",
                arguments.workers
            ),
        });
    }
    if shards < arguments.workers {
        return Err(BenchError::Setting {
            what: "--shards",
            problem: format!(
                "{shards} shards are fewer than {} workers",
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
        forward_only: arguments.forward,
        precision: arguments.precision.name(),
        sets: arguments.sets.clone(),
        variants,
    })
}

/// Returns files without a scheme as an absolute path, because the run file is in another folder.
fn from_here(files: &str) -> String {
    if files.contains("://") {
        return files.to_owned();
    }
    let here = std::env::current_dir().unwrap_or_default();
    here.join(files).display().to_string()
}

fn refused(problem: String) -> BenchError {
    BenchError::Setting {
        what: "--against",
        problem,
    }
}
