//! A custom Burn model, trained on any number of workers with the same bits.
//!
//! ```text
//! cargo run --release --features burn --example own_burn_model                       # alone
//! cargo run --release -- run -n 3 -- target/release/examples/own_burn_model
//! ```
//!
//! The arguments are a folder for checkpoints, the number of epochs [default: 5], and a run file, whose settings apply
//! except `[model]`.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use ronde::burn::burn;
use ronde::burn::burn::module::Module;
use ronde::burn::burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig,
};
use ronde::burn::burn::tensor::activation::relu;
use ronde::burn::burn::tensor::{Device, Tensor};
use ronde::burn::{BurnLayer, training_device};
use ronde::engine::{Chain, ForwardContext};

// Up to the next separator: plain Burn, without ronde.
#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, 48).init(device),
            norm: BatchNormConfig::new(48).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            output: LinearConfig::new(48, 10).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [samples, ..] = images.dims();
        let x = self.hidden.forward(images.reshape([samples, 64]));
        self.output
            .forward(self.dropout.forward(relu(self.norm.forward(x))))
    }
}
// ------------------------------------------------------------------------------------------

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

    let trained = worker.trainer(&config, data).resume(resume).train(|| {
        let net = Net::new(&training_device());
        let layer = BurnLayer::new(net, |net: &Net, images, _: &ForwardContext| {
            net.forward(images)
        });
        Chain::new(vec![Box::new(layer)])
    })?;

    if trained.is_first() {
        let evaluation = trained.summary().evaluation.as_ref();
        if let Some(accuracy) = evaluation.and_then(|evaluation| evaluation.metric("accuracy")) {
            println!("test accuracy {:.1} %", 100.0 * accuracy);
        }
        println!("blake3 {}", trained.blake3()?);
    }
    Ok(())
}
