//! `ronde evaluate`: measures a saved model on test data.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use ronde_train::Objective;
use ronde_train::evaluate::{Evaluation, evaluate_alone};

use super::console::{Printable, message};
use super::exit;
use super::model_data::{ModelData, ModelDataArguments};

/// Arguments of `ronde evaluate`.
#[derive(Args)]
pub(crate) struct EvaluateArguments {
    #[command(flatten)]
    source: ModelDataArguments,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Evaluates a model, and prints the loss and the metrics.
pub(crate) fn run(arguments: &EvaluateArguments) -> i32 {
    let printed = match evaluate(arguments) {
        Ok(evaluation) if arguments.json => json(&evaluation),
        Ok(evaluation) => text(&evaluation),
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    match writeln!(Printable(std::io::stdout()), "{printed}") {
        Ok(()) => exit::DONE,
        Err(error) => {
            message!("error: cannot write standard output: {error}");
            exit::GAVE_UP
        }
    }
}

fn evaluate(arguments: &EvaluateArguments) -> Result<Evaluation, String> {
    let ModelData {
        saved,
        config,
        test,
    } = arguments.source.open(arguments.json)?;
    let mut model = saved.chain().map_err(|error| format!("error: {error}"))?;
    let kind = saved.manifest().model.as_ref();
    let kind = kind.unwrap_or(&config.model.config);
    let objective = Objective::of(kind, &*test, config.train.loss, &config.train.metrics);
    let settings = config.loader.settings(&*test, 1);
    objective
        .and_then(|objective| evaluate_alone(&mut model, &test, &objective, settings))
        .map_err(|error| format!("error: {error}"))
}

fn text(evaluation: &Evaluation) -> String {
    let Evaluation {
        loss,
        metrics,
        samples,
        ..
    } = evaluation;
    let mut text = format!("{:<22}{samples}\n{:<22}{loss:.6}", "samples", "loss");
    for (name, value) in metrics {
        let _ = write!(text, "\n{name:<22}{value:.6}");
    }
    text
}

/// Returns the fields of an `evaluated` event.
fn json(evaluation: &Evaluation) -> String {
    let mut fields = serde_json::Map::new();
    fields.insert("loss".to_owned(), evaluation.loss.into());
    fields.insert("samples".to_owned(), evaluation.samples.into());
    for (name, value) in &evaluation.metrics {
        fields.insert(name.clone(), (*value).into());
    }
    serde_json::Value::Object(fields).to_string()
}
