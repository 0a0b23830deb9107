//! `ronde evaluate`: measures a saved model on test data.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use ronde::environment;
use ronde_model::SavedModel;
use ronde_train::config::{Document, Override};
use ronde_train::evaluate::{Evaluation, evaluate_alone};
use ronde_train::{Objective, TrainError};

use super::console::{Printable, message};
use super::train::read_run_file;
use super::{data_progress, exit};

/// Arguments of `ronde evaluate`.
#[derive(Args)]
pub(crate) struct EvaluateArguments {
    /// Folder of a finished run, or its model.safetensors.
    model: PathBuf,
    /// Run file whose test data and loss are used [default: run.toml beside the model].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Override a value of the run file, such as `--set data.test=more.csv`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
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
    let saved = SavedModel::open(&arguments.model).map_err(|error| format!("error: {error}"))?;
    let beside = saved.weights().path().with_file_name("run.toml");
    let file = arguments.data.as_ref().unwrap_or(&beside);
    if arguments.data.is_none() && !file.exists() {
        return Err(format!(
            "error: there is no run file beside the model: {}\n  help: name one with --data",
            file.display()
        ));
    }
    let (text, name, folder) = read_run_file(Some(file))?;
    // The file beside the model is a copy: its paths do not start where it lies.
    let base = arguments
        .data
        .as_ref()
        .map_or_else(|| PathBuf::from("."), |_| folder);
    let sets: Vec<Override> = arguments.sets.iter().cloned().map(Override::Set).collect();
    let (config, _) = Document::load(&text, &name, &environment::all(), &sets)
        .map_err(|error| error.render(false))?;
    let failed = |error: TrainError| format!("error: {error}");
    let base = base.canonicalize().unwrap_or(base);
    let progress = data_progress::show(arguments.json);
    let opening = environment::surroundings().opening(&base, config.run.seed, progress);
    let split = ronde_data::open(&config.data, &opening).map_err(|error| failed(error.into()))?;
    let Some(test) = split.test else {
        return Err(format!(
            "error: cannot evaluate: {name} has no test data\n  help: add `data.test`, or name it with --set data.test=FILE"
        ));
    };
    let (manifest, found) = (saved.manifest(), test.description());
    if (&manifest.input_shape, manifest.classes) != (&found.shape, found.classes) {
        return Err(format!(
            "error: cannot evaluate: the model was trained on samples of shape {:?} with {} classes or values, but the test \
             data has shape {:?} with {}\n  help: name the run file of suitable data with --data",
            manifest.input_shape, manifest.classes, found.shape, found.classes
        ));
    }
    let mut model = saved.chain().map_err(|error| format!("error: {error}"))?;
    let kind = manifest.model.as_ref().unwrap_or(&config.model.config);
    let objective = Objective::of(kind, &*test, config.train.loss, &config.train.metrics);
    let settings = config.loader.settings(&*test, 1);
    objective
        .and_then(|objective| evaluate_alone(&mut model, &test, &objective, settings))
        .map_err(failed)
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
