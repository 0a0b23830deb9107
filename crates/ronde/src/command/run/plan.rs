//! `ronde plan`: forecasts memory, time and cost of a run for every layout.

mod measure;

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use ronde::engine::OptimizerConfig;
use ronde::host;
use ronde_data::Split;
use ronde_engine::{RateScaling, ScheduleConfig};
use ronde_planner::{
    AdviseError, BatchSettings, ClusterShape, CollectiveTimes, HostLink, LayoutCandidate,
    LayoutChoice, LinkCosts, RateRule, RunForecast, RunLength, RunRequest, ScalingCurve,
    StepRequest, WorkerCosts, efficiency_svg, forecast, json, layout_choices, parse_bytes,
    parse_link, parse_price, table,
};
use ronde_tracking::render::{bytes, count};
use ronde_train::config::{Override, ParallelSection, RecomputedLayers};
use ronde_train::{Plan, WorkerTimes};

use self::measure::{Measured, codec_costs, crowded_s, measure};
use crate::command::console::{info, message, print};
use crate::command::exit;
use crate::command::run::capacity::memory_per_worker;
use crate::command::run::layout_arguments::train_command;
use crate::command::run::layouts::LayoutBuilder;
use crate::command::run::start_error::StartError;
use crate::command::run::train::{PlanRequest, plan as read_plan};

/// The most simulated workers of the drawing and the JSON document.
const SIMULATED_WORKERS: u32 = 4096;

/// Arguments of `ronde plan`.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// Run file [default: the embedded example].
    file: Option<PathBuf>,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Number of hosts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    hosts: u32,
    /// Cores of each host [default: those of this machine].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    cores: Option<u32>,
    /// Memory of each host for workers, such as `64GiB` [default: what is available on this machine].
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Rate and latency of the link of each host [default: 10Gbit/s,50us].
    #[arg(long, value_name = "RATE,LATENCY")]
    link: Option<String>,
    /// Price of a host for an hour, such as `1.20/h`.
    #[arg(long, value_name = "PRICE")]
    price: Option<String>,
    /// Number of configurations that are to be trained, to compare running them side by side.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    configurations: u32,
    /// Seconds in which the layers are measured on this machine.
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    seconds: u64,
    /// Show all layouts, not only the best ones.
    #[arg(long)]
    all: bool,
    /// Write the forecasts of all layouts to standard output as JSON.
    #[arg(long)]
    json: bool,
    /// Draw the efficiency of the best layout on up to 4,096 simulated workers to an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn plan(arguments: &PlanArguments) -> i32 {
    match run(arguments) {
        Ok(text) => print(text.trim_end()),
        Err(StartError::Invalid(problem) | StartError::Finished(problem)) => {
            message!("{problem}");
            exit::USER_ERROR
        }
    }
}

fn run(arguments: &PlanArguments) -> Result<String, StartError> {
    let failed = |error: AdviseError| format!("error: {error}");
    let cluster = cluster(arguments).map_err(failed)?;
    let request = PlanRequest {
        file: arguments.file.as_deref(),
        overrides: arguments.sets.iter().cloned().map(Override::Set).collect(),
        json: arguments.json,
        for_forecast: true,
        ..PlanRequest::default()
    };
    let planned = read_plan(&request)?;
    let own = planned.written_parallel().clone();
    let (plan, size, split, name) = planned.into_parts();
    check_settings(&name, &plan)?;
    let threads = plan.config.workers.threads;
    let workers = cluster.workers_per_host(threads).map_err(failed)?;
    let unbuilt = || format!("error: cannot build the model of {name}");
    let builder = LayoutBuilder::new(&plan, &size, &*split.train).ok_or_else(unbuilt)?;
    let mut builder = builder.for_hosts(cluster.memory_bytes, workers);
    let choices = layout_choices(&builder.limits(workers, cluster.hosts));
    let candidates = choices
        .iter()
        .filter_map(|choice| builder.candidate(choice));
    let candidates: Vec<LayoutCandidate> = candidates.collect();
    let kept = with_kept_activations(&plan);
    let one_bytes = memory_per_worker(&kept, &size, &*split.train);
    let measured = measure(&kept, &split, one_bytes, arguments.seconds)?;
    if !arguments.json {
        describe(&name, &plan, size.parameters, &cluster, &measured);
    }
    let links = measured.links(&cluster);
    let collectives = CollectiveTimes::new(links, plan.config.comm.algorithm);
    let codecs = codec_costs(&builder.state());
    let mut request = request_of(&plan, &split, &measured, (&links, &collectives, cluster));
    if let Some((workers, _)) = measured.crowded {
        let here = StepRequest {
            cluster: this_machine(),
            ..request.step.clone()
        };
        request.step.crowded_s = crowded_s(&kept, &split, workers, arguments.seconds, |data| {
            let choice = LayoutChoice {
                data,
                ..LayoutChoice::ONE
            };
            let candidate = LayoutCandidate {
                recomputed: 0..0,
                ..builder.candidate(&choice)?
            };
            Some(forecast(&candidate, &here).ok()?.step_s)
        })?;
    }
    let request = RunRequest {
        configurations: arguments.configurations,
        codecs: &codecs,
        ..request
    };
    let found = RunForecast::compare(&candidates, &request).map_err(failed)?;
    let shards = plan.shards.shards();
    let curve = || {
        let limits = (shards, SIMULATED_WORKERS);
        let mut build = |choice: &_, shards| builder.shape(choice, shards);
        ScalingCurve::simulate(found.best.choice, limits, &request.step, &mut build)
    };
    report(arguments, &own, &found, curve)
}

/// Returns a plan in which layers keep their activations that the run file leaves open: layers are measured so.
fn with_kept_activations(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let layers = &mut plan.config.train.recompute_activations;
    if layers.is_auto() {
        *layers = RecomputedLayers::default();
    }
    plan
}

/// Refuses runs that the model of a step does not describe.
fn check_settings(name: &str, plan: &Plan) -> Result<(), StartError> {
    if let Some(reason) = plan.config.sync.facts().unrepeatable {
        return Err(StartError::Invalid(format!(
            "error: cannot forecast {name}: {reason}\n  \
             help: `--set sync.kind=every_step` forecasts the run with gradients summed in every step"
        )));
    }
    if plan.config.compression.is_on() {
        return Err(StartError::Invalid(format!(
            "error: cannot forecast {name}: `compression.codec` is not \"none\"\n  \
             help: `--set compression.codec=none` forecasts the run without compression, which sends more and computes less"
        )));
    }
    if plan.rounds.is_some() {
        return Err(StartError::Invalid(format!(
            "error: cannot forecast {name}: `sync.kind` is not \"every_step\"\n  \
             help: `--set sync.kind=every_step` forecasts the run with gradients summed in every step; local SGD computes the same and \
             exchanges once in {} steps",
            plan.config.sync.facts().round_steps
        )));
    }
    Ok(())
}

/// Returns what the command prints, and writes the drawing.
fn report(
    arguments: &PlanArguments,
    own: &ParallelSection,
    found: &RunForecast,
    curve: impl FnOnce() -> Result<ScalingCurve, AdviseError>,
) -> Result<String, StartError> {
    let command =
        |choice: &_| train_command(arguments.file.as_deref(), &arguments.sets, own, choice);
    let table = || table(found, arguments.all, &command);
    if !arguments.json && arguments.plot.is_none() {
        return Ok(table());
    }
    let curve = curve().map_err(|error| format!("error: {error}"))?;
    if let Some(path) = &arguments.plot {
        std::fs::write(path, efficiency_svg(&curve)).map_err(|error| {
            format!(
                "error: cannot write {}: {error}\n  help: choose another file: --plot FILE",
                path.display()
            )
        })?;
        message!("wrote {}", path.display());
    }
    match arguments.json {
        true => Ok(
            json(found, &curve).map_err(|error| format!("error: cannot write JSON: {error}"))?
        ),
        false => Ok(table()),
    }
}

/// Returns the machines that the arguments describe.
fn cluster(arguments: &PlanArguments) -> Result<ClusterShape, AdviseError> {
    let here = this_machine();
    let memory = arguments.memory.as_deref().map(parse_bytes).transpose()?;
    let link = arguments.link.as_deref().map(parse_link).transpose()?;
    Ok(ClusterShape {
        hosts: arguments.hosts,
        cores: arguments.cores.unwrap_or(here.cores),
        memory_bytes: memory.unwrap_or(here.memory_bytes),
        link: link.unwrap_or(here.link),
        price_per_hour: arguments.price.as_deref().map(parse_price).transpose()?,
    })
}

/// Returns this machine alone.
fn this_machine() -> ClusterShape {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    ClusterShape {
        hosts: 1,
        cores: cores as u32,
        memory_bytes: host::available_memory_bytes().unwrap_or(u64::MAX),
        link: HostLink::default(),
        price_per_hour: None,
    }
}

/// Prints what the forecasts are based on.
fn describe(name: &str, plan: &Plan, parameters: u64, cluster: &ClusterShape, measured: &Measured) {
    let times = &measured.alone;
    let sum = |of: fn(&ronde_train::LayerTimes) -> f64| -> f64 {
        1e3 * times.layers.iter().map(of).sum::<f64>()
    };
    info!(
        "{name}: {} parameters, {} steps of {} samples in {} logical shards",
        count(parameters),
        count(plan.steps),
        count(plan.config.train.global_batch_size),
        plan.shards.shards()
    );
    let crowded = measured.crowded.as_ref().map(|(workers, crowded)| {
        let of = |times: &WorkerTimes| -> f64 {
            let layers = times.layers.iter();
            layers.map(|layer| layer.forward_s + layer.backward_s).sum()
        };
        let slower = of(crowded) / of(times).max(f64::MIN_POSITIVE);
        format!(", {slower:.2} times that with {workers} workers at once")
    });
    info!(
        "measured on this machine: a shard of {} samples takes {:.2} ms forward and {:.2} ms backward{}",
        plan.shard_samples_max(),
        sum(|layer| layer.forward_s),
        sum(|layer| layer.backward_s),
        crowded.unwrap_or_default()
    );
    info!(
        "forecast for {} host{} with {} cores and {}{}",
        cluster.hosts,
        if cluster.hosts == 1 { "" } else { "s" },
        cluster.cores,
        bytes(cluster.memory_bytes),
        match cluster.hosts {
            1 => String::new(),
            _ => format!(
                ", links of {:.1} Gbit/s and {:.0} us",
                cluster.link.bytes_per_s * 8.0 / 1e9,
                cluster.link.latency_s * 1e6
            ),
        }
    );
}

/// Returns the run of which forecasts are made.
fn request_of<'a>(
    plan: &Plan,
    split: &Split,
    measured: &'a Measured,
    (links, collectives, cluster): (&'a LinkCosts, &'a CollectiveTimes, ClusterShape),
) -> RunRequest<'a> {
    let config = &plan.config;
    let worker: &WorkerCosts = &measured.worker;
    let forward_s: f64 = worker
        .alone
        .layers
        .iter()
        .map(|layer| layer.passes.forward_s)
        .sum();
    let sample_s = (forward_s + worker.alone.loss_s) / plan.shard_samples_max().max(1) as f64;
    let tested = split.test.as_ref().map_or(0, |test| test.len()) as f64;
    let evaluations = match config.train.evaluate_every_epochs {
        Some(every) if every > 0 => plan.epochs.div_ceil(every),
        _ => 1,
    };
    RunRequest {
        step: StepRequest {
            worker,
            links,
            collectives,
            algorithm: config.comm.algorithm,
            cluster,
            threads: config.workers.threads,
            in_lock_step: config.model.config.runs_shards_together(),
            sums_in_passes: 2 * measured.alone.lock_step_layers,
            has_trust_ratios: config.optimizer.has_trust_ratio(),
            hash_parts: config.check.weight_hash_parts.into(),
            crowded_s: 0.0,
        },
        length: RunLength {
            steps: plan.steps,
            evaluations_s: evaluations as f64 * tested * sample_s,
        },
        batch: batch_settings(plan),
        configurations: 1,
        codecs: &[],
    }
}

fn batch_settings(plan: &Plan) -> BatchSettings {
    let (train, schedule) = (&plan.config.train, plan.config.schedule);
    let warmup_steps = match schedule {
        ScheduleConfig::OneCycle { rising_share, .. } => (rising_share * plan.steps as f64) as u64,
        schedule => schedule.warmup_steps(),
    };
    let optimizer = plan.config.optimizer;
    BatchSettings {
        samples: train.global_batch_size.min(plan.batches.samples()),
        rate_chosen_for: train.learning_rate_batch_size,
        applied: match train.learning_rate_scaling {
            RateScaling::None => None,
            RateScaling::Linear => Some(RateRule::Linear),
            RateScaling::SquareRoot => Some(RateRule::SquareRoot),
        },
        suited: match optimizer {
            OptimizerConfig::Sgd { .. } | OptimizerConfig::Lars { .. } => RateRule::Linear,
            _ => RateRule::SquareRoot,
        },
        adapts_layers: optimizer.has_trust_ratio(),
        warmup_steps,
        steps_per_epoch: plan.batches.steps_per_epoch(),
        steps: plan.steps,
        shards: plan.shards.shards(),
    }
}
