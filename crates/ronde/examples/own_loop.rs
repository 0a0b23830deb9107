//! A training loop of your own around [`ronde::Session`]: softmax regression in plain Rust, the same
//! bits on any number of workers.
//!
//! ```text
//! cargo run --release --example own_loop                        # alone
//! cargo run --release -- run -n 3 -- target/release/examples/own_loop
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::path::Path;
use std::sync::Arc;

use ronde::core::batch::BatchPlan;
use ronde::core::exact::TreeSum;
use ronde::core::session::{OpenStep, ShardReport};
use ronde::core::shards::ShardPlan;
use ronde::core::weight_hash::hash;
use ronde::core::{Buffer, DType, Operation, Shard, WorldSize};
use ronde::data::{DataConfig, Dataset};
use ronde::engine::SoftmaxCrossEntropy;
use ronde::{Collectives, CollectivesExt, Session, Worker};

const PIXELS: usize = 64;
const CLASSES: usize = 10;
const SHARDS: u32 = 8;
const RATE: f32 = 0.5;

type Failure = Box<dyn std::error::Error>;

/// The gradient of this rank's shards, as subtrees of the exact sum; each shard is recorded.
fn my_shards(
    data: &dyn Dataset,
    batches: &BatchPlan,
    shards: &ShardPlan,
    weights: &[f32],
    open: &mut OpenStep,
) -> Result<Buffer, Failure> {
    let order = batches.order(open.batch().epoch);
    let positions = open.batch().positions.clone();
    let mut sum = TreeSum::new(SHARDS);
    for shard in open.run() {
        let within = shards.samples(Shard(shard), positions.end - positions.start);
        let ids: Vec<u64> = within.map(|p| order.sample(positions.start + p)).collect();
        let mut gradient = Buffer::host(DType::F32, weights.len());
        let (loss_sum, correct) = backward(data, &ids, weights, gradient.as_mut_slice())?;
        sum.add_shard(shard, gradient);
        let report = ShardReport {
            shard: Shard(shard),
            samples: ids.len() as u64,
            loss_sum,
            correct,
        };
        open.record(report, &ids);
    }
    let subtrees = sum.take();
    Ok(Buffer::copy_of(
        &subtrees
            .iter()
            .flat_map(|(_, sum)| sum.as_slice::<f32>())
            .copied()
            .collect::<Vec<_>>(),
    ))
}

fn main() -> Result<(), Failure> {
    let mut worker = Worker::start()?;
    let group: Arc<dyn Collectives> = Arc::new(worker.group("own_loop")?);
    let world_size = WorldSize::new(worker.world_size()).ok_or("no worker")?;
    let data = ronde::data::open(&DataConfig::Digits {}, Path::new("."), 0)?.train;

    let batches = BatchPlan::new(data.len(), 100, false, true, 42).ok_or("no step")?;
    let shards = ShardPlan::new(SHARDS, world_size).ok_or("more workers than shards")?;
    let mut session = Session::new(
        group.clone(),
        worker.assignment().generation,
        batches,
        shards,
    );
    let mut weights = vec![0.0_f32; PIXELS * CLASSES];

    while session.next_step().0 < 3 * batches.steps_per_epoch() {
        let mut open = session.begin_step();
        let gradient = my_shards(&*data, &batches, &shards, &weights, &mut open)?;
        let reduced = match group.run(Operation::ExactSum(shards.exact_sum()), gradient) {
            Ok(reduced) => reduced,
            Err(error) => {
                // Nothing has changed: the same step could begin again in another group.
                session.abort(open);
                return Err(error.into());
            }
        };
        // The vote: from here on the step is final on all ranks.
        let committed = session.commit(open)?;
        for (weight, gradient) in weights.iter_mut().zip(reduced.as_slice::<f32>()) {
            *weight -= RATE * (gradient / committed.samples as f32);
        }
        session.set_digest(hash(&weights));
        if let Some(verdict) = committed.epoch_verdict.filter(|_| worker.is_first()) {
            let (epoch, exact) = (verdict.epoch, verdict.is_exact());
            println!(
                "epoch {epoch}: loss {:.4}, every sample once: {exact}",
                committed.loss
            );
        }
    }
    session.verify()?;
    if worker.is_first() {
        println!("weights {:016x}", hash(&weights));
    }
    Ok(())
}

/// Adds the gradient of the summed loss of some samples; gives that loss and the right answers.
fn backward(
    data: &dyn Dataset,
    ids: &[u64],
    weights: &[f32],
    gradient: &mut [f32],
) -> Result<(f64, u64), Failure> {
    let (mut loss_sum, mut correct, mut image) = (0.0, 0, [0.0; PIXELS]);
    for &id in ids {
        let label = data.read(id, &mut image)?;
        let logits: Vec<f32> = weights
            .chunks_exact(PIXELS)
            .map(|row| row.iter().zip(&image).map(|(w, x)| w * x).sum())
            .collect();
        let loss = SoftmaxCrossEntropy::loss(&logits, CLASSES, &[label])?;
        for (row, slope) in gradient.chunks_exact_mut(PIXELS).zip(&loss.gradient) {
            row.iter_mut()
                .zip(&image)
                .for_each(|(g, x)| *g += slope * x);
        }
        loss_sum += loss.loss_sum;
        correct += loss.correct;
    }
    Ok((loss_sum, correct))
}
