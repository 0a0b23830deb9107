//! Measures the idle time of pipelines whose layers sleep, against the published formulas and the timeline of the program.
//!
//! `pipeline_bubble [ranks=4] [shards=8] [schedule=1f1b] [rounds=1] [ms=6] [steps=5]`; ranks are processes. A forward pass of all
//! layers of a rank takes `ms` milliseconds, and a backward pass twice that.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::step_layout::{PipelineStage, StepLayout};
use ronde_core::{Collectives, CollectivesExt, DType, GroupRank, Shard, Step};
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, Chain, CrossEntropy, EngineError, Layer, LayerCost,
    LayerFacts, LayerSetting, OptimizerConfig, SavedValues, ShardGradient, ShardInput, ShardSums,
    StateChange, engine_name,
};
use ronde_parallel::{MicroBatch, StepMethod, SynchronousConfig, SynchronousStrategy};
use ronde_schedule::{
    BorderCost, BucketCost, PipelineSchedule, ProgramShape, StepCosts, programs, timeline,
};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The nanoseconds that the layers of this process have slept.
static SLEPT_NS: AtomicU64 = AtomicU64::new(0);

static STARTED: LazyLock<Instant> = LazyLock::new(now);

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a layer of a known duration is what is measured"
)]
fn sleep(duration: Duration) {
    let begun = now();
    std::thread::sleep(duration);
    let slept = begun.elapsed().as_nanos() as u64;
    SLEPT_NS.fetch_add(slept, Ordering::Relaxed);
}

/// The parameters of a measurement.
#[derive(Debug, Clone)]
struct Settings {
    ranks: usize,
    shards: u32,
    schedule: PipelineSchedule,
    rounds: usize,
    forward: Duration,
    steps: u64,
}

impl Settings {
    fn of(words: &[String]) -> ExampleResult<Self> {
        let found = |name: &str, default: &str| {
            let value = |word: &String| word.strip_prefix(&format!("{name}=")).map(str::to_owned);
            words
                .iter()
                .find_map(value)
                .unwrap_or_else(|| default.to_owned())
        };
        let schedule = match found("schedule", "1f1b").as_str() {
            "gpipe" => PipelineSchedule::GPipe,
            "1f1b" => PipelineSchedule::OneForwardOneBackward,
            "interleaved" => PipelineSchedule::Interleaved,
            "zero_bubble" => PipelineSchedule::ZeroBubble,
            other => return Err(format!("no schedule `{other}`").into()),
        };
        Ok(Self {
            ranks: found("ranks", "4").parse()?,
            shards: found("shards", "8").parse()?,
            schedule,
            rounds: found("rounds", "1").parse()?,
            forward: Duration::from_secs_f64(found("ms", "6").parse::<f64>()? / 1e3),
            steps: found("steps", "5").parse()?,
        })
    }

    fn stages(&self) -> Vec<PipelineStage> {
        let stage = |index| PipelineStage {
            layers: index..index + 1,
            column: index % self.ranks,
        };
        (0..self.ranks * self.rounds).map(stage).collect()
    }

    /// Returns the duration of the forward pass of one layer.
    fn of_layer(&self) -> Duration {
        self.forward / self.rounds as u32
    }

    /// Returns the idle share of a step by the published formula.
    fn formula(&self) -> f64 {
        let waiting = (self.ranks - 1) as f64;
        match self.schedule {
            // (p - 1) (F + B - W), with F, B and W of the same length.
            PipelineSchedule::ZeroBubble => waiting / (3.0 * f64::from(self.shards) + waiting),
            _ => waiting / (self.rounds as f64 * f64::from(self.shards) + waiting),
        }
    }

    /// Returns the seconds of a step by the timeline of its program.
    fn timeline(&self) -> ExampleResult<f64> {
        let stages = self.stages();
        let shape = ProgramShape::with_one_bucket_per_stage(&stages, 0..self.shards);
        let layer = self.of_layer().as_secs_f64();
        let bucket = BucketCost {
            forward_s: layer,
            backward_s: 2.0 * layer,
            backward_weights_s: layer,
            ..BucketCost::default()
        };
        let costs = StepCosts {
            buckets: vec![bucket; stages.len()],
            borders: vec![BorderCost::default(); stages.len()],
            kept_bytes: vec![0; stages.len()],
            loss_s: 0.0,
        };
        let of_buckets: Vec<usize> = (0..stages.len()).rev().collect();
        let found = timeline(&programs(self.schedule, &shape), &of_buckets, &costs)?;
        Ok(found.end_s)
    }
}

/// A layer that passes its input on and takes a known time.
struct SleepingLayer {
    facts: LayerFacts,
    forward: Duration,
}

impl SleepingLayer {
    fn new(name: usize, forward: Duration) -> Self {
        let tensor = TensorEntry {
            name: format!("layer{name}.weight"),
            shape: vec![64],
            dtype: DType::F32,
            role: Role::Parameter,
            part: None,
        };
        Self {
            facts: LayerFacts::new(
                StateLayout {
                    tensors: vec![tensor],
                },
                engine_name(),
            ),
            forward,
        }
    }
}

impl Layer for SleepingLayer {
    fn facts(&self) -> &LayerFacts {
        &self.facts
    }

    fn set(&mut self, _: LayerSetting<'_>) {}

    fn state(&mut self, _: StateChange<'_>) {}

    fn save(&self, _: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        let _ = (state, ranges);
        true
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for _ in &shards {
            sleep(self.forward);
        }
        Ok(shards.into_iter().map(|shard| shard.input).collect())
    }

    fn backward(
        &mut self,
        mut shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        for given in &mut shards {
            let times = if pass.part == BackwardPart::Whole {
                2
            } else {
                1
            };
            sleep(self.forward * times);
            if pass.part != BackwardPart::Input {
                for range in pass.ranges {
                    given.gradients[range.clone()].fill(0.0);
                }
            }
        }
        let of_input = |given: ShardGradient<'_>| Some(given.grad_output);
        Ok(shards.into_iter().map(of_input).collect())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        LayerCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        }
    }
}

/// Runs the steps of one rank; rank 0 prints the seconds of a step and the idle seconds of all ranks, one line for each step.
fn run_rank(settings: &Settings, rank: usize) -> ExampleResult<()> {
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    writeln!(io::stdout(), "{at}")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let peers: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
    let mut config = GroupConfig::new("bubble", "bubble", GroupRank(rank as u32));
    config.security = Security::Plain;
    let group = Arc::new(ProcessGroup::connect(config, listener, &peers?)?);
    let stages = settings.stages();
    let layers = (0..stages.len()).map(|index| -> Box<dyn Layer> {
        Box::new(SleepingLayer::new(index, settings.of_layer()))
    });
    let chain = Chain::new(layers.collect())?;
    let layout =
        StepLayout::pipelines(settings.ranks, settings.shards, stages).ok_or("no layout")?;
    let loss = CrossEntropy { classes: 2 };
    let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "sgd"}"#)?;
    let mut config = SynchronousConfig::new(optimizer, Arc::new(loss));
    config.schedule = settings.schedule;
    config.sample_shape = vec![2];
    config.shard_samples_max = 1;
    let seeds = SeedTree::new(1);
    let mut strategy =
        SynchronousStrategy::new(chain, group.clone(), layout.clone(), seeds, config);
    strategy.enter(group.clone(), layout.clone())?;
    for step in 0..settings.steps + 1 {
        let batches = layout.loads(group.rank()).map(|shard| MicroBatch {
            shard: Shard(shard),
            shape: vec![1, 2],
            features: vec![0.5, -0.5],
            labels: vec![0],
        });
        let batches = batches.collect();
        group.barrier()?;
        let (begun, slept) = (STARTED.elapsed(), SLEPT_NS.load(Ordering::Relaxed));
        strategy.backward(Step(step), batches)?;
        let computed = STARTED.elapsed();
        drop(strategy.reduce()?);
        let took = (STARTED.elapsed() - begun).as_secs_f64();
        let slept = (SLEPT_NS.load(Ordering::Relaxed) - slept) as f64 / 1e9;
        let all = group.all_gather(&[took, slept, (computed - begun).as_secs_f64()])?;
        // The first step opens connections.
        if rank == 0 && step > 0 {
            let step_s = all.chunks_exact(3).map(|rank| rank[0]).fold(0.0, f64::max);
            let idle = all
                .chunks_exact(3)
                .map(|rank| (step_s - rank[1]).to_string());
            let idle: Vec<String> = idle.collect();
            writeln!(io::stdout(), "{step_s} {}", idle.join(" "))?;
        }
    }
    Ok(())
}

/// Starts the ranks, connects them through this process, and returns the lines of rank 0.
fn run_all(settings: &Settings, words: &[String]) -> ExampleResult<Vec<Vec<f64>>> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for rank in 0..settings.ranks {
        let mut command = Command::new(&program);
        command.arg(format!("rank={rank}")).args(words);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        children.push(piped.spawn()?);
    }
    let mut outputs = Vec::new();
    let mut addresses = String::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        output.read_line(&mut addresses)?;
        outputs.push(output);
    }
    let line = addresses.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    for child in &mut children {
        let mut input = child.stdin.take().ok_or("no input")?;
        input.write_all(line.as_bytes())?;
    }
    let mut lines = Vec::new();
    for line in outputs.remove(0).lines() {
        let numbers: Result<Vec<f64>, _> = line?.split(' ').map(str::parse).collect();
        lines.push(numbers?);
    }
    for (rank, mut child) in children.into_iter().enumerate() {
        if !child.wait()?.success() {
            return Err(format!("rank {rank} failed").into());
        }
    }
    Ok(lines)
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let settings = Settings::of(&words)?;
    if let Some(rank) = words.iter().find_map(|word| word.strip_prefix("rank=")) {
        return run_rank(&settings, rank.parse()?);
    }
    let mut lines = run_all(&settings, &words)?;
    lines.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let median = &lines[lines.len() / 2];
    let (step_s, idle) = (median[0], &median[1..]);
    let ideal_s = settings.timeline()?;
    let formula = settings.formula() * ideal_s;
    let worst = idle
        .iter()
        .map(|idle| (idle - formula).abs())
        .fold(0.0, f64::max);
    writeln!(
        io::stdout(),
        "step {:.1} ms, timeline {:.1} ms ({:+.1} %); idle {:.1} to {:.1} ms, formula {:.1} ms: at most {:.1} % of the step apart",
        step_s * 1e3,
        ideal_s * 1e3,
        (step_s / ideal_s - 1.0) * 100.0,
        idle.iter().copied().fold(f64::INFINITY, f64::min) * 1e3,
        idle.iter().copied().fold(0.0, f64::max) * 1e3,
        formula * 1e3,
        worst / step_s * 100.0,
    )?;
    Ok(())
}
