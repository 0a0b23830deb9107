//! A custom model with layers in parts, which workers divide. The model is written to a folder, tensor by tensor, so it may be too
//! large for one worker.
//!
//! ```text
//! cargo run --release --example own_divided_model                       # alone
//! cargo run --release -- run -n 4 -- target/release/examples/own_divided_model runs/divided 2 2
//! ```
//!
//! The arguments are the folder of the run [default: runs/own_divided_model], and the workers of the pipeline and of the parts of
//! each layer [default: 1].

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use ronde::core::seed::SeedTree;
use ronde::engine::{Chain, EngineError, GraphBuilder};
use ronde::saved_model::SavedModel;

/// The number of parts of the hidden layers, which up to as many workers compute.
const PARTS: u32 = 4;

/// A perceptron whose hidden layers have a share of the columns in each part.
fn net(seeds: &SeedTree) -> Result<Chain, EngineError> {
    let hidden = |name: &str, input: &[usize]| {
        let mut layer = GraphBuilder::new(name, input);
        let x = layer.flatten(layer.input());
        let parts = layer.each_part(PARTS, |layer, _| {
            let x = layer.linear_columns("", x, (48, 1), true);
            layer.relu(x)
        });
        layer.join_parts(&parts);
        layer.build(seeds)
    };
    let mut output = GraphBuilder::new("output", &[48]);
    output.linear("", output.input(), 10, true);
    let (first, second) = (hidden("first", &[1, 8, 8])?, hidden("second", &[48])?);
    Chain::new(vec![first, second, output.build(seeds)?])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut worker = ronde::Worker::start()?;
    let mut config = ronde::RunConfig::example();
    let mut arguments = std::env::args().skip(1);
    config.run.name = "own_divided_model".to_owned();
    config.run.output = arguments.next().map(Into::into);
    let mut workers = || arguments.next().map_or(Ok(1), |workers| workers.parse());
    (config.parallel.pipeline, config.parallel.tensor) = (workers()?, workers()?);
    config.train.epochs = Some(3);
    let opening = ronde::environment::opening(Path::new("."), config.run.seed);
    let data = ronde::data::open(&config.data, &opening)?;

    let seeds = SeedTree::new(config.run.seed);
    let trainer = worker.trainer(&config, data).overwrite();
    let finished = trainer.train_to_folder(|| net(&seeds))?;

    if finished.is_first() {
        let saved = SavedModel::open(finished.folder())?;
        println!("blake3 {}", saved.manifest().blake3);
    }
    Ok(())
}
