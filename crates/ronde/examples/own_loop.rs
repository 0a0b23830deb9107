//! A custom training loop: least squares in plain Rust, with the same bits on any number of workers.
//!
//! ```text
//! cargo run --release --example own_loop                        # alone
//! cargo run --release -- run -n 3 --elastic -- target/release/examples/own_loop
//! ```
//!
//! The argument is the number of epochs [default: 3]. With `--elastic` a rank may be killed: the weights are the same.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use ronde::core::{batch::BatchPlan, weight_hash};
use ronde::data::{DataConfig, DatasetExt, OpenContext};
use ronde::train::{StepAction, StepLoopPlan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let epochs = std::env::args().nth(1).unwrap_or("3".to_owned());
    let mut worker = ronde::Worker::start()?;
    let data = ronde::data::open(&DataConfig::Digits {}, &OpenContext::new(".".as_ref(), 0))?.train;
    let batches = BatchPlan::new(data.len(), 100, false, true, 42).ok_or("no step")?;
    let plan = StepLoopPlan {
        steps: epochs.parse::<u64>()? * batches.steps_per_epoch(),
        shards: 8,
        batches,
    };
    let mut steps = worker.step_loop("own_loop", plan)?;
    let mut weights = [0.0_f32; 64];
    while let Some(action) = steps.next(&mut [&mut weights])? {
        match action {
            StepAction::Compute(mut step) => {
                for shard in step.shards() {
                    let (mut gradient, mut loss) = ([0.0; 64], 0.0);
                    for &id in shard.ids() {
                        let (image, label) = data.sample(id)?;
                        let output: f32 = weights.iter().zip(&image).map(|(w, x)| w * x).sum();
                        let error = output - label[0] as f32;
                        loss += f64::from(error * error);
                        let pairs = gradient.iter_mut().zip(&image);
                        pairs.for_each(|(g, x)| *g += 2.0 * error * x);
                    }
                    step.add(&shard, &gradient, loss)?;
                }
                steps.reduce_and_vote(step);
            }
            StepAction::Apply(update) => {
                let pairs = weights.iter_mut().zip(update.mean_gradient());
                pairs.for_each(|(weight, gradient)| *weight -= 0.02 * gradient);
                let verdict = update.committed.epoch_verdict;
                if let Some(verdict) = verdict.filter(|_| steps.is_first()) {
                    println!("epoch {}: loss {:.4}", verdict.epoch, update.committed.loss);
                }
            }
        }
    }
    if steps.is_first() {
        println!("weights {:016x}", weight_hash::hash(&weights));
    }
    Ok(())
}
