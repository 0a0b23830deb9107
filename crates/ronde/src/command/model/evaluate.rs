//! `ronde evaluate`: measures a saved model on test data.

use std::fmt::Write as _;

use clap::Args;
use ronde_data::{Dataset, Targets};
use ronde_engine::{ConfusionCounts, ConfusionMatrix, ModelConfig};
use ronde_report::TextTable;
use ronde_saved_model::ModelManifest;
use ronde_tracking::render::printable;
use ronde_train::Objective;
use ronde_train::evaluate::{Evaluation, evaluate_alone};

use crate::command::console::{message, print};
use crate::command::exit;
use crate::command::model::model_data::{ModelData, ModelDataArguments};

/// The largest number of classes whose confusion matrix is printed as a table.
const CLASSES_PRINTED_MAX: usize = 20;

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
        Ok((evaluation, labels)) if arguments.json => json(&evaluation, &labels),
        Ok((evaluation, labels)) => text(&evaluation, &labels),
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    print(printed)
}

/// Returns the evaluation of a model, and the names of its classes.
fn evaluate(arguments: &EvaluateArguments) -> Result<(Evaluation, Vec<String>), String> {
    let ModelData {
        saved,
        config,
        test,
        notes,
        differences,
    } = arguments.source.open(arguments.json)?;
    for note in notes {
        message!("note: {note}");
    }
    for difference in &differences {
        message!("{difference}");
    }
    if let Some(note) = engine_note(saved.manifest()) {
        message!("{note}");
    }
    let mut model = saved.chain().map_err(|error| format!("error: {error}"))?;
    let kind = saved.manifest().model.as_ref();
    let kind = kind.unwrap_or(&config.model.config);
    let objective = Objective::of(kind, &*test, config.train.loss, &config.train.metrics);
    let settings = config.loader.settings(&*test, 1);
    let manifest = saved.manifest();
    let labels = manifest.signature.class_labels(manifest.classes as usize);
    objective
        .map(|objective| with_confusion(objective, kind, &*test))
        .and_then(|objective| evaluate_alone(&mut model, &test, &objective, settings))
        .map(|evaluation| (evaluation, labels))
        .map_err(|error| format!("error: {error}"))
}

/// Returns a note if another version of the engine has trained a model.
fn engine_note(manifest: &ModelManifest) -> Option<String> {
    let trained_by = manifest.setting("engine")?;
    let engine = ronde_engine::engine_name();
    (trained_by != engine).then(|| {
        format!(
            "note: the model was trained by the engine {trained_by} and is evaluated by {engine}: results may differ in the \
             last digits"
        )
    })
}

/// Adds the confusion matrix to the objective of samples that have one class each, unless there are too many classes.
fn with_confusion(mut objective: Objective, model: &ModelConfig, data: &dyn Dataset) -> Objective {
    let description = data.description();
    let has_classes = model.uses_targets() && description.targets == Targets::Classes;
    if has_classes && description.targets_per_sample == 1 {
        objective.confusion = ConfusionCounts::new(description.classes as usize);
    }
    objective
}

fn text(evaluation: &Evaluation, labels: &[String]) -> String {
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
    if let Some(matrix) = &evaluation.confusion {
        text.push_str(&table(matrix, labels));
    }
    text
}

/// Returns a confusion matrix as text after a blank line, or where to find it if it is too wide for a terminal.
fn table(matrix: &ConfusionMatrix, labels: &[String]) -> String {
    let rows = matrix.rows();
    let classes = rows.len();
    if classes > CLASSES_PRINTED_MAX {
        return format!("\n\nconfusion matrix      {classes} classes: pass --json to print it");
    }
    let label = |class: usize| {
        let label = labels.get(class);
        label.map_or_else(|| class.to_string(), |label| printable(label).to_string())
    };
    let head = std::iter::once(String::new()).chain((0..classes).map(label));
    let mut table = TextTable::new(head).right(0..=classes).indented(2);
    for (class, row) in rows.iter().enumerate() {
        let counts = row.iter().map(ToString::to_string);
        table.row(std::iter::once(label(class)).chain(counts));
    }
    format!(
        "\n\nconfusion matrix      a row for each true class, a column for each predicted one\n{table}"
    )
}

/// Returns the fields of an `evaluated` event, and the confusion matrix with the names of its classes.
fn json(evaluation: &Evaluation, labels: &[String]) -> String {
    let mut fields = serde_json::Map::new();
    fields.insert("loss".to_owned(), evaluation.loss.into());
    fields.insert("samples".to_owned(), evaluation.samples.into());
    for (name, value) in &evaluation.metrics {
        fields.insert(name.clone(), (*value).into());
    }
    if let Some(matrix) = &evaluation.confusion {
        fields.insert("confusion_matrix".to_owned(), matrix.rows().into());
        if !labels.is_empty() {
            fields.insert("classes".to_owned(), labels.into());
        }
    }
    serde_json::Value::Object(fields).to_string()
}
