//! Gradients across workers: the bits of one worker, several uses of an output, and contexts of creators that are gone.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ronde_core::exact::TreeSum;
use ronde_core::layout::Role;
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Buffer, DType, Shard, Step};
use ronde_engine::{
    Activation, Chain, CrossEntropy, ForwardContext, LayerExt, Loss, Mode, ModelConfig,
    OptimizerConfig, Predictions,
};
use ronde_rpc::{
    CallTarget, CallValues, FunctionRegistry, GradientContext, ModelStage, ReferenceTicket,
    RemoteFunction, RemoteStage, RpcError, RpcLimits, RpcNode, register_stage_functions,
};

use crate::support::{LIMIT, config, listen, peer, wait_until};

/// Creates stage `index` of the model.
const CREATE: RemoteFunction<usize, ReferenceTicket> = RemoteFunction::new("test.create_stage", 1);

const SHARDS: u32 = 5;
const SAMPLES: usize = 4;
const FEATURES: usize = 6;
const CLASSES: usize = 3;
const RATE: f64 = 0.1;

fn seeds() -> SeedTree {
    SeedTree::new(3)
}

fn chain() -> Chain {
    let config = ModelConfig::Mlp {
        hidden: vec![9, 7, 5],
        tensor_parts: 1,
    };
    config.build(&[FEATURES], CLASSES as u32, &seeds()).unwrap()
}

fn parts() -> Vec<Chain> {
    let len = chain().len();
    chain().cut(&[1, len - 1]).unwrap()
}

fn optimizer() -> OptimizerConfig {
    serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap()
}

fn batch(step: u64, shard: u32) -> (Activation, Vec<u32>) {
    let mut features = vec![0.0; SAMPLES * FEATURES];
    let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
    stream.fill_uniform(&mut features);
    let labels = (0..SAMPLES as u32).map(|i| (i + shard + step as u32) % CLASSES as u32);
    let features = Activation::from_host(&[SAMPLES, FEATURES], features);
    (features, labels.collect())
}

fn loss_gradient(output: Activation, labels: &[u32]) -> Activation {
    let logits = output.into_host();
    let predictions = Predictions::new(&logits, labels, labels.len()).unwrap();
    let loss = CrossEntropy { classes: CLASSES };
    let loss = loss.loss_and_gradient(&predictions).unwrap();
    Activation::from_host(&[SAMPLES, CLASSES], loss.gradient)
}

/// Trains the whole chain on one worker.
fn alone(steps: u64) -> Vec<u32> {
    let mut chain = chain();
    let mut ranges = Vec::new();
    let mut end = 0;
    for tensor in &chain.layout().tensors {
        assert_eq!(tensor.role, Role::Parameter);
        ranges.push(end..end + tensor.elements());
        end += tensor.elements();
    }
    let mut state = vec![0.0; end];
    chain.save_state(&mut state, &ranges);
    let mut moments = vec![vec![0.0; end]; optimizer().state_names().len()];
    for step in 0..steps {
        let mut sum = TreeSum::new(SHARDS);
        for shard in 0..SHARDS {
            let (features, labels) = batch(step, shard);
            let context = ForwardContext {
                seeds: seeds(),
                step: Step(step),
                shard: Shard(shard),
                layer: 0,
                mode: Mode::Train,
            };
            let output = chain.forward_shard(features, &context).unwrap();
            let gradient = loss_gradient(output, &labels);
            let mut buffer = Buffer::host(DType::F32, end);
            let gradients = buffer.as_mut_slice();
            chain
                .backward_shard(Shard(shard), gradient, gradients, &ranges, false)
                .unwrap();
            sum.add_shard(shard, buffer);
        }
        let sum = sum.take().remove(0).1;
        let count = (SHARDS as usize * SAMPLES) as f32;
        let mean: Vec<f32> = sum.as_slice::<f32>().iter().map(|v| v / count).collect();
        for range in &ranges {
            let mut moments: Vec<&mut [f32]> =
                moments.iter_mut().map(|m| &mut m[range.clone()]).collect();
            let parameters = &mut state[range.clone()];
            let mean = &mean[range.clone()];
            optimizer().step_tensor(step + 1, RATE, parameters, mean, &mut moments);
        }
        chain.load(&state, &ranges);
    }
    state.iter().map(|value| value.to_bits()).collect()
}

fn functions() -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    register_stage_functions(&mut functions);
    functions.register(&CREATE, |context, index, _| {
        let chain = parts().swap_remove(index);
        let stage = ModelStage::new(chain, optimizer(), seeds())?;
        Ok((context.share(stage), CallValues::none()))
    });
    functions
}

/// Opens a trainer and two workers; `lease` is that of all.
fn job(lease: Duration) -> [RpcNode; 3] {
    let sockets = [listen(), listen(), listen()];
    let names = ["trainer", "one", "two"];
    let addresses = sockets.each_ref().map(|(_, at)| *at);
    let mut index = 0;
    sockets.map(|(listener, _)| {
        let mine = index;
        index += 1;
        let others = (0..3).filter(|other| *other != mine);
        let peers = others.map(|other| peer(names[other], addresses[other]));
        let mut config = config(names[mine]);
        config.limits = RpcLimits {
            lease,
            ..RpcLimits::default()
        };
        RpcNode::open(config, listener, peers.collect(), functions()).unwrap()
    })
}

fn stages(trainer: &RpcNode) -> Vec<RemoteStage> {
    let create = |(index, worker)| {
        let target = CallTarget::Worker(worker);
        let none = CallValues::none();
        trainer.hold(
            trainer
                .call(target, &CREATE, &index, none, LIMIT)
                .unwrap()
                .0,
        )
    };
    ["one", "two", "one"]
        .into_iter()
        .enumerate()
        .map(create)
        .collect()
}

fn pass(context: &GradientContext<'_>, step: u64, shard: u32) -> Result<(), RpcError> {
    let (features, labels) = batch(step, shard);
    let mut pass = context.pass(Shard(shard));
    let mut value = pass.input(features);
    for stage in 0..3 {
        value = pass.forward(stage, &value)?;
    }
    let gradient = loss_gradient(value.values().clone(), &labels);
    pass.backward(&[(&value, gradient)])
}

#[test]
fn three_stages_on_two_workers_have_the_bits_of_one_worker() {
    let [trainer, _one, _two] = job(LIMIT);
    let stages = stages(&trainer);
    for step in 0..3 {
        let context = GradientContext::open(&trainer, Step(step), SHARDS, &stages, LIMIT).unwrap();
        let failed = Mutex::new(Vec::new());
        // All shards at once: they end in any order.
        thread::scope(|scope| {
            for shard in 0..SHARDS {
                let (context, failed) = (&context, &failed);
                scope.spawn(move || {
                    failed
                        .lock()
                        .unwrap()
                        .extend(pass(context, step, shard).err())
                });
            }
        });
        assert_eq!(*failed.lock().unwrap(), []);
        context
            .update(u64::from(SHARDS) * SAMPLES as u64, RATE)
            .unwrap();
    }
    let state = |stage| trainer.stage_state(stage, LIMIT).unwrap();
    let bits: Vec<u32> = stages.iter().flat_map(state).map(f32::to_bits).collect();
    assert_eq!(bits, alone(3));
}

#[test]
fn an_output_with_two_uses_adds_their_gradients() {
    let [trainer, _one, _two] = job(LIMIT);
    let create = |index: usize, worker: &str| -> RemoteStage {
        let none = CallValues::none();
        let target = CallTarget::Worker(worker);
        trainer.hold(
            trainer
                .call(target, &CREATE, &index, none, LIMIT)
                .unwrap()
                .0,
        )
    };
    // Two equal stages after the first one: the gradient doubles.
    let both = [create(0, "one"), create(1, "two"), create(1, "one")];
    let gradient_of = |uses: &[usize]| {
        let context = GradientContext::open(&trainer, Step(0), 1, &both, LIMIT).unwrap();
        let mut pass = context.pass(Shard(0));
        let input = pass.input(batch(0, 0).0);
        let first = pass.forward(0, &input).unwrap();
        let outputs: Vec<_> = uses
            .iter()
            .map(|stage| pass.forward(*stage, &first).unwrap())
            .collect();
        let ones =
            |shape: &[usize]| Activation::from_host(shape, vec![1.0; shape.iter().product()]);
        let gradients: Vec<_> = outputs
            .iter()
            .map(|output| (output, ones(output.values().shape())))
            .collect();
        pass.backward(&gradients).unwrap();
        let gradient = context.gradient(0).unwrap();
        context.discard().unwrap();
        gradient
    };
    let single = gradient_of(&[1]);
    let double: Vec<f32> = single.iter().map(|value| 2.0 * value).collect();
    assert!(single.iter().any(|value| *value != 0.0));
    assert_eq!(gradient_of(&[1, 2]), double);
}

#[test]
fn a_stage_refuses_what_does_not_fit() {
    let [trainer, _one, _two] = job(LIMIT);
    let stages = stages(&trainer);
    let open = || GradientContext::open(&trainer, Step(0), 2, &stages, LIMIT);
    let failed = |error: RpcError, text: &str| assert!(error.to_string().contains(text), "{error}");
    let context = open().unwrap();
    failed(open().err().unwrap(), "another context uses this stage");
    failed(
        context.gradient(0).unwrap_err(),
        "2 of 2 shards have not been passed backward",
    );
    let mut wrong = context.pass(Shard(0));
    let input = wrong.input(Activation::from_host(&[1, 2], vec![0.0; 2]));
    failed(
        wrong.forward(0, &input).unwrap_err(),
        "`ronde.stages.forward` of one failed",
    );
    let mut wrong = context.pass(Shard(7));
    let input = wrong.input(batch(0, 0).0);
    failed(
        wrong.forward(0, &input).unwrap_err(),
        "invalid shard `7`: expected 0 to 1",
    );
    failed(
        wrong.forward(9, &input).unwrap_err(),
        "stage 9 of a context with 3 stages",
    );
    pass(&context, 0, 0).unwrap();
    failed(
        pass(&context, 0, 0).unwrap_err(),
        "shard 0 has been passed backward before",
    );
    failed(
        context.update(8, RATE).unwrap_err(),
        "1 of 2 shards have not been passed backward",
    );
    // The failed context has ended with its update.
    wait_until("the end of the context", || open().is_ok());
}

#[test]
fn a_context_ends_with_the_lease_of_its_creator() {
    let [trainer, one, _two] = job(Duration::from_secs(3));
    let stages = stages(&trainer);
    let context = GradientContext::open(&trainer, Step(0), 1, &stages, LIMIT).unwrap();
    assert_eq!(one.shared_objects(), 4);
    // The creator is gone without a word: nothing is released.
    std::mem::forget(context);
    std::mem::forget(stages);
    drop(trainer);
    wait_until("the end of the lease", || one.shared_objects() == 0);
}
