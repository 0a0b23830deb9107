//! What a program passes to a run: losses, metrics, learning rates, parameter groups and callbacks, with the same bits on
//! any number of ranks, and errors that name them.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_comm::testing::spawn_ranks;
use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::layout::{Arena, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Collectives, Event, GroupRank, Shard, Step, Tracker, WorldSize};
use ronde_data::OpenContext;
use ronde_engine::{
    Activation, BackwardPass, Chain, Device, EngineError, HostDevice, KernelCall, KernelObserver,
    Layer, LayerCost, LayerExt, LayerFacts, LayerSetting, LearningRate, Loss, LossOutput, Metric,
    ObservedDevice, Precision, Predictions, SavedValues, ShardGradient, ShardInput, ShardSums,
    StateChange, TopAccuracy,
};
use ronde_parallel::{HeldVector, MicroBatch, StepMethod, SynchronousConfig, SynchronousStrategy};
use ronde_store::LocalStore;
use ronde_train::callback::{Actions, EarlyStopping, StepReport};
use ronde_train::checkpoints::{Resume, RunCheckpoints};
use ronde_train::config::{Document, Override};
use ronde_train::evaluate::Evaluation;
use ronde_train::{
    Callback, JobGroup, ModelParts, Objective, Plan, RunConfig, TrainError, Training,
};

/// The watchdog's time limit.
const LIMIT: Duration = Duration::from_secs(60);

const RUN: &str = r#"
[data]
source = "synthetic_images"
samples = 60
test_samples = 70
shape = [1, 4, 4]
classes = 3
[model]
kind = "mlp"
hidden = [8]
[train]
steps = 12
global_batch_size = 16
"#;

fn config(text: &str, sets: &[&str]) -> RunConfig {
    let sets: Vec<Override> = sets
        .iter()
        .map(|set| Override::Set((*set).to_owned()))
        .collect();
    match Document::load(text, "test", &[], &sets) {
        Ok((config, _)) => config,
        Err(error) => panic!("{}", error.render(false)),
    }
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl Tracker for Recorder {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// The parts of a run that a test defines.
#[derive(Default)]
struct Parts {
    objective: Option<Objective>,
    learning_rate: Option<LearningRate>,
    callbacks: Vec<Box<dyn Callback>>,
    checkpoints: Option<RunCheckpoints>,
    device: Option<Arc<dyn Device>>,
}

/// The outcome of a run on one rank.
struct Outcome {
    /// Weights and optimizer state.
    bits: Vec<Vec<u32>>,
    names: Vec<String>,
    evaluation: Evaluation,
    steps: u64,
    identity: String,
    events: Vec<Event>,
}

fn train(config: &RunConfig, group: ProcessGroup, parts: Parts) -> Result<Outcome, TrainError> {
    let context = OpenContext::new(".".as_ref(), config.run.seed);
    let split = ronde_data::open(&config.data, &context)?;
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let mut plan = Plan::resolve(config, world_size, &*split.train)?;
    let description = split.train.description();
    let (shape, classes) = (&*description.shape, description.classes);
    let chain = config.model.config.build(shape, classes, &plan.seeds);
    let mut chain = chain.map_err(TrainError::Model)?;
    if let Some(device) = &parts.device {
        chain.set_device(device);
        plan.bind_own_model(&chain)?;
    }
    plan.bind_model(chain.layout())?;
    if let Some(objective) = parts.objective {
        plan.bind_objective(objective)?;
    }
    if let Some(learning_rate) = parts.learning_rate {
        plan.bind_learning_rate(learning_rate);
    }
    let identity = plan.identity.hex();
    let recorder = Arc::new(Recorder::default());
    let member = JobGroup::of(Arc::new(group), recorder.clone());
    let mut training = Training::new(member, plan, chain, split)?
        .with_callbacks(parts.callbacks)
        .with_checkpoints(parts.checkpoints, Resume::Never, Arc::default());
    let trained = training.run()?;
    let steps = training.steps();
    let replica = training.vectors();
    let bits = |run: &HeldVector<'_>| run.values.iter().map(|x| x.to_bits()).collect();
    let bits = replica.iter().map(bits).collect();
    let tensors = training.state().tensors().iter();
    let outcome = Outcome {
        bits,
        names: tensors.map(|tensor| tensor.entry.name.clone()).collect(),
        evaluation: trained.evaluation.unwrap(),
        steps,
        identity,
        events: std::mem::take(&mut *recorder.0.lock().unwrap()),
    };
    Ok(outcome)
}

/// Runs on some ranks, and returns the outcome of rank 0 after a comparison with the remaining ranks.
fn run_on(
    ranks: usize,
    config: &RunConfig,
    parts: impl Fn() -> Parts + Send + Sync + 'static,
) -> Outcome {
    let config = config.clone();
    let each = spawn_ranks(ranks, LIMIT, move |group| train(&config, group, parts()));
    let mut each = each.into_iter();
    let first = each.next().unwrap();
    assert!(each.all(|other| other.bits == first.bits && other.steps == first.steps));
    first
}

fn error_of(config: &RunConfig, parts: impl Fn() -> Parts + Send + Sync + 'static) -> TrainError {
    let config = config.clone();
    let mut errors = spawn_ranks(1, LIMIT, move |group| {
        Ok::<_, String>(train(&config, group, parts()).err())
    });
    errors.remove(0).expect("an error")
}

#[test]
fn a_program_can_train_on_a_device_of_its_own() {
    /// The names of the kernels that a run calls.
    #[derive(Default)]
    struct Called(Mutex<Vec<&'static str>>);

    impl KernelObserver for Called {
        fn begin(&self) {}

        fn end(&self, call: KernelCall) {
            self.0.lock().unwrap().push(call.kernel);
        }
    }

    let config = config(RUN, &[]);
    let called = Arc::new(Called::default());
    let observer = called.clone();
    let on_device = run_on(2, &config, move || {
        let host: Arc<dyn Device> = Arc::new(HostDevice::new());
        Parts {
            device: Some(Arc::new(ObservedDevice::new(host, observer.clone()))),
            ..Parts::default()
        }
    });
    assert_eq!(on_device.bits, run_on(2, &config, Parts::default).bits);
    // Three products of each of two layers but the gradient of the input, in twelve steps of two workers, whose shards may run
    // together.
    let products = called.0.lock().unwrap();
    let products = products
        .iter()
        .filter(|kernel| ["multiply", "multiply_shards"].contains(kernel));
    assert!(products.count() >= 12 * 5 * 2);
}

/// The squared distance of the outputs from a one-hot target; returns the value that a test is to break.
#[derive(Clone, Copy, Default)]
struct Brier {
    is_nan: bool,
    is_short: bool,
}

impl Loss for Brier {
    fn name(&self) -> String {
        "brier".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let mut total = LossOutput::default();
        for (outputs, targets) in predictions.samples() {
            for (class, output) in outputs.iter().enumerate() {
                let error = output - f32::from(u8::from(class == targets[0] as usize));
                total.loss_sum += f64::from(error * error);
                total.gradient.push(2.0 * error);
            }
        }
        if self.is_nan {
            total.loss_sum = f64::NAN;
        }
        if self.is_short {
            total.gradient.pop();
        }
        Ok(total)
    }
}

/// The largest output: three sums, one of them the count.
struct MeanOutput;

impl Metric for MeanOutput {
    fn name(&self) -> &str {
        "mean_output"
    }

    fn sums(&self) -> usize {
        3
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        for output in predictions.outputs() {
            sums[0] += f64::from(output.max(0.0));
            sums[1] += f64::from(output.min(0.0));
            sums[2] += 1.0;
        }
        Ok(())
    }

    fn value(&self, sums: &[f64]) -> f64 {
        (sums[0] + sums[1]) / sums[2]
    }
}

fn brier() -> Objective {
    let mut objective = Objective::new(Arc::new(Brier::default()));
    objective.add(Arc::new(MeanOutput));
    objective.add(Arc::new(TopAccuracy::new(3, 1)));
    objective
}

#[test]
fn an_own_loss_metrics_and_learning_rate_have_the_same_bits_on_any_number_of_ranks() {
    let parts = || Parts {
        objective: Some(brier()),
        learning_rate: Some(LearningRate::new("rising", |step: Step| {
            0.001 * (step.0 + 1) as f64
        })),
        ..Parts::default()
    };
    let run = config(RUN, &["train.evaluate_every_epochs=1"]);
    let one = run_on(1, &run, parts);
    let usual = run_on(1, &run, Parts::default);
    assert!(one.bits != usual.bits && one.identity != usual.identity);
    assert_eq!(
        usual.evaluation.metrics.keys().collect::<Vec<_>>(),
        ["accuracy"]
    );
    let names: Vec<&String> = one.evaluation.metrics.keys().collect();
    assert_eq!(names, ["accuracy", "mean_output"]);
    for ranks in [2, 3] {
        let other = run_on(ranks, &run, parts);
        assert_eq!(other.bits, one.bits, "{ranks} ranks");
        assert_eq!(other.evaluation, one.evaluation, "{ranks} ranks");
        assert_eq!(other.identity, one.identity);
    }
    let evaluated = one.events.iter().filter_map(|event| match event {
        Event::Evaluated { metrics, .. } => metrics.get("mean_output"),
        _ => None,
    });
    assert_eq!(evaluated.count(), 3);
    let rates = one.events.iter().filter_map(|event| match event {
        Event::StepCommitted { learning_rate, .. } => Some(*learning_rate),
        _ => None,
    });
    let expected: Vec<f64> = (1..=12).map(|step| 0.001 * f64::from(step)).collect();
    assert_eq!(rates.collect::<Vec<_>>(), expected);
}

#[test]
fn the_name_of_a_learning_rate_is_part_of_the_identity() {
    let named = |name: &'static str| {
        run_on(1, &config(RUN, &["train.steps=1"]), move || Parts {
            learning_rate: Some(LearningRate::new(name, |_| 0.1)),
            ..Parts::default()
        })
        .identity
    };
    assert_eq!(named("a"), named("a"));
    assert_ne!(named("a"), named("b"));
}

#[test]
fn wrong_functions_are_errors_with_their_names() {
    let run = config(RUN, &[]);
    let with_loss = |loss: Brier| {
        error_of(&run, move || Parts {
            objective: Some(Objective::new(Arc::new(loss))),
            ..Parts::default()
        })
    };
    let nan = with_loss(Brier {
        is_nan: true,
        ..Brier::default()
    });
    assert!(
        nan.to_string().contains("the loss (brier) is not finite"),
        "{nan}"
    );
    let short = with_loss(Brier {
        is_short: true,
        ..Brier::default()
    });
    assert!(
        short.to_string().contains("loss brier: returned "),
        "{short}"
    );
    assert!(short.is_user_error());
    let rate = error_of(&run, || Parts {
        learning_rate: Some(LearningRate::new("broken", |_| -1.0)),
        ..Parts::default()
    });
    assert!(
        rate.to_string().contains("`-1` of step 0 by broken"),
        "{rate}"
    );
    let outputs = error_of(&run, || {
        let mut objective = brier();
        objective.add(Arc::new(TopAccuracy::new(4, 2)));
        Parts {
            objective: Some(objective),
            ..Parts::default()
        }
    });
    let message = outputs.to_string();
    assert!(
        message.contains("metric accuracy_top2: the model has 3 outputs"),
        "{message}"
    );
    assert!(outputs.is_user_error());
}

/// A layer that panics for shards of two samples.
struct Panicking(LayerFacts);

impl Panicking {
    fn new() -> Self {
        let engine = ronde_engine::engine_name();
        Self(LayerFacts::new(StateLayout::default(), engine))
    }
}

impl Layer for Panicking {
    fn facts(&self) -> &LayerFacts {
        &self.0
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
        let passed = |shard: ShardInput| {
            let input = shard.input;
            assert!(input.samples() != 2, "cannot multiply {:?}", input.shape());
            input
        };
        Ok(shards.into_iter().map(passed).collect())
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let _ = pass;
        Ok(shards
            .into_iter()
            .map(|given| Some(given.grad_output))
            .collect())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        LayerCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        }
    }
}

#[test]
fn a_panic_of_a_layer_is_an_error_that_names_it() {
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Panicking::new())];
    let chain = Chain::new(layers).unwrap();
    let group = ProcessGroup::alone(GroupConfig::new("dp", "test", GroupRank(0)));
    let shards = ShardPlan::new(1, WorldSize::ONE).unwrap();
    let optimizer = config(RUN, &[]).optimizer;
    let settings = SynchronousConfig::new(optimizer, Arc::new(Brier::default()));
    let group = Arc::new(group);
    let layout = StepLayout::data_parallel(shards, chain.len());
    let mut strategy = SynchronousStrategy::new(chain, group, layout, SeedTree::new(1), settings);
    let batch = |samples: usize| MicroBatch {
        shard: Shard(0),
        shape: vec![samples, 3],
        features: vec![0.0; 3 * samples],
        labels: vec![0; samples],
    };
    strategy.model().predict(Some(&mut batch(1))).unwrap();
    for error in [
        strategy.model().predict(Some(&mut batch(2))).unwrap_err(),
        strategy.backward(Step(0), vec![batch(2)]).unwrap_err(),
    ] {
        let message = error.to_string();
        let expected = "layer 0 panicked in its forward pass with an input of shape [2, 3]: cannot multiply [2, 3]";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_layer_of_another_engine_has_f32_only() {
    let chain = || {
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(Panicking::new())];
        Chain::new(layers).unwrap()
    };
    chain().with_precision(Precision::F32).unwrap();
    let refused = chain().with_precision(Precision::Bf16).map(drop);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("cannot compute in `bf16`"), "{message}");
    assert!(
        message.contains("set train.precision to `f32`"),
        "{message}"
    );
}

#[test]
fn the_trained_model_predicts_and_refuses_other_shapes() {
    let context = OpenContext::new(".".as_ref(), 42);
    let run = config(RUN, &["train.steps=3"]);
    let split = ronde_data::open(&run.data, &context).unwrap();
    let plan = Plan::resolve(&run, WorldSize::ONE, &*split.train).unwrap();
    let chain = run.model.config.build(&[1, 4, 4], 3, &plan.seeds).unwrap();
    let group = ProcessGroup::alone(GroupConfig::new("dp", "test", GroupRank(0)));
    let member = JobGroup::of(Arc::new(group), Arc::new(Recorder::default()));
    let mut training = Training::new(member, plan, chain, split).unwrap();
    training.run().unwrap();
    let mut trained = training.into_model().unwrap();
    let image: Vec<f32> = (0..32).map(|x| x as f32 / 32.0).collect();
    let two = trained.predict(&[2, 1, 4, 4], image.clone()).unwrap();
    assert_eq!(two.shape(), [2, 3]);
    for shape in [&[2, 4, 4, 1][..], &[1, 1, 4, 4], &[2, 16], &[]] {
        let error = trained.predict(shape, image.clone()).unwrap_err();
        assert!(
            error.to_string().contains("samples of shape [1, 4, 4]"),
            "{error}"
        );
    }
    let again = Activation::from_host(&[2, 1, 4, 4], image);
    let outputs = trained.into_chain().evaluate(again).unwrap();
    assert_eq!(outputs.as_slice(), two.as_slice());
}

/// The outcome of a run of a program's own model on one rank: the hash of the model, its outputs for a sample, and its evaluation.
type OwnOutcome = (String, Vec<f32>, Evaluation);

/// Trains a program's own model, whose weights it has loaded, with its own loss, metrics, learning rate and callback. Unless
/// `is_whole`, the model stays divided.
fn train_loaded(
    config: &RunConfig,
    group: ProcessGroup,
    is_whole: bool,
) -> Result<OwnOutcome, TrainError> {
    let context = OpenContext::new(".".as_ref(), config.run.seed);
    let split = ronde_data::open(&config.data, &context)?;
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let mut plan = Plan::resolve(config, world_size, &*split.train)?;
    let chain = config.model.config.build(&[1, 4, 4], 3, &plan.seeds);
    let mut chain = chain.map_err(TrainError::Model)?;
    let tensors = &chain.layout().tensors;
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let values = (0..arena.len()).map(|x| (x % 13) as f32 / 50.0 - 0.1);
    chain.load(&values.collect::<Vec<f32>>(), arena.ranges());
    plan.bind_objective(brier())?;
    plan.bind_learning_rate(LearningRate::new("rising", |step: Step| {
        0.001 * (step.0 + 1) as f64
    }));
    plan.bind_own_model(&chain)?;
    let member = JobGroup::of(Arc::new(group), Arc::new(Recorder::default()));
    let ends: Box<dyn Callback> = Box::new(ActsAfter(7, Actions::stop));
    let training = Training::new(member, plan, chain, split)?.with_callbacks(vec![ends]);
    let mut training = match is_whole {
        true => training.with_whole_model(),
        false => training,
    };
    let evaluation = training.run()?.evaluation.unwrap();
    assert_eq!(training.steps(), 9);
    let mut model = training.into_model()?;
    let outputs = model.predict(&[1, 1, 4, 4], vec![0.5; 16])?;
    Ok((model.blake3()?, outputs.as_slice().to_vec(), evaluation))
}

#[test]
fn loaded_weights_of_an_own_model_are_divided_and_whole_at_the_end() {
    let run_on = |ranks: usize, sets: &[&str], is_whole| {
        let run = config(RUN, sets);
        spawn_ranks(ranks, LIMIT, move |group| {
            let trained = train_loaded(&run, group, is_whole);
            Ok::<_, String>(trained.map_err(|error| error.to_string()))
        })
    };
    let alone = run_on(1, &[], true);
    let tensor = ["model.tensor_parts=2", "parallel.tensor=2"];
    let in_parts = run_on(1, &tensor[..1], true);
    for (ranks, sets, expected) in [
        (2, &["parallel.pipeline=2"][..], &alone[0]),
        (3, &["parallel.pipeline=2"], &alone[0]),
        (3, &["parallel.zero=3"], &alone[0]),
        (1, &["parallel.zero=3"], &alone[0]),
        (4, &["parallel.pipeline=2", "parallel.zero=1"], &alone[0]),
        (2, &tensor, &in_parts[0]),
    ] {
        let expected = expected.as_ref().unwrap();
        for found in run_on(ranks, sets, true) {
            assert_eq!(found.as_ref(), Ok(expected), "{sets:?} on {ranks}");
        }
    }
    for refused in run_on(2, &["parallel.pipeline=2"], false) {
        let message = refused.unwrap_err();
        assert!(message.contains("a part of the weights only"), "{message}");
    }
}

#[test]
fn a_layer_that_keeps_its_weights_is_not_divided() {
    for (set, part) in [
        ("parallel.pipeline=2", "parallel.pipeline = 2 cannot train"),
        ("parallel.tensor=2", "parallel.tensor = 2 cannot train"),
        ("parallel.zero=3", "between its passes"),
    ] {
        let run = config(RUN, &[set]);
        let context = OpenContext::new(".".as_ref(), 42);
        let split = ronde_data::open(&run.data, &context).unwrap();
        let mut plan = Plan::resolve(&run, WorldSize::ONE, &*split.train).unwrap();
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(Panicking::new())];
        let mut chain = Chain::new(layers).unwrap();
        plan.bind_own_model(&chain).unwrap();
        let refused = ModelParts::of(&plan, &mut chain, &*split.train).map(drop);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

const GROUPS: &str = r#"
[[train.parameter_groups]]
tensors = "layer1.*"
frozen = true
[[train.parameter_groups]]
tensors = "*.bias"
learning_rate_factor = 0.5
weight_decay = 0.25
"#;

#[test]
fn parameter_groups_have_the_same_bits_on_any_number_of_ranks_with_every_optimizer() {
    let text = format!("{RUN}{GROUPS}");
    for kind in ["sgd", "adam", "adamw", "lars", "lamb"] {
        let set = format!("optimizer.kind={kind}");
        let sets = [set.as_str(), "train.clip_norm=0.1"];
        let run = config(&text, &sets);
        let (one, plain) = (
            run_on(1, &run, Parts::default),
            run_on(1, &config(RUN, &sets), Parts::default),
        );
        assert!(
            one.bits != plain.bits && one.identity != plain.identity,
            "{kind}"
        );
        assert_eq!(run_on(3, &run, Parts::default).bits, one.bits, "{kind}");
    }
}

#[test]
fn frozen_parameters_keep_their_values_and_a_group_without_parameters_is_refused() {
    let frozen = |pattern: &str| {
        format!("{RUN}[[train.parameter_groups]]\ntensors = \"{pattern}\"\nfrozen = true\n")
    };
    let with_steps = |pattern: &str, steps: &str| {
        let run = config(&frozen(pattern), &[steps]);
        run_on(1, &run, Parts::default)
    };
    assert_eq!(
        with_steps("*", "train.steps=1").bits,
        with_steps("*", "train.steps=5").bits
    );
    let names = with_steps("*", "train.steps=1").names;
    let one = with_steps(&names[0], "train.steps=1").bits;
    assert_ne!(one, with_steps(&names[0], "train.steps=5").bits);
    let error = error_of(&config(&frozen("*.scale"), &[]), Parts::default);
    let message = error.to_string();
    assert!(message.contains("no parameter of the model matches the group `*.scale`"));
    assert!(message.contains(&names[0]), "{message}");
}

/// Performs an action after one step.
struct ActsAfter(u64, fn(&mut Actions));

impl Callback for ActsAfter {
    fn after_step(&mut self, report: &StepReport, actions: &mut Actions) {
        if report.step.0 == self.0 {
            (self.1)(actions);
        }
    }
}

#[test]
fn a_callback_ends_the_run_after_the_next_step_on_all_ranks() {
    let (long, short) = (config(RUN, &[]), config(RUN, &["train.steps=6"]));
    let expected = run_on(1, &short, Parts::default);
    for ranks in [1, 3] {
        let ended = run_on(ranks, &long, || Parts {
            callbacks: vec![Box::new(ActsAfter(4, Actions::stop))],
            ..Parts::default()
        });
        assert_eq!(ended.steps, 6);
        assert_eq!(ended.bits, expected.bits);
        assert_eq!(ended.evaluation, expected.evaluation);
    }
}

#[test]
fn a_callback_evaluates_and_saves_after_the_next_step() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn ronde_store::Store> = Arc::new(LocalStore::new(folder.path()));
        let run = config(
            RUN,
            &["checkpoint.overlap=false", "checkpoint.at_end=false"],
        );
        let section = run.checkpoint.clone();
        let outcome = run_on(ranks, &run, move || Parts {
            callbacks: vec![
                Box::new(ActsAfter(2, Actions::evaluate)),
                Box::new(ActsAfter(6, Actions::save)),
            ],
            checkpoints: Some(RunCheckpoints::new(
                &section,
                store.clone(),
                "here".to_owned(),
                "run".to_owned(),
                (String::new(), ".".into()),
            )),
            ..Parts::default()
        });
        let mut evaluated = Vec::new();
        let mut saved = Vec::new();
        for event in &outcome.events {
            match event {
                Event::Evaluated { step, .. } => evaluated.push(step.0),
                Event::CheckpointSaved { step, .. } => saved.push(step.0),
                _ => {}
            }
        }
        assert_eq!(evaluated, [3, 11]);
        assert_eq!(saved.len(), 1);
        // The first save of a run waits until its term is claimed.
        assert!((8..=12).contains(&saved[0]), "{saved:?}");
    }
}

#[test]
fn saving_without_a_folder_is_reported_once() {
    let outcome = run_on(1, &config(RUN, &[]), || Parts {
        callbacks: vec![
            Box::new(ActsAfter(2, Actions::save)),
            Box::new(ActsAfter(5, Actions::save)),
        ],
        ..Parts::default()
    });
    let notices = outcome.events.iter().filter(|event| {
        matches!(event, Event::Notice { message, .. } if message.contains("checkpoint.to is not set"))
    });
    assert_eq!(notices.count(), 1);
}

#[test]
fn early_stopping_ends_the_run_at_the_same_step_on_any_number_of_ranks() {
    let run = config(RUN, &["train.steps=200", "train.evaluate_every_epochs=1"]);
    let parts = || Parts {
        // The learning rate is 0 after 8 steps, so the loss does not improve any more.
        learning_rate: Some(LearningRate::new("short", |step: Step| {
            if step.0 < 8 { 0.001 } else { 0.0 }
        })),
        callbacks: vec![Box::new(EarlyStopping::on_loss(2))],
        ..Parts::default()
    };
    let one = run_on(1, &run, parts);
    assert_eq!(one.steps, 17);
    let three = run_on(3, &run, parts);
    assert_eq!((three.steps, three.bits), (one.steps, one.bits));
}
