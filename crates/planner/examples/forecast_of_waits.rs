//! Compares forecasts with real runs whose layers wait for known times, so that any number of ranks fits on a few cores.
//!
//! `forecast_of_waits [models=8] [layouts=5] [seed=1] [steps=10]`: draws models (layers, durations, elements, borders) and numbers
//! of ranks by the seed, and layouts of each. The forecasts of a model are printed before its runs begin. Everything but the
//! computation is real: the training loop, sums, borders, votes and updates. Ranks are threads that exchange bytes as processes do.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{DType, Event, GroupRank, Tracker, WorldSize};
use ronde_data::{OpenContext, Split};
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, Chain, EngineError, Layer, LayerCost, LayerFacts,
    LayerSetting, SavedValues, ShardGradient, ShardInput, ShardSums, StateChange, engine_name,
};
use ronde_parallel::{ModelState, bucket};
use ronde_planner::{
    BucketShape, ChoiceLimits, ClusterShape, CollectiveTimes, HostLink, LayerCosts,
    LayoutCandidate, LayoutChoice, LinkCosts, ModelCosts, PassCosts, RegionShape, StepRequest,
    WorkerCosts, forecast, layout_choices,
};
use ronde_train::{JobGroup, LinkTimes, ModelParts, Plan, RunConfig, Training};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SHARDS: u32 = 8;
const CLASSES: usize = 10;
const BUCKET_BYTES: usize = 4 << 20;
/// The steps that are not measured.
const WARM_UP: usize = 3;

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a layer of a known duration is what is measured"
)]
fn wait(duration: Duration) {
    thread::sleep(duration);
}

/// The properties of a layer that waits.
#[derive(Debug, Clone)]
struct WaitShape {
    name: String,
    forward: Duration,
    elements: usize,
    inputs: usize,
    outputs: usize,
}

/// A layer that takes a known time, and twice that for the backward pass.
struct WaitingLayer {
    shape: WaitShape,
    facts: LayerFacts,
}

impl WaitingLayer {
    fn new(shape: WaitShape) -> Self {
        let tensor = TensorEntry {
            name: format!("{}.weight", shape.name),
            shape: vec![shape.elements],
            dtype: DType::F32,
            role: Role::Parameter,
            part: None,
        };
        Self {
            facts: LayerFacts {
                is_suspendable: true,
                ..LayerFacts::new(
                    StateLayout {
                        tensors: vec![tensor],
                    },
                    engine_name(),
                )
            },
            shape,
        }
    }
}

fn constant(samples: usize, width: usize) -> Activation {
    Activation::from_host(&[samples, width], vec![0.1; samples * width])
}

impl Layer for WaitingLayer {
    fn facts(&self) -> &LayerFacts {
        &self.facts
    }

    fn set(&mut self, _: LayerSetting<'_>) {}

    fn state(&mut self, _: StateChange<'_>) {}

    fn save(&self, _: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        for range in ranges {
            state[range.clone()].fill(0.5);
        }
        true
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let waited = |shard: ShardInput| {
            wait(self.shape.forward);
            constant(shard.input.samples(), self.shape.outputs)
        };
        Ok(shards.into_iter().map(waited).collect())
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
            wait(self.shape.forward * times);
            if pass.part != BackwardPart::Input {
                for range in pass.ranges {
                    given.gradients[range.clone()].fill(1e-3);
                }
            }
        }
        let of_input = |given: ShardGradient<'_>| {
            Some(constant(given.grad_output.samples(), self.shape.inputs))
        };
        Ok(shards.into_iter().map(of_input).collect())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        LayerCost {
            output_shape: vec![input_shape[0], self.shape.outputs],
            kept_floats: 0,
        }
    }
}

/// Numbers drawn from a seed.
struct Draws(ronde_core::philox::Stream, u64);

impl Draws {
    /// Returns a number from 0 up to below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.1 += 1;
        self.0.block(self.1)[0] as usize % end.max(1)
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.below(10_000) as f64 / 1e4
    }
}

fn draw_model(draws: &mut Draws) -> Vec<WaitShape> {
    let count = 4 + draws.below(9);
    let mut inputs = 64;
    let shapes = (0..count).map(|index| {
        let outputs = if index + 1 == count {
            CLASSES
        } else {
            1 << (4 + draws.below(13))
        };
        let shape = WaitShape {
            name: format!("layer{index}"),
            forward: Duration::from_secs_f64(draws.between(1e-3, 4e-3)),
            elements: 10_f64.powf(draws.between(3.0, 5.5)) as usize,
            inputs,
            outputs,
        };
        inputs = outputs;
        shape
    });
    shapes.collect()
}

fn chain(model: &[WaitShape]) -> ExampleResult<Chain> {
    let layers = model
        .iter()
        .map(|shape| -> Box<dyn Layer> { Box::new(WaitingLayer::new(shape.clone())) });
    Ok(Chain::new(layers.collect())?)
}

fn run_file(choice: &LayoutChoice, steps: usize) -> ExampleResult<RunConfig> {
    let schedule = ronde_planner::choice::name_of(choice.schedule);
    let mut text = format!(
        "[run]\nname = 'waits'\n[data]\nsource = 'digits'\n[model]\nkind = 'linear'\n[optimizer]\nkind = 'adamw'\n\
         [train]\nsteps = {steps}\nglobal_batch_size = {SHARDS}\n[comm]\nbucket_bytes_max = {BUCKET_BYTES}\n\
         [workers]\ncount = {}\nlogical_shards = {SHARDS}\n[parallel]\nzero = {}\npipeline = {}\nschedule = '{schedule}'\n",
        choice.workers(),
        choice.zero,
        choice.pipeline,
    );
    if choice.is_held_once() {
        text.push_str(&format!("copies = {}\n", choice.copies));
    }
    Ok(toml::from_str(&text)?)
}

fn planned(
    choice: &LayoutChoice,
    model: &[WaitShape],
    steps: usize,
) -> ExampleResult<(Plan, Chain, Split)> {
    let config = run_file(choice, steps)?;
    let context = OpenContext::new(".".as_ref(), config.run.seed);
    let mut split = ronde_data::open(&config.data, &context)?;
    split.test = None;
    let size = WorldSize::new(choice.workers()).ok_or("no workers")?;
    let mut plan = Plan::resolve(&config, size, &*split.train)?;
    let chain = chain(model)?;
    plan.bind_own_model(&chain)?;
    Ok((plan, chain, split))
}

/// Returns the layout of a choice, if the model allows it.
fn candidate(choice: &LayoutChoice, model: &[WaitShape]) -> Option<LayoutCandidate> {
    let (plan, mut chain, split) = planned(choice, model, 1).ok()?;
    plan.check_workers(WorldSize::new(choice.workers())?).ok()?;
    let regions = ModelState::outline(&chain).regions().to_vec();
    let parts = ModelParts::of(&plan, &mut chain, &*split.train).ok()?;
    let layout = parts.layout(SHARDS, choice.workers() as usize).ok()?;
    let buckets = bucket::plan(&regions, layout.stages(), BUCKET_BYTES).into_iter();
    let buckets = buckets.map(|bucket| BucketShape {
        stage: bucket.stage,
        layers: bucket.layers,
        regions: vec![RegionShape {
            elements: bucket.elements.len(),
            slices: Vec::new(),
        }],
    });
    Some(LayoutCandidate {
        choice: *choice,
        buckets: buckets.collect(),
        recomputed: 0..0,
        memory_bytes: vec![0; layout.columns()],
        layout,
    })
}

/// Collects the times of steps.
#[derive(Default)]
struct StepTimes(Mutex<Vec<f64>>);

impl Tracker for StepTimes {
    fn record(&self, event: Event) {
        if let Event::StepCommitted { duration_s, .. } = event {
            let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            times.push(duration_s);
        }
    }
}

fn run_rank(
    (choice, model, steps): (&LayoutChoice, &[WaitShape], usize),
    rank: usize,
    listener: TcpListener,
    peers: &[SocketAddr],
) -> ExampleResult<Vec<f64>> {
    let (plan, chain, split) = planned(choice, model, steps + WARM_UP)?;
    let mut config = GroupConfig::new("waits", "waits", GroupRank(rank as u32));
    config.security = Security::PlainLoopbackOnly;
    let group = match choice.workers() {
        1 => ProcessGroup::alone(config),
        _ => ProcessGroup::connect(config, listener, peers)?,
    };
    let times = Arc::<StepTimes>::default();
    let member = JobGroup::of(Arc::new(group), times.clone());
    Training::new(member, plan, chain, split)?.run()?;
    let times = times.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(times.clone())
}

/// Trains with a layout, and returns the median seconds of a step.
fn measured(choice: &LayoutChoice, model: &[WaitShape], steps: usize) -> ExampleResult<f64> {
    let ends = (0..choice.workers()).map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let ends: Vec<(TcpListener, SocketAddr)> = ends.collect::<Result<_, _>>()?;
    let peers: Vec<SocketAddr> = ends.iter().map(|(_, address)| *address).collect();
    let peers = &peers;
    let ranks = thread::scope(|scope| {
        let ranks = ends.into_iter().enumerate().map(|(rank, (listener, _))| {
            scope.spawn(move || run_rank((choice, model, steps), rank, listener, peers))
        });
        let ranks: Vec<_> = ranks.collect();
        let joined = ranks.into_iter().map(|rank| {
            rank.join()
                .unwrap_or_else(|_| Err("a rank has panicked".into()))
        });
        joined.collect::<ExampleResult<Vec<Vec<f64>>>>()
    })?;
    let first = ranks.into_iter().find(|times| !times.is_empty());
    let mut times = first.ok_or("no step was recorded")?;
    times.drain(..WARM_UP.min(times.len() - 1));
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns the median excess of a wait over the request.
fn lateness_s() -> f64 {
    let requested = Duration::from_millis(2);
    let late = (0..40).map(|_| {
        let begun = now();
        wait(requested);
        (begun.elapsed() - requested).as_secs_f64()
    });
    let mut late: Vec<f64> = late.collect();
    late.sort_by(f64::total_cmp);
    late[late.len() / 2]
}

/// Returns the costs of a model whose waits are known. The rest of a step is measured on one rank without waits.
fn costs(model: &[WaitShape]) -> ExampleResult<ModelCosts> {
    let late_s = lateness_s();
    let layers = model.iter().map(|shape| {
        let wait_s = shape.forward.as_secs_f64() + late_s;
        LayerCosts {
            name: shape.name.clone(),
            elements: shape.elements,
            output_bytes: 4 * shape.outputs,
            passes: PassCosts {
                forward_s: wait_s,
                backward_s: 2.0 * wait_s,
                backward_weights_s: wait_s,
            },
            ..LayerCosts::default()
        }
    });
    let without = |shapes: &[WaitShape]| {
        let shapes = shapes.iter().map(|shape| WaitShape {
            forward: Duration::ZERO,
            ..shape.clone()
        });
        shapes.collect::<Vec<_>>()
    };
    // A wait of zero returns at once.
    let whole_s = measured(&LayoutChoice::ONE, &without(model), 20)?;
    let small: Vec<WaitShape> = model
        .iter()
        .map(|shape| WaitShape {
            elements: 1,
            ..shape.clone()
        })
        .collect();
    let step_s = measured(&LayoutChoice::ONE, &without(&small), 20)?;
    let elements: usize = model.iter().map(|shape| shape.elements).sum();
    // The gradients of all shards are written, and all but one are added; the update takes the rest.
    let element_s = (whole_s - step_s).max(0.0) / elements as f64;
    let share = 1.0 / f64::from(SHARDS);
    Ok(ModelCosts {
        layers: layers.collect(),
        step_s,
        add_element_s: element_s * 0.5 * share,
        update_element_s: element_s * 0.5,
        ..ModelCosts::default()
    })
}

/// One layout with its forecast and its measurement, in seconds.
struct Compared {
    forecast_s: f64,
    measured_s: f64,
}

/// Returns the layouts of a number of ranks on one host.
fn choices_of(ranks: u32, layers: u32) -> Vec<LayoutChoice> {
    let mut choices = layout_choices(&ChoiceLimits {
        workers_per_host: ranks,
        hosts: 1,
        shards: SHARDS,
        pipeline_max: layers,
        interleaved_max: layers / 2,
        parts: 1,
        zero_max: 3,
        has_orders: true,
    });
    choices.retain(|choice| choice.workers() == ranks);
    choices
}

fn run_model(draws: &mut Draws, layouts: usize, steps: usize) -> ExampleResult<Vec<Compared>> {
    let model = draw_model(draws);
    let ranks = [2, 3, 4, 6, 8][draws.below(5)];
    let mut choices = choices_of(ranks, model.len() as u32);
    let worker = WorkerCosts {
        alone: costs(&model)?,
        crowded: None,
        alone_share: 1.0,
    };
    let config = run_file(&LayoutChoice::ONE, 1)?;
    let links = LinkTimes::measure(&config.comm)?;
    let (message_s, byte_s) = (links.message_s, links.message_byte_s);
    let links = LinkCosts::new(links.collectives, message_s, byte_s, HostLink::default());
    let collectives = CollectiveTimes::new(links, None);
    let request = StepRequest {
        worker: &worker,
        links: &links,
        collectives: &collectives,
        algorithm: None,
        // A core besides those that wait.
        cluster: ClusterShape {
            hosts: 1,
            cores: ranks + 1,
            memory_bytes: u64::MAX,
            link: HostLink::default(),
            price_per_hour: None,
        },
        threads: 1,
        in_lock_step: false,
        sums_in_passes: 0,
        has_trust_ratios: false,
        hash_parts: config.check.weight_hash_parts.into(),
        crowded_s: 0.0,
    };
    let mut output = io::stdout();
    let mut drawn = Vec::new();
    while drawn.len() < layouts && !choices.is_empty() {
        let choice = choices.swap_remove(draws.below(choices.len()));
        if let Some(candidate) = candidate(&choice, &model) {
            let found = forecast(&candidate, &request)?;
            writeln!(
                output,
                "{} layers, {choice}: forecast {:.2} ms",
                model.len(),
                found.step_s * 1e3
            )?;
            drawn.push((choice, found.step_s));
        }
    }
    let mut compared = Vec::new();
    for (choice, forecast_s) in drawn {
        let measured_s = measured(&choice, &model, steps)?;
        let error = 100.0 * (forecast_s / measured_s - 1.0);
        writeln!(
            output,
            "  {choice}: measured {:.2} ms, forecast {error:+.1} %",
            measured_s * 1e3
        )?;
        compared.push(Compared {
            forecast_s,
            measured_s,
        });
    }
    Ok(compared)
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let value = words
            .iter()
            .find_map(|word| word.strip_prefix(&format!("{name}=")));
        value.map_or(Ok(default), str::parse)
    };
    let (models, layouts) = (number("models", 8)?, number("layouts", 5)? as usize);
    let (seed, steps) = (number("seed", 1)?, number("steps", 10)? as usize);
    let mut draws = Draws(
        SeedTree::new(seed).named(Purpose::InitialWeights, "waits"),
        0,
    );
    let (mut errors, mut right) = (Vec::new(), 0);
    for _ in 0..models {
        let compared = run_model(&mut draws, layouts, steps)?;
        let least_s = compared
            .iter()
            .map(|one| one.measured_s)
            .fold(f64::INFINITY, f64::min);
        let chosen = compared
            .iter()
            .min_by(|a, b| a.forecast_s.total_cmp(&b.forecast_s));
        right += u64::from(chosen.is_some_and(|one| one.measured_s <= 1.05 * least_s));
        errors.extend(
            compared
                .iter()
                .map(|one| (one.forecast_s / one.measured_s - 1.0).abs()),
        );
    }
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| 100.0 * errors[((errors.len() - 1) as f64 * share).round() as usize];
    writeln!(
        io::stdout(),
        "{} runs: error of the forecast: median {:.1} %, 90th percentile {:.1} %, largest {:.1} %; the layout with the shortest \
         forecast is within 5 % of the fastest in {right} of {models} models",
        errors.len(),
        at(0.5),
        at(0.9),
        at(1.0)
    )?;
    Ok(())
}
