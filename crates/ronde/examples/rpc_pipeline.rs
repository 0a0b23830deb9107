//! A pipeline of two stages with remote calls only: rank 0 trains, ranks 1 and 2 each hold half of the layers.
//!
//! ```text
//! cargo run --release --features rpc --example rpc_pipeline       # alone
//! cargo run --release -- run -n 3 -- target/release/examples/rpc_pipeline
//! ```
//!
//! Several micro-batches are on the way at the same time. Gradients are added at the stages along the tree of the exact
//! sum, so the parameters have the same bits as on one worker.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

#[path = "rpc/task.rs"]
mod task;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ronde::core::{Shard, Step, weight_hash};
use ronde::rpc::{
    CallTarget, CallValues, FunctionError, FunctionRegistry, GradientContext, ModelStage,
    ReferenceTicket, RemoteFunction, RemoteStage, RpcLimits, RpcNode, register_stage_functions,
};
use ronde::{CollectivesExt, Worker};
use task::{RATE, SAMPLES, SHARDS, STEPS};

/// Builds a stage of the model: (its number, where the model is cut).
const BUILD: RemoteFunction<(usize, usize), ReferenceTicket> =
    RemoteFunction::new("example.build", 1);
/// The training has ended.
const LEAVE: RemoteFunction<(), ()> = RemoteFunction::new("example.leave", 1);

const LIMIT: Duration = Duration::from_secs(60);
/// Micro-batches on the way at the same time.
const TOGETHER: u32 = 3;

fn stage_functions(leaving: mpsc::Sender<()>) -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    register_stage_functions(&mut functions);
    functions.register(&BUILD, |context, (number, cut), _| {
        let mut parts = task::model()?.cut(&[cut])?;
        if number >= parts.len() {
            return Err(FunctionError::new("the model has two stages"));
        }
        let part = parts.swap_remove(number);
        let stage = ModelStage::new(part, task::optimizer(), task::seeds())?;
        Ok((context.share(stage), CallValues::none()))
    });
    functions.register(&LEAVE, move |_, (), _| {
        leaving.send(())?;
        Ok(((), CallValues::none()))
    });
    functions
}

/// Passes one shard forward and backward; returns its loss.
fn pass(context: &GradientContext<'_>, step: u64, shard: u32) -> Result<f64, ronde::Error> {
    let (features, classes) = task::samples(step, shard);
    let mut pass = context.pass(Shard(shard));
    let input = pass.input(features);
    let border = pass.forward(0, &input)?;
    let output = pass.forward(1, &border)?;
    let (loss, gradient) = task::loss(output.values().clone(), &classes)?;
    pass.backward(&[(&output, gradient)])?;
    Ok(loss)
}

fn train(node: &RpcNode) -> Result<Vec<f32>, ronde::Error> {
    let cut = task::model()?.len() / 2;
    let mut stages: Vec<RemoteStage> = Vec::new();
    for (number, worker) in ["rank-1", "rank-2"].into_iter().enumerate() {
        let (target, arguments) = (CallTarget::Worker(worker), (number, cut));
        let (ticket, _) = node.call(target, &BUILD, &arguments, CallValues::none(), LIMIT)?;
        stages.push(node.hold(ticket));
    }
    for step in 0..STEPS {
        let context = GradientContext::open(node, Step(step), SHARDS, &stages, LIMIT)?;
        let run = |first: u32| {
            let shards = (first..SHARDS).step_by(TOGETHER as usize);
            let losses = shards.map(|shard| Ok((shard, pass(&context, step, shard)?)));
            losses.collect::<Result<Vec<(u32, f64)>, ronde::Error>>()
        };
        let mut losses = thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = (0..TOGETHER)
                .map(|first| scope.spawn(move || run(first)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            let ended = ended.map(|end| {
                let panicked = |_| ronde::Error::Output("a pass panicked".to_owned());
                end.map_err(panicked)?
            });
            ended.collect::<Result<Vec<_>, _>>()
        })?
        .concat();
        losses.sort_by_key(|(shard, _)| *shard);
        context.update(SAMPLES, RATE)?;
        task::report(step, losses.iter().map(|(_, loss)| loss).sum());
    }
    let mut state = Vec::new();
    for stage in &stages {
        state.extend(node.stage_state(stage, LIMIT)?);
        let target = CallTarget::Worker(stage.owner());
        node.call(target, &LEAVE, &(), CallValues::none(), LIMIT)?;
    }
    Ok(state)
}

fn main() -> Result<(), ronde::Error> {
    let mut worker = Worker::start()?;
    let (rank, size) = (worker.rank().0, worker.world_size());
    let state = if size == 1 {
        task::train_alone()?
    } else if size == 3 {
        let group = worker.group("pipeline")?;
        let (leaving, left) = mpsc::channel();
        let role = if rank == 0 { "trainer" } else { "stage" };
        let functions = stage_functions(leaving);
        let node = worker.rpc(&group, role, functions, RpcLimits::default())?;
        group.barrier()?;
        if rank > 0 {
            // Ends also when the supervisor ends all ranks because one was lost.
            let _left = left.recv();
            return Ok(());
        }
        train(&node)?
    } else {
        let text = format!("invalid number of workers `{size}`: expected 1, or 3");
        return Err(ronde::Error::Output(text));
    };
    println!("weights {:016x}", weight_hash::hash(&state));
    Ok(())
}
