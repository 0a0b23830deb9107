//! Parameter servers with remote calls only: servers hold slices of the parameters, workers pull them and push gradients.
//!
//! ```text
//! cargo run --release --features rpc --example rpc_parameter_server       # alone
//! cargo run --release -- run --role server=2 --role worker=3 -- target/release/examples/rpc_parameter_server
//! ```
//!
//! The servers wait for the gradients of all shards and add them along the tree of the exact sum, so the parameters have
//! the same bits for any number of servers and workers.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

#[path = "rpc/task.rs"]
mod task;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use ronde::core::Buffer;
use ronde::core::exact::TreeSum;
use ronde::core::weight_hash;
use ronde::rpc::{
    CallTarget, CallValues, FunctionError, FunctionRegistry, RemoteFunction, RpcLimits, RpcNode,
};
use ronde::{CollectivesExt, Worker};
use task::{FlatModel, SHARDS, STEPS, Update};

/// Adds the gradient of a shard: (step, shard, loss), with the server's slice as values.
const PUSH: RemoteFunction<(u64, u32, f64), ()> = RemoteFunction::new("example.push", 1);
/// Waits until a number of steps has been applied, and returns the server's slice.
const PULL: RemoteFunction<u64, ()> = RemoteFunction::new("example.pull", 1);
/// A worker needs nothing more.
const LEAVE: RemoteFunction<(), ()> = RemoteFunction::new("example.leave", 1);

const LIMIT: Duration = Duration::from_secs(60);

/// A server's slice of the parameters, and the gradients of the current step.
struct Slice {
    update: Update,
    steps: u64,
    sum: TreeSum,
    losses: Vec<Option<f64>>,
}

#[derive(Clone)]
struct Server(Arc<(Mutex<Slice>, Condvar)>);

impl Server {
    fn new(state: Vec<f32>) -> Self {
        let slice = Slice {
            update: Update::new(state),
            steps: 0,
            sum: TreeSum::new(SHARDS),
            losses: vec![None; SHARDS as usize],
        };
        Self(Arc::new((Mutex::new(slice), Condvar::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Slice> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a gradient; returns the loss of the step if it was the last one.
    fn push(
        &self,
        (step, shard, loss): (u64, u32, f64),
        gradient: &[f32],
    ) -> Result<Option<f64>, FunctionError> {
        let mut slice = self.lock();
        let place = slice.losses.get(shard as usize);
        let fits = step == slice.steps && place == Some(&None);
        if !fits || gradient.len() != slice.update.state.len() {
            let text = format!("a gradient of shard {shard} of step {step} does not fit");
            return Err(FunctionError::new(text));
        }
        slice.losses[shard as usize] = Some(loss);
        slice.sum.add_shard(shard, Buffer::copy_of(gradient));
        let Some(losses) = slice.losses.iter().copied().collect::<Option<Vec<f64>>>() else {
            return Ok(None);
        };
        slice.losses.fill(None);
        let Slice { update, sum, .. } = &mut *slice;
        update.apply(sum);
        slice.steps += 1;
        self.0.1.notify_all();
        Ok(Some(losses.iter().sum()))
    }

    fn pull(&self, steps: u64, limit: Duration) -> Result<Vec<f32>, FunctionError> {
        let waited = self
            .0
            .1
            .wait_timeout_while(self.lock(), limit, |slice| slice.steps < steps);
        let slice = waited.unwrap_or_else(PoisonError::into_inner).0;
        match slice.steps == steps {
            true => Ok(slice.update.state.clone()),
            false => Err(FunctionError::new(format!(
                "step {steps} is not the current one"
            ))),
        }
    }
}

/// Returns the slice of each server.
fn slices(len: usize, servers: usize) -> Vec<Range<usize>> {
    (0..servers)
        .map(|server| len * server / servers..len * (server + 1) / servers)
        .collect()
}

fn server_functions(server: &Server, leaving: mpsc::Sender<()>, reports: bool) -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    let pushed = server.clone();
    functions.register(&PUSH, move |_, arguments, gradient| {
        if let Some(loss) = pushed.push(arguments, &gradient)?.filter(|_| reports) {
            task::report(arguments.0, loss);
        }
        Ok(((), CallValues::none()))
    });
    let pulled = server.clone();
    functions.register(&PULL, move |context, steps, _| {
        Ok(((), pulled.pull(steps, context.time_left())?.into()))
    });
    functions.register(&LEAVE, move |_, (), _| {
        leaving.send(())?;
        Ok(((), CallValues::none()))
    });
    functions
}

/// Trains the shards of worker `index` of `workers`; returns the final parameters.
fn work(
    node: &RpcNode,
    servers: usize,
    index: usize,
    workers: usize,
) -> Result<Vec<f32>, ronde::Error> {
    let mut model = FlatModel::new()?;
    let slices = slices(model.state.len(), servers);
    let names: Vec<String> = (0..servers).map(|rank| format!("rank-{rank}")).collect();
    let target = |server: usize| CallTarget::Worker(&names[server]);
    let mut state = model.state.clone();
    for step in 0..=STEPS {
        let pull = |server| node.start(target(server), &PULL, &step, CallValues::none(), LIMIT);
        let pulls = (0..servers).map(pull).collect::<Result<Vec<_>, _>>()?;
        for (pull, slice) in pulls.into_iter().zip(&slices) {
            state[slice.clone()].copy_from_slice(&pull.wait()?.1);
        }
        model.load(&state);
        let mut pushes = Vec::new();
        for shard in (index as u32..SHARDS)
            .step_by(workers)
            .filter(|_| step < STEPS)
        {
            let (loss, gradient) = model.gradient(step, shard)?;
            for (server, slice) in slices.iter().enumerate() {
                let values = gradient.as_slice::<f32>()[slice.clone()].to_vec();
                let arguments = (step, shard, loss);
                pushes.push(node.start(target(server), &PUSH, &arguments, values, LIMIT)?);
            }
        }
        for push in pushes {
            push.wait()?;
        }
    }
    for server in 0..servers {
        node.call(target(server), &LEAVE, &(), CallValues::none(), LIMIT)?;
    }
    Ok(state)
}

fn main() -> Result<(), ronde::Error> {
    let mut worker = Worker::start()?;
    let (rank, size) = (worker.rank().0 as usize, worker.world_size() as usize);
    if size == 1 {
        println!("weights {:016x}", weight_hash::hash(&task::train_alone()?));
        return Ok(());
    }
    let role = worker.role();
    let is_server = role.as_deref() == Some("server");
    let group = worker.group("servers")?;
    let servers = group.all_gather(&[u32::from(is_server)])?;
    let servers = servers.iter().sum::<u32>() as usize;
    // Servers are the first ranks.
    if servers == 0 || servers == size || is_server != (rank < servers) {
        let text =
            "start servers, then workers: ronde run --role server=1 --role worker=1 -- PROGRAM";
        return Err(ronde::Error::Output(text.to_owned()));
    }
    let limits = RpcLimits {
        // Each worker may wait for a step.
        threads: size,
        ..RpcLimits::default()
    };
    if is_server {
        let initial = FlatModel::new()?.state;
        let slice = slices(initial.len(), servers).swap_remove(rank);
        let server = Server::new(initial[slice].to_vec());
        let (leaving, left) = mpsc::channel();
        let functions = server_functions(&server, leaving, rank == 0);
        let _node = worker.rpc(&group, "server", functions, limits)?;
        group.barrier()?;
        // One message from each worker; the group fails when one of them is lost.
        left.iter().take(size - servers).for_each(drop);
    } else {
        let node = worker.rpc(&group, "worker", FunctionRegistry::new(), limits)?;
        group.barrier()?;
        let state = work(&node, servers, rank - servers, size - servers)?;
        if rank == servers {
            println!("weights {:016x}", weight_hash::hash(&state));
        }
    }
    Ok(())
}
