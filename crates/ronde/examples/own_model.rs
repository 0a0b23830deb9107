//! A custom model of ronde's own layers, trained on any number of workers with the same bits.
//!
//! ```text
//! cargo run --release --example own_model                       # alone
//! cargo run --release -- run -n 3 -- target/release/examples/own_model
//! ```
//!
//! The arguments are a folder for checkpoints, the number of epochs [default: 5], and a run file, whose settings apply
//! except `[model]`. With `parallel.pipeline = 2` in it, two workers divide the layers.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use ronde::core::seed::SeedTree;
use ronde::engine::{AfterNorm, Chain, EngineError, GraphBuilder, Normalisation, SlidingWindow};

/// A convolution with batch normalisation, and a perceptron on its output.
fn net(seeds: &SeedTree) -> Result<Chain, EngineError> {
    let mut features = GraphBuilder::new("features", &[1, 8, 8]);
    let window = SlidingWindow::new(3, 1, 1);
    let x = features.convolution("conv", features.input(), 8, window, false);
    let x = features.normalise("norm", Normalisation::Batch, x, None, AfterNorm::Rectified);
    features.max_pool(x, SlidingWindow::new(2, 2, 0));

    let mut perceptron = GraphBuilder::new("perceptron", &[8, 4, 4]);
    let x = perceptron.flatten(perceptron.input());
    let x = perceptron.linear("hidden", x, 48, true);
    let x = perceptron.relu(x);
    let x = perceptron.dropout(x, 0.2);
    perceptron.linear("output", x, 10, true);
    Chain::new(vec![features.build(seeds)?, perceptron.build(seeds)?])
}

fn main() -> Result<(), ronde::Error> {
    let mut worker = ronde::Worker::start()?;
    let mut arguments = std::env::args().skip(1);
    let [folder, epochs, run_file] = std::array::from_fn(|_| arguments.next());
    let mut config = match run_file {
        Some(path) => ronde::RunConfig::load(path)?,
        None => ronde::RunConfig::example(),
    };
    let epochs = epochs.and_then(|epochs| epochs.parse().ok());
    config.train.epochs = Some(epochs.unwrap_or(5));
    // With a folder as argument: checkpoints are saved there, also on SIGTERM, and the next start resumes.
    let resume = match &folder {
        Some(_) => ronde::Resume::IfAvailable,
        None => ronde::Resume::Never,
    };
    config.checkpoint.to = folder;
    let data = ronde::data::open(
        &config.data,
        &ronde::environment::opening(Path::new("."), config.run.seed),
    )?;

    let seeds = SeedTree::new(config.run.seed);
    let trainer = worker.trainer(&config, data).resume(resume);
    let trained = trainer.train(|| net(&seeds))?;

    if trained.is_first() {
        let evaluation = trained.summary().evaluation.as_ref();
        if let Some(accuracy) = evaluation.and_then(|evaluation| evaluation.metric("accuracy")) {
            println!("test accuracy {:.1} %", 100.0 * accuracy);
        }
        println!("blake3 {}", trained.blake3()?);
    }
    Ok(())
}
