//! Stages that update with predicted gradients against a 1F1B pipeline with as many micro-batches as stages, on digits.
//!
//! `predicted_stages [ranks=4] [ms=8] [epochs=2] [delay=2] [seed=42]`. The model is a real perceptron with a layer for each stage. Each layer also waits: for `ms`
//! milliseconds in the forward pass of a batch and twice as long in its backward pass, in proportion to the samples of a micro-batch, so that
//! many workers fit on a few cores. Ranks are threads that exchange bytes as processes do. Prints for both: the share of the time for which
//! the layers of a rank were asked to wait, which is the same for all ranks up to the duration of the run, the time of a batch, and the accuracy on
//! the test set.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::{Event, GroupRank, Tracker, WorldSize};
use ronde_data::OpenContext;
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, DiscardedShards, EngineError, Layer, LayerCost,
    LayerExt, LayerFacts, LayerSetting, Mode, SavedValues, ShardGradient, ShardInput, ShardSums,
    StateChange,
};
use ronde_train::{JobGroup, Plan, RunConfig, Training};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The samples of a batch.
const BATCH: u64 = 16;
/// The batches of an epoch, which is a round.
const ROUND: u64 = 90;

/// Waits, and adds the requested duration to `waited`: a late end is not time that a layer needs.
#[expect(
    clippy::disallowed_methods,
    reason = "a layer of a known duration is what is measured"
)]
fn wait(duration: Duration, waited: &AtomicU64) {
    thread::sleep(duration);
    waited.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
}

/// A layer that waits besides computing.
struct WaitingLayer {
    inner: Box<dyn Layer>,
    /// The duration of the forward pass of one sample.
    each: Duration,
    waited: Arc<AtomicU64>,
}

impl Layer for WaitingLayer {
    fn facts(&self) -> &LayerFacts {
        self.inner.facts()
    }

    fn set(&mut self, setting: LayerSetting<'_>) {
        self.inner.set(setting);
    }

    fn state(&mut self, change: StateChange<'_>) {
        self.inner.state(change);
    }

    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        self.inner.save(which, state, ranges)
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for shard in shards
            .iter()
            .filter(|shard| shard.context.mode == Mode::Train)
        {
            wait(self.each * shard.input.samples() as u32, &self.waited);
        }
        self.inner.forward(shards, sums)
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        if pass.part == BackwardPart::Whole {
            for given in &shards {
                wait(
                    self.each * 2 * given.grad_output.samples() as u32,
                    &self.waited,
                );
            }
        }
        self.inner.backward(shards, pass, sums)
    }

    fn discard(&mut self, which: DiscardedShards) {
        self.inner.discard(which);
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        self.inner.cost(input_shape)
    }
}

/// The settings of a comparison.
#[derive(Debug, Clone, Copy)]
struct Compared {
    ranks: u32,
    ms: f64,
    epochs: u64,
    delay: u64,
    seed: u64,
}

/// Records nothing.
struct NoTracker;

impl Tracker for NoTracker {
    fn record(&self, _: Event) {}
}

/// The result of a rank.
struct Outcome {
    /// The share of the time for which its layers were to wait.
    busy: f64,
    batch_s: f64,
    accuracy: f64,
}

fn run_file(compared: Compared, is_predicted: bool) -> ExampleResult<RunConfig> {
    let Compared {
        ranks,
        epochs,
        delay,
        seed,
        ..
    } = compared;
    let hidden = vec!["96"; ranks as usize - 1].join(", ");
    let kind = match is_predicted {
        true => format!(
            "[sync]\nkind = 'synthetic_gradients'\nstages = {ranks}\nround_steps = {ROUND}\ngradient_delay = {delay}\n"
        ),
        false => format!("[parallel]\npipeline = {ranks}\n"),
    };
    let text = format!(
        "[run]\nname = 'stages'\nseed = {seed}\n[data]\nsource = 'digits'\n[model]\nkind = 'mlp'\nhidden = [{hidden}]\n\
         [optimizer]\nkind = 'adam'\n[train]\nepochs = {epochs}\nglobal_batch_size = {BATCH}\nlearning_rate = 0.001\n\
         [schedule]\nkind = 'cosine'\nwarmup_steps = 20\n[workers]\ncount = {ranks}\nlogical_shards = {ranks}\n{kind}"
    );
    Ok(toml::from_str(&text)?)
}

fn run_rank(
    (compared, is_predicted): (Compared, bool),
    rank: u32,
    listener: TcpListener,
    peers: &[SocketAddr],
) -> ExampleResult<Outcome> {
    let config = run_file(compared, is_predicted)?;
    let context = OpenContext::new(".".as_ref(), config.run.seed);
    let split = ronde_data::open(&config.data, &context)?;
    let size = WorldSize::new(compared.ranks).ok_or("no workers")?;
    let mut plan = Plan::resolve(&config, size, &*split.train)?;
    let description = split.train.description();
    let (shape, classes) = (&description.shape, description.classes);
    let model = config.model.config.build(shape, classes, &plan.seeds)?;
    let waited = Arc::new(AtomicU64::new(0));
    let each = Duration::from_secs_f64(compared.ms * 1e-3 / BATCH as f64);
    let chain = model.wrapped(|_, inner| {
        Box::new(WaitingLayer {
            inner,
            each,
            waited: waited.clone(),
        })
    });
    plan.bind_model(chain.layout())?;
    let mut group = GroupConfig::new("stages", "stages", GroupRank(rank));
    group.security = Security::PlainLoopbackOnly;
    group.timeout = Duration::from_secs(300);
    let group = ProcessGroup::connect(group, listener, peers)?;
    let member = JobGroup::of(Arc::new(group), Arc::new(NoTracker));
    let trained = Training::new(member, plan, chain, split)?.run()?;
    let accuracy = trained
        .evaluation
        .and_then(|found| found.metric("accuracy"));
    let batches = compared.epochs * ROUND;
    Ok(Outcome {
        busy: waited.load(Ordering::Relaxed) as f64 * 1e-9 / trained.duration_s,
        batch_s: trained.duration_s / batches as f64,
        accuracy: accuracy.unwrap_or(f64::NAN),
    })
}

fn run(compared: Compared, is_predicted: bool) -> ExampleResult<Vec<Outcome>> {
    let ends = (0..compared.ranks).map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let ends: Vec<(TcpListener, SocketAddr)> = ends.collect::<Result<_, _>>()?;
    let peers: Vec<SocketAddr> = ends.iter().map(|(_, address)| *address).collect();
    let peers = &peers;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..compared.ranks)
            .zip(ends)
            .map(|(rank, (listener, _))| {
                scope.spawn(move || run_rank((compared, is_predicted), rank, listener, peers))
            })
            .collect();
        let outcomes = threads.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err("a rank has panicked".into()),
        });
        outcomes.collect()
    })
}

fn main() -> ExampleResult<()> {
    let argument = |name: &str, usual: f64| {
        let mut given = std::env::args().skip(1);
        let value = given.find_map(|text| text.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        value.unwrap_or(usual)
    };
    let compared = Compared {
        ranks: argument("ranks", 4.0) as u32,
        ms: argument("ms", 8.0),
        epochs: argument("epochs", 2.0) as u64,
        delay: argument("delay", 2.0) as u64,
        seed: argument("seed", 42.0) as u64,
    };
    let mut out = io::stdout();
    for (name, is_predicted) in [("1F1B", false), ("synthetic gradients", true)] {
        let outcomes = run(compared, is_predicted)?;
        let busy = outcomes.iter().map(|outcome| 100.0 * outcome.busy);
        let batch_s = outcomes.iter().map(|outcome| outcome.batch_s);
        let accuracies = outcomes.iter().map(|outcome| outcome.accuracy);
        writeln!(
            out,
            "{name}: {} workers, busy {:.1} to {:.1} % of the time, {:.1} ms for each batch, accuracy {:.4}",
            compared.ranks,
            busy.clone().fold(100.0, f64::min),
            busy.fold(0.0, f64::max),
            1e3 * batch_s.fold(0.0, f64::max),
            accuracies.fold(f64::NAN, f64::max)
        )?;
    }
    Ok(())
}
