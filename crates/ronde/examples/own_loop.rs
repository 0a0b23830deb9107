//! A custom training loop around [`ronde::Session`]: softmax regression in plain Rust, with the same bits on any number
//! of workers.
//!
//! ```text
//! cargo run --release --example own_loop                        # alone
//! cargo run --release -- run -n 3 --elastic -- target/release/examples/own_loop
//! ```
//!
//! The argument is the number of epochs [default: 3]. With `--elastic` a rank may be killed: the remaining ranks continue,
//! a replacement joins, and the weights are the same.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;
use std::sync::Arc;

use ronde::core::batch::BatchPlan;
use ronde::core::exact::TreeSum;
use ronde::core::session::{CommittedStep, OpenStep, ShardReport};
use ronde::core::shards::ShardPlan;
use ronde::core::weight_hash::hash;
use ronde::core::{Buffer, DType, Operation, Shard};
use ronde::data::{DataConfig, Dataset, OpenContext};
use ronde::engine::SoftmaxCrossEntropy;
use ronde::train::JobMember;
use ronde::{CollectivesExt, Rank, Session, Worker};

const PIXELS: usize = 64;
const CLASSES: usize = 10;
const SHARDS: u32 = 8;
const RATE: f32 = 0.5;

type LoopError = Box<dyn std::error::Error>;

/// Computes the gradient of this rank's shards as subtrees of the exact sum, and records each shard.
fn my_shards(
    data: &dyn Dataset,
    batches: &BatchPlan,
    shards: &ShardPlan,
    weights: &[f32],
    open: &mut OpenStep,
) -> Result<Buffer, LoopError> {
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
            skipped: 0,
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

/// The training state of one rank.
struct TrainingLoop {
    member: JobMember,
    session: Session,
    data: Arc<dyn Dataset>,
    batches: BatchPlan,
    steps: u64,
    weights: Vec<f32>,
    /// The gradient of a step whose vote failed: other ranks may have received all votes.
    held: Option<Buffer>,
}

impl TrainingLoop {
    fn shards(&self) -> Result<ShardPlan, LoopError> {
        let world_size = self.member.world_size().ok_or("no worker")?;
        let computing = world_size.get().min(SHARDS);
        Ok(ShardPlan::with_spares(SHARDS, world_size, computing).ok_or("no shard")?)
    }

    /// Trains in the current group, to the end or until a newer generation begins.
    fn run(&mut self) -> Result<bool, LoopError> {
        let shards = self.shards()?;
        while self.session.next_step().0 < self.steps {
            let mut open = self.session.begin_step();
            let gradient = my_shards(
                &*self.data,
                &self.batches,
                &shards,
                &self.weights,
                &mut open,
            )?;
            let sum = Operation::ExactSum(shards.exact_sum());
            let reduced = self.member.group.run(sum, gradient)?;
            // The vote: from here on the step is final on all ranks.
            let committed = match self.member.commit(&mut self.session, open) {
                Ok(committed) => committed,
                Err(error) => {
                    self.held = Some(reduced);
                    return Err(error.into());
                }
            };
            self.apply(&committed, &reduced);
            if self.member.ends_after(&committed) {
                return Ok(false);
            }
        }
        self.session.verify()?;
        Ok(self.member.finish())
    }

    fn apply(&mut self, committed: &CommittedStep, reduced: &Buffer) {
        for (weight, gradient) in self.weights.iter_mut().zip(reduced.as_slice::<f32>()) {
            *weight -= RATE * (gradient / committed.samples as f32);
        }
        self.session.set_digest(hash(&self.weights));
        if let Some(verdict) = committed
            .epoch_verdict
            .filter(|_| self.member.rank == Rank(0))
        {
            let (epoch, exact) = (verdict.epoch, verdict.is_exact());
            println!(
                "epoch {epoch}: loss {:.4}, every sample once: {exact}",
                committed.loss
            );
        }
    }

    /// Brings all members of a new generation to the same step.
    fn level_out(&mut self) -> Result<(), LoopError> {
        let shards = self.shards()?;
        let holds = self.held.is_some();
        let rejoined = self.member.rejoin(&mut self.session, shards, holds)?;
        if let (Some(committed), Some(reduced)) = (rejoined.committed, self.held.take()) {
            self.apply(&committed, &reduced);
        }
        let state = &mut [self.weights.as_mut_slice()];
        if self.member.heal(&rejoined.plan, state)? {
            let digest = hash(&self.weights);
            self.member.healed(&mut self.session, digest);
        }
        Ok(())
    }
}

fn main() -> Result<(), LoopError> {
    let epochs = std::env::args()
        .nth(1)
        .map_or(Ok(3), |text| text.parse::<u64>())?;
    let mut worker = Worker::start()?;
    let member = worker.member("own_loop")?;
    let data =
        ronde::data::open(&DataConfig::Digits {}, &OpenContext::new(Path::new("."), 0))?.train;
    let batches = BatchPlan::new(data.len(), 100, false, true, 42).ok_or("no step")?;
    let world_size = member.world_size().ok_or("no worker")?;
    let shards = ShardPlan::new(SHARDS, world_size).ok_or("more workers than shards")?;
    let mut this = TrainingLoop {
        session: Session::new(member.group.clone(), member.generation, batches, shards),
        member,
        data,
        batches,
        steps: epochs * batches.steps_per_epoch(),
        weights: vec![0.0_f32; PIXELS * CLASSES],
        held: None,
    };
    // A rank that joins a running job has to catch up first, as do all ranks in a new generation.
    let mut ended = match this.member.can_rejoin() {
        true => this.level_out().and_then(|()| this.run()),
        false => this.run(),
    };
    loop {
        let cause = match ended {
            Ok(true) => break,
            Ok(false) => "the membership changes".to_owned(),
            // A lost peer is replaced in the next generation; any other error is returned again.
            Err(error) if this.member.can_rejoin() => {
                this.member.group.abort(&error.to_string());
                error.to_string()
            }
            Err(error) => return Err(error),
        };
        this.member.join_next(&cause)?;
        ended = this.level_out().and_then(|()| this.run());
    }
    if this.member.rank == Rank(0) {
        println!("weights {:016x}", hash(&this.weights));
    }
    Ok(())
}

/// Adds the gradient of the summed loss of some samples. Returns the loss and the number of correct predictions.
fn backward(
    data: &dyn Dataset,
    ids: &[u64],
    weights: &[f32],
    gradient: &mut [f32],
) -> Result<(f64, u64), LoopError> {
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
