//! One of four workers is slowed five times: training in every step against parameter servers and gossip.
//!
//! `slow_worker [slow=5] [sample_ms=2] [epochs=10] [batch=8]`. The model is real; a layer in front of it waits for a time in
//! proportion to the samples, so that four workers fit on a few cores. Ranks are threads that exchange bytes as processes do.
//! Prints, for each kind of run without and with the slow worker: samples per second, those of the workers that are not slow
//! compared with the same run without a slow worker, the staleness, the distance of replicas, and the accuracy on the test set.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::layout::StateLayout;
use ronde_core::staleness::WorkerStaleness;
use ronde_core::{Event, GroupRank, Tracker, WorldSize};
use ronde_data::OpenContext;
use ronde_engine::{
    Activation, BackwardPass, Chain, EngineError, Layer, LayerCost, LayerFacts, LayerSetting,
    SavedValues, ShardGradient, ShardInput, ShardSums, StateChange, engine_name,
};
use ronde_train::{JobGroup, Plan, RunConfig, Training};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The number of workers that compute. The last one is slow.
const WORKERS: u32 = 4;

#[expect(
    clippy::disallowed_methods,
    reason = "a layer of a known duration is what is measured"
)]
fn wait(duration: Duration) {
    thread::sleep(duration);
}

/// A layer that waits in proportion to its samples, and changes nothing.
struct WaitingFront {
    facts: LayerFacts,
    each: Duration,
}

impl Layer for WaitingFront {
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
        let waited = |shard: ShardInput| {
            if shard.context.mode == ronde_engine::Mode::Train {
                wait(self.each * shard.input.samples() as u32);
            }
            shard.input
        };
        Ok(shards.into_iter().map(waited).collect())
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let _ = pass;
        Ok(shards.iter().map(|_| None).collect())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        LayerCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        }
    }
}

/// The settings of a comparison.
#[derive(Debug, Clone, Copy)]
struct Compared {
    slow: f64,
    sample_ms: f64,
    epochs: u64,
    batch: u64,
}

/// How the workers of a run exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunKind {
    EveryStep,
    Served,
    Gossip,
}

/// Collects the staleness of all rounds; for gossip, the updates of each worker and the distance of the last round.
#[derive(Default)]
struct Rounds(Mutex<Vec<WorkerStaleness>>, Mutex<f64>);

impl Tracker for Rounds {
    fn record(&self, event: Event) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Staleness { workers, .. } => all.extend(workers),
            Event::ReplicasAveraged {
                updates, distance, ..
            } => {
                let each = (0..).zip(updates).map(|(rank, updates)| WorkerStaleness {
                    rank,
                    counts: vec![updates],
                });
                all.extend(each);
                *self.1.lock().unwrap_or_else(PoisonError::into_inner) = distance;
            }
            _ => {}
        }
    }
}

/// The result of a run.
struct Outcome {
    samples_per_s: f64,
    /// The samples per second of each worker that is not slow.
    each_per_s: f64,
    staleness: f64,
    stalest: u64,
    distance: f64,
    accuracy: f64,
}

fn run_file(compared: Compared, kind: RunKind) -> ExampleResult<RunConfig> {
    let Compared { epochs, batch, .. } = compared;
    let per_round = 1437 / batch;
    let sync = match kind {
        RunKind::Served => {
            format!("[sync]\nkind = 'parameter_server'\nround_updates = {per_round}\n")
        }
        RunKind::Gossip => format!("[sync]\nkind = 'gossip'\nround_updates = {per_round}\n"),
        RunKind::EveryStep => String::new(),
    };
    let shards = match kind {
        RunKind::EveryStep => WORKERS,
        RunKind::Served | RunKind::Gossip => 1,
    };
    let text = format!(
        "[run]\nname = 'slow'\n[data]\nsource = 'digits'\n[model]\nkind = 'digits_cnn'\nchannels = 6\n[optimizer]\nkind = 'adam'\n\
         [train]\nepochs = {epochs}\nglobal_batch_size = {batch}\nlearning_rate = 0.001\n[schedule]\nkind = 'cosine'\nwarmup_steps = 20\n\
         [workers]\nlogical_shards = {shards}\n{sync}"
    );
    Ok(toml::from_str(&text)?)
}

fn run_rank(
    (compared, kind, is_slow): (Compared, RunKind, bool),
    (rank, ranks): (u32, u32),
    listener: TcpListener,
    peers: &[SocketAddr],
) -> ExampleResult<Outcome> {
    let config = run_file(compared, kind)?;
    let context = OpenContext::new(".".as_ref(), config.run.seed);
    let split = ronde_data::open(&config.data, &context)?;
    let size = WorldSize::new(ranks).ok_or("no workers")?;
    let mut plan = Plan::resolve(&config, size, &*split.train)?;
    let description = split.train.description();
    let (shape, classes) = (&description.shape, description.classes);
    let model = config.model.config.build(shape, classes, &plan.seeds)?;
    let factor = match is_slow && rank + 1 == WORKERS {
        true => compared.slow,
        false => 1.0,
    };
    let front = WaitingFront {
        facts: LayerFacts::new(StateLayout::default(), engine_name()),
        each: Duration::from_secs_f64(factor * compared.sample_ms * 1e-3),
    };
    let chain = Chain::new(vec![Box::new(front), Box::new(model)])?;
    plan.bind_own_model(&chain)?;
    let mut group = GroupConfig::new("slow", "slow", GroupRank(rank));
    group.security = Security::PlainLoopbackOnly;
    group.timeout = Duration::from_secs(300);
    let group = ProcessGroup::connect(group, listener, peers)?;
    let rounds = Arc::<Rounds>::default();
    let member = JobGroup::of(Arc::new(group), rounds.clone());
    let trained = Training::new(member, plan, chain, split)?.run()?;
    let workers = rounds.0.lock().unwrap_or_else(PoisonError::into_inner);
    let fast = workers.iter().filter(|worker| worker.rank + 1 < WORKERS);
    let updates: u64 = fast.map(WorkerStaleness::updates).sum();
    let all: u64 = workers.iter().map(WorkerStaleness::updates).sum();
    let weighted = workers
        .iter()
        .map(|worker| worker.mean() * worker.updates() as f64);
    let samples_per_s = trained.samples as f64 / trained.duration_s;
    let fast_share = match kind {
        RunKind::Served | RunKind::Gossip => updates as f64 / all.max(1) as f64,
        RunKind::EveryStep => f64::from(WORKERS - 1) / f64::from(WORKERS),
    };
    let distance = *rounds.1.lock().unwrap_or_else(PoisonError::into_inner);
    let accuracy = trained
        .evaluation
        .and_then(|found| found.metric("accuracy"));
    Ok(Outcome {
        samples_per_s,
        each_per_s: samples_per_s * fast_share / f64::from(WORKERS - 1),
        staleness: weighted.sum::<f64>() / all.max(1) as f64,
        stalest: workers.iter().map(WorkerStaleness::most).max().unwrap_or(0),
        distance,
        accuracy: accuracy.unwrap_or(f64::NAN),
    })
}

fn run(compared: Compared, kind: RunKind, is_slow: bool) -> ExampleResult<Outcome> {
    let ranks = WORKERS + u32::from(kind == RunKind::Served);
    let ends = (0..ranks).map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let ends: Vec<(TcpListener, SocketAddr)> = ends.collect::<Result<_, _>>()?;
    let peers: Vec<SocketAddr> = ends.iter().map(|(_, address)| *address).collect();
    let peers = &peers;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .zip(ends)
            .map(|(rank, (listener, _))| {
                let settings = (compared, kind, is_slow);
                scope.spawn(move || run_rank(settings, (rank, ranks), listener, peers))
            })
            .collect();
        let mut outcomes = threads.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err("a rank has panicked".into()),
        });
        // Rank 0 records the events.
        let first = outcomes.next().ok_or("no ranks")?;
        outcomes.collect::<Result<Vec<_>, _>>()?;
        first
    })
}

fn main() -> ExampleResult<()> {
    let argument = |name: &str, usual: f64| {
        let mut given = std::env::args().skip(1);
        let value = given.find_map(|text| text.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        value.unwrap_or(usual)
    };
    let compared = Compared {
        slow: argument("slow", 5.0),
        sample_ms: argument("sample_ms", 2.0),
        epochs: argument("epochs", 10.0) as u64,
        batch: argument("batch", 8.0) as u64,
    };
    let mut out = io::stdout();
    let mut sync_per_s = 0.0;
    for (name, kind) in [
        ("every step", RunKind::EveryStep),
        ("parameter servers", RunKind::Served),
        ("gossip", RunKind::Gossip),
    ] {
        let even = run(compared, kind, false)?;
        let slowed = run(compared, kind, true)?;
        for (which, outcome) in [("equal workers", &even), ("one slow worker", &slowed)] {
            writeln!(
                out,
                "{name}, {which}: {:.0} samples/s, each fast worker {:.0}, staleness {:.1} (at most {}), distance {:.4}, accuracy {:.4}",
                outcome.samples_per_s,
                outcome.each_per_s,
                outcome.staleness,
                outcome.stalest,
                outcome.distance,
                outcome.accuracy
            )?;
        }
        let kept = 100.0 * slowed.each_per_s / even.each_per_s;
        writeln!(out, "{name}: fast workers keep {kept:.1} % of their rate")?;
        if kind == RunKind::EveryStep {
            sync_per_s = slowed.samples_per_s;
            continue;
        }
        let ratio = slowed.samples_per_s / sync_per_s;
        writeln!(
            out,
            "with a slow worker, {name} trains {ratio:.2} times as fast as training in every step"
        )?;
    }
    Ok(())
}
