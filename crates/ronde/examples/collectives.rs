//! Collectives only: estimates pi with random points on each rank, summed over all ranks.
//!
//! ```text
//! cargo run --release --example collectives                     # alone
//! cargo run --release -- run -n 4 -- target/release/examples/collectives
//! ```

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use ronde::core::seed::{Purpose, SeedTree};
use ronde::{Collectives, CollectivesExt, GroupRank, ReduceOp, Worker};

const DARTS: u64 = 4_000_000;

fn main() -> Result<(), ronde::Error> {
    let mut worker = Worker::start()?;
    let group = worker.group("example")?;
    let (rank, size) = (u64::from(group.rank().0), group.size() as u64);

    // Rank 0 chooses the seed and broadcasts it.
    let mut seed = [if rank == 0 { 2026_i64 } else { 0 }];
    group.broadcast(&mut seed, GroupRank(0))?;
    let seeds = SeedTree::new(seed[0].cast_unsigned());

    // Every point is keyed by its number, so the result does not depend on the rank that draws it.
    let mut inside = [0_i64];
    for dart in (rank..DARTS / 2).step_by(size as usize) {
        let words = seeds.stream(Purpose::Synthetic, &[]).block(dart);
        for pair in words.chunks_exact(2) {
            let [x, y] = [pair[0], pair[1]].map(|word| f64::from(word) / f64::from(u32::MAX));
            inside[0] += i64::from(x * x + y * y <= 1.0);
        }
    }
    group.all_reduce(&mut inside, ReduceOp::Sum)?;

    let counts = group.all_gather(&[rank as i64])?;
    if rank == 0 {
        println!(
            "{} ranks: pi is about {:.4}",
            counts.len(),
            4.0 * inside[0] as f64 / DARTS as f64
        );
    }
    group.barrier()?;
    Ok(())
}
