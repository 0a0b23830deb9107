//! A custom loss, metric, learning rate and callback for a built-in model, with the same bits on any number of workers.
//!
//! ```text
//! cargo run --release --example own_training                    # alone, with progress, into runs/own_training
//! cargo run --release -- run -n 3 --elastic -- target/release/examples/own_training
//! ```
//!
//! The arguments are the folder of the run [default: runs/own_training] and the largest number of epochs [default: 30].
//! An earlier run in that folder is replaced.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use ronde::core::Step;
use ronde::core::seed::SeedTree;
use ronde::engine::{
    CrossEntropy, EngineError, Loss, LossOutput, Metric, Predictions, TopAccuracy,
};
use ronde::train::Callback;
use ronde::train::callback::{Actions, StepReport};
use ronde::train::evaluate::Evaluation;

const CLASSES: usize = 10;

/// Cross-entropy, plus a small multiple of the squared logits.
struct PenalisedCrossEntropy;

impl Loss for PenalisedCrossEntropy {
    fn name(&self) -> String {
        "cross_entropy + 0.01 logits^2".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let classes = CLASSES;
        let mut total = CrossEntropy { classes }.loss_and_gradient(predictions)?;
        for (gradient, logit) in total.gradient.iter_mut().zip(predictions.outputs()) {
            total.loss_sum += 0.01 * f64::from(*logit) * f64::from(*logit);
            *gradient += 0.02 * logit;
        }
        Ok(total)
    }
}

/// The mean size of a logit.
struct LogitSize;

impl Metric for LogitSize {
    fn name(&self) -> &str {
        "logit_size"
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        for logit in predictions.outputs() {
            sums[0] += f64::from(logit.abs());
            sums[1] += 1.0;
        }
        Ok(())
    }
}

/// Evaluates every hundred steps, and ends the run when 97 % of the test samples are recognised.
struct UntilAccurate;

impl Callback for UntilAccurate {
    fn after_step(&mut self, report: &StepReport, actions: &mut Actions) {
        if (report.step.0 + 1).is_multiple_of(100) {
            actions.evaluate();
        }
    }

    fn after_evaluation(&mut self, _: Step, evaluation: &Evaluation, actions: &mut Actions) {
        if evaluation.metric("accuracy") >= Some(0.97) {
            actions.stop();
        }
    }
}

fn main() -> Result<(), ronde::Error> {
    let mut worker = ronde::Worker::start()?;
    let mut config = ronde::RunConfig::example();
    let mut arguments = std::env::args().skip(1);
    config.run.name = "own_training".to_owned();
    config.run.output = arguments.next().map(Into::into);
    let epochs = arguments.next().and_then(|epochs| epochs.parse().ok());
    config.train.epochs = Some(epochs.unwrap_or(30));
    let opening = ronde::environment::opening(".".as_ref(), config.run.seed);
    let data = ronde::data::open(&config.data, &opening)?;
    let (model, seeds) = (config.model.config.clone(), SeedTree::new(config.run.seed));

    let mut trained = worker
        .trainer(&config, data)
        .loss(PenalisedCrossEntropy)
        .metric(TopAccuracy::new(CLASSES, 1))
        .metric(LogitSize)
        .learning_rate("0.02, linear over 100 steps", |step: Step| {
            0.02 * ((step.0 + 1) as f64 / 100.0).min(1.0)
        })
        .callback(UntilAccurate)
        .run_folder()
        .overwrite()
        .train(|| model.build(&[1, 8, 8], CLASSES as u32, &seeds))?;

    if trained.is_first() {
        let logits = trained.predict(&[1, 1, 8, 8], vec![0.5; 64])?;
        println!("a grey image has the logits {:.3?}", logits.as_slice());
        println!("blake3 {}", trained.blake3()?);
    }
    Ok(())
}
