//! Measures the cost of the exact sum and of the weight hash, compared with a plain sum of the same gradients.
//!
//! ```text
//! cargo build --release --examples
//! cargo run --release -- run -n 2 -- target/release/examples/exact_sum_cost
//! ```
//!
//! Random gradients of ResNet-18's size (larger than the cache), fresh in every round; variants take
//! turns; medians of the slowest rank. The exact sum includes adding a rank's shards along the tree,
//! the plain one adding them into one buffer.

#![expect(clippy::print_stdout, reason = "an example prints its result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark owns its time")]

use std::time::Instant;

use ronde::comm::ProcessGroup;
use ronde::core::exact::{self, TreeSum};
use ronde::core::seed::{Purpose, SeedTree};
use ronde::core::shards::ShardPlan;
use ronde::core::weight_hash::WeightHash;
use ronde::core::{Buffer, DType, Operation, Step, WorldSize};
use ronde::{Collectives, CollectivesExt, ReduceOp, Worker};

const ELEMENTS: usize = 11_173_962;
const ROUNDS: u64 = 7;

fn gradient(round: u64, shard: u32) -> Buffer {
    let mut buffer = Buffer::host(DType::F32, ELEMENTS);
    let seeds = SeedTree::new(round);
    seeds
        .stream(Purpose::Synthetic, &[shard.into()])
        .fill_uniform(buffer.as_mut_slice());
    buffer
}

/// Returns the seconds of the slowest rank.
fn slowest(group: &dyn Collectives, seconds: f64) -> Result<f64, ronde::Error> {
    let mut seconds = [seconds];
    group.all_reduce(&mut seconds, ReduceOp::Max)?;
    Ok(seconds[0])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn plain(group: &dyn Collectives, shards: Vec<Buffer>) -> Result<Buffer, ronde::Error> {
    let mut shards = shards.into_iter();
    let mut sum = shards
        .next()
        .unwrap_or_else(|| Buffer::host(DType::F32, ELEMENTS));
    for shard in shards {
        for (sum, value) in sum
            .as_mut_slice::<f32>()
            .iter_mut()
            .zip(shard.as_slice::<f32>())
        {
            *sum += value;
        }
    }
    Ok(group.run(Operation::AllReduce(ReduceOp::Sum), sum)?)
}

fn exact_sum(
    group: &dyn Collectives,
    plan: &ShardPlan,
    shards: Vec<Buffer>,
) -> Result<Buffer, ronde::Error> {
    let mut tree = TreeSum::new(plan.shards());
    for (shard, gradient) in plan.run(group.rank()).zip(shards) {
        tree.add_shard(shard, gradient);
    }
    let mut subtrees: Vec<Buffer> = tree.take().into_iter().map(|(_, sum)| sum).collect();
    let buffer = if subtrees.len() == 1 {
        subtrees.remove(0)
    } else {
        let mut all = group.allocate(DType::F32, ELEMENTS * subtrees.len())?;
        for (place, subtree) in all
            .as_mut_slice::<f32>()
            .chunks_exact_mut(ELEMENTS)
            .zip(&subtrees)
        {
            place.copy_from_slice(subtree.as_slice());
        }
        all
    };
    Ok(group.run(Operation::ExactSum(plan.exact_sum()), buffer)?)
}

/// Measures both sums of the same gradients alternately, and returns the median seconds of the plain and of the exact sum.
fn compare(group: &ProcessGroup, plan: &ShardPlan) -> Result<(f64, f64), ronde::Error> {
    let (mut plain_s, mut exact_s) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mine = || {
            plan.run(group.rank())
                .map(|shard| gradient(round, shard))
                .collect::<Vec<_>>()
        };
        let gradients = mine();
        group.barrier()?;
        let start = Instant::now();
        let one = plain(group, gradients)?;
        plain_s.push(slowest(group, start.elapsed().as_secs_f64())?);
        let gradients = mine();
        group.barrier()?;
        let start = Instant::now();
        let other = exact_sum(group, plan, gradients)?;
        exact_s.push(slowest(group, start.elapsed().as_secs_f64())?);
        let (one, other) = (one.as_slice::<f32>(), other.as_slice::<f32>());
        assert!(
            one.iter()
                .zip(other)
                .all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs()),
            "sums differ"
        );
    }
    Ok((median(plain_s), median(exact_s)))
}

/// Returns the median seconds of `work`.
fn time(mut work: impl FnMut(u64)) -> f64 {
    let times = (0..ROUNDS).map(|round| {
        let start = Instant::now();
        work(round);
        start.elapsed().as_secs_f64()
    });
    median(times.collect())
}

fn main() -> Result<(), ronde::Error> {
    let mut worker = Worker::start()?;
    let world_size = WorldSize::new(worker.world_size()).unwrap_or(WorldSize::ONE);
    let group = worker.group("bench")?;
    for shards in [2, 8, 16, 64_u32] {
        let Some(plan) = ShardPlan::new(shards, world_size) else {
            continue;
        };
        let (plain, exact) = compare(&group, &plan)?;
        if worker.is_first() {
            let (plain_ms, exact_ms, ratio) = (1e3 * plain, 1e3 * exact, exact / plain);
            println!(
                "L={shards:3}: plain {plain_ms:7.2} ms, exact {exact_ms:7.2} ms, ratio {ratio:.2}"
            );
        }
    }
    if !worker.is_first() {
        return Ok(());
    }
    let state = gradient(0, 0);
    for (name, parts) in [("1/16 of the weights", 16), ("all weights", 1)] {
        let hashing = WeightHash {
            parts,
            full_every: 0,
        };
        let seconds = time(|round| {
            std::hint::black_box(hashing.digest(Step(round), &[state.as_slice()]));
        });
        println!("hash of {name}: {:.2} ms", 1e3 * seconds);
    }
    let (mut left, right) = (gradient(1, 0), gradient(1, 1));
    let seconds = time(|_| exact::add(DType::F32, left.bytes_mut(), right.bytes()));
    println!(
        "adding one shard: {:.2} ms, {:.1} GB/s of gradient",
        1e3 * seconds,
        ELEMENTS as f64 * 4e-9 / seconds
    );
    Ok(())
}
