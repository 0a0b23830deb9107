//! [`render_card`]: the model card, a README.md beside a saved model.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ronde_core::{NameList, PlanIdentity};

use crate::error::ModelError;
use crate::manifest::ModelManifest;
use crate::publish;

/// The file name of the model card.
pub const CARD_FILE: &str = "README.md";

/// The first line of a card; a file without it is the user's own.
const MARKER: &str = "<!-- This model card was written by ronde. -->";

/// The largest number of classes whose confusion matrix is a table of the card.
const MATRIX_CLASSES_MAX: usize = 20;
/// The largest number of mistakes that a card lists.
const MISTAKES_MAX: usize = 20;

/// A program that loads a model, which the tests compile.
const RUST: &str = include_str!("../examples/load_model.rs");

/// Returns the model card: the model, its data, the settings of the plan, the results of its evaluation, the hash, and
/// how to load it. User names, passwords and queries in addresses are left out.
#[must_use]
pub fn render_card(manifest: &ModelManifest) -> String {
    let mut text = format!("{MARKER}\n# {}\n\n", cell(&manifest.run));
    let kind = manifest
        .model
        .as_ref()
        .map_or("own model", |model| model.kind());
    let _ = writeln!(
        text,
        "Model `{kind}` for samples of shape `{:?}` and {} classes, trained for {} steps by ronde {}.\n",
        manifest.input_shape,
        manifest.classes,
        manifest.steps,
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(
        text,
        "BLAKE3 hash of `model.safetensors`: `{}`\n",
        manifest.blake3
    );
    if let Some(best) = &manifest.best {
        let of_run = best.run_steps.map_or_else(String::new, |steps| {
            format!(" of the {steps} steps of the run")
        });
        let _ = writeln!(
            text,
            "It is the model after {}{of_run}, whose `{}` was the best of all evaluations of the run.\n",
            best.step.saturating_add(1),
            cell(&best.metric)
        );
    }
    signature(manifest, &mut text);
    evaluation(manifest, &mut text);
    let is_data = |key: &str| key.starts_with("data.");
    let is_lineage = |key: &str| key.starts_with("lineage.");
    settings("Data", manifest, is_data, &mut text);
    let is_plan = |key: &str| !is_data(key) && !is_lineage(key);
    settings("Plan", manifest, is_plan, &mut text);
    lineage(manifest, &mut text);
    let _ = writeln!(
        text,
        "These settings determine the bits of the weights, on any number of workers; the hash of the plan is `{}`.\n",
        manifest.plan
    );
    loading(manifest, &mut text);
    text
}

/// Writes the names and the units of inputs and outputs.
fn signature(manifest: &ModelManifest, text: &mut String) {
    let signature = &manifest.signature;
    let lists = [
        ("Input columns, in their order", signature.columns.clone()),
        (
            "Classes, in the order of the outputs",
            signature.class_labels(manifest.classes as usize),
        ),
        (
            "Output values, in their order",
            signature.value_names.clone(),
        ),
    ];
    for (title, names) in lists {
        if !names.is_empty() {
            let _ = writeln!(text, "{title}: {}\n", cell(&NameList(&names).to_string()));
        }
    }
    if let Some(scale) = signature.feature_scale {
        let _ = writeln!(
            text,
            "The input is the numbers of the data divided by {scale}.\n"
        );
    }
    if let Some(scale) = manifest.output_scale() {
        let _ = writeln!(
            text,
            "The outputs of the weights are in units of {scale}: multiplied by {scale}, they are in the units of the data. \
             `ronde predict`, `ronde serve`, an exported ONNX file and the errors below use the units of the data.\n"
        );
    }
}

fn evaluation(manifest: &ModelManifest, text: &mut String) {
    let Some(evaluation) = &manifest.evaluation else {
        return;
    };
    let _ = writeln!(
        text,
        "## Results\n\nThe evaluation of these weights after {} steps, on {} samples that were not trained on:\n\n| metric | value |\n|---|---|",
        evaluation.steps.unwrap_or(manifest.steps),
        evaluation.samples
    );
    for (name, value) in &evaluation.values {
        let _ = writeln!(text, "| {} | {value:.6} |", cell(name));
    }
    text.push('\n');
    if let Some(rows) = &evaluation.confusion {
        confusion(rows, &manifest.signature.class_labels(rows.len()), text);
    }
}

/// Writes a confusion matrix: whole for few classes, otherwise its largest elements beside the diagonal.
fn confusion(rows: &[Vec<u64>], names: &[String], text: &mut String) {
    let name = |class: usize| {
        names
            .get(class)
            .map_or(class.to_string(), |name| cell(name))
    };
    if rows.len() <= MATRIX_CLASSES_MAX {
        text.push_str("A row for each true class, a column for each predicted one:\n\n| |");
        (0..rows.len()).for_each(|class| {
            let _ = write!(text, " {} |", name(class));
        });
        let _ = writeln!(text, "\n|---|{}", "---|".repeat(rows.len()));
        for (class, row) in rows.iter().enumerate() {
            let _ = write!(text, "| **{}** |", name(class));
            row.iter().for_each(|count| {
                let _ = write!(text, " {count} |");
            });
            text.push('\n');
        }
    } else {
        let each = rows.iter().enumerate();
        let mistakes = each.flat_map(|(class, row)| {
            let others = row.iter().enumerate();
            let wrong = others.filter(move |(found, count)| *found != class && **count > 0);
            wrong.map(move |(found, count)| (std::cmp::Reverse(*count), class, found))
        });
        let mut mistakes: Vec<_> = mistakes.collect();
        mistakes.sort_unstable();
        text.push_str(
            "The most frequent mistakes:\n\n| true class | predicted | targets |\n|---|---|---|\n",
        );
        for (count, class, found) in mistakes.into_iter().take(MISTAKES_MAX) {
            let _ = writeln!(text, "| {} | {} | {} |", name(class), name(found), count.0);
        }
    }
    text.push('\n');
}

/// Writes the earlier plans of an extended run.
fn lineage(manifest: &ModelManifest, text: &mut String) {
    let mut identity = PlanIdentity::default();
    for (name, value) in &manifest.identity {
        identity.set(name, value);
    }
    let parents = identity.lineage();
    if parents.is_empty() {
        return;
    }
    text.push_str(
        "## Lineage\n\nThe run was extended: each line is an earlier plan, its last step, and what changed then.\n\n\
         | plan | until step | changes |\n|---|---|---|\n",
    );
    for parent in parents {
        let changes = cell(&without_secrets(&parent.changes));
        let _ = writeln!(
            text,
            "| `{}` | {} | {changes} |",
            cell(&parent.plan),
            parent.step
        );
    }
    text.push('\n');
}

fn settings(
    title: &str,
    manifest: &ModelManifest,
    is_listed: impl Fn(&str) -> bool,
    text: &mut String,
) {
    let listed = manifest.identity.iter().filter(|(key, _)| is_listed(key));
    let rows: Vec<String> = listed
        .map(|(key, value)| format!("| `{}` | {} |\n", cell(key), cell(&without_secrets(value))))
        .collect();
    if !rows.is_empty() {
        let _ = writeln!(
            text,
            "## {title}\n\n| setting | value |\n|---|---|\n{}",
            rows.concat()
        );
    }
}

fn loading(manifest: &ModelManifest, text: &mut String) {
    text.push_str("## Loading\n\n");
    if manifest.model.is_none() {
        text.push_str(
            "The program that trained the model builds it, and loads the weights with `SavedModel::load_into` of \
             `ronde-saved-model`.\n\n",
        );
    } else {
        let start = RUST.find("use ").unwrap_or_default();
        let program = RUST[start..].trim_end();
        let _ = writeln!(text, "In Rust:\n\n```rust\n{program}\n```\n");
        text.push_str(
            "In Python, after `ronde export FOLDER --format onnx`, with `samples` as a numpy array:\n\n```python\n\
             import onnxruntime\n\
             session = onnxruntime.InferenceSession(\"model.onnx\")\n\
             (outputs,) = session.run(None, {\"input\": samples})\n```\n\n",
        );
    }
    text.push_str(
        "The weights alone, in Python:\n\n```python\n\
         from safetensors.numpy import load_file\n\
         weights = load_file(\"model.safetensors\")\n```\n",
    );
}

/// Returns text that stays in one cell of a table.
fn cell(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.replace('|', "\\|").replace('<', "&lt;")
}

/// Returns text in which each address has neither user, password nor query.
fn without_secrets(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['"', '\'', ' ', ',']).unwrap_or(part.len());
        let (address, rest) = part.split_at(end);
        let address = address.split(['?', '#']).next().unwrap_or_default();
        let host_end = address.find('/').unwrap_or(address.len());
        let (host, path) = address.split_at(host_end);
        let host = host.rsplit('@').next().unwrap_or_default();
        let _ = write!(shown, "://{host}{path}{rest}");
    }
    shown
}

/// Writes the model card into a folder, unless there is a README.md that ronde has not written.
///
/// # Errors
/// The file cannot be written.
pub fn write_card(folder: &Path, manifest: &ModelManifest) -> Result<(), ModelError> {
    let path = folder.join(CARD_FILE);
    if path.exists() && !is_card(&path) {
        return Ok(());
    }
    publish(&path, render_card(manifest).as_bytes())
}

/// Returns whether a file is a model card that ronde has written.
#[must_use]
pub fn is_card(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| {
        let length = MARKER.len() as u64;
        file.take(length).read_to_end(&mut start)
    });
    read.is_ok() && start == MARKER.as_bytes()
}

#[cfg(test)]
mod tests {
    use ronde_core::DataSignature;
    use ronde_engine::ModelConfig;

    use super::*;
    use crate::manifest::{BestEvaluation, ModelEvaluation};
    use crate::testing::built;

    #[test]
    fn a_card_has_data_plan_results_and_hash_and_no_secrets() {
        let (_, mut manifest) = built(&ModelConfig::Linear {}, &[4], 3);
        manifest.blake3 = "ab".repeat(32);
        manifest.evaluation = Some(ModelEvaluation {
            steps: Some(7),
            data: None,
            samples: 20,
            values: [("accuracy".to_owned(), 0.75)].into(),
            confusion: Some(vec![vec![9, 1], vec![4, 6]]),
        });
        manifest.steps = 7;
        manifest.best = Some(BestEvaluation {
            metric: "accuracy".to_owned(),
            step: 6,
            run_steps: Some(30),
        });
        let address = "[\"https://me:secret@host/a?sig=secret\", \"s3://bucket/b\"]";
        manifest.identity = vec![
            ("data.address".to_owned(), address.to_owned()),
            ("train.epochs".to_owned(), "3 | 4\n# x".to_owned()),
            ("lineage.000.plan".to_owned(), "cd".repeat(32)),
            ("lineage.000.step".to_owned(), "69".to_owned()),
            ("lineage.000.changes".to_owned(), "a|b changed".to_owned()),
        ];
        let parent = format!("| `{}` | 69 | a\\|b changed |", "cd".repeat(32));
        let card = render_card(&manifest);
        assert!(!card.contains("secret"), "{card}");
        for words in [
            "| `data.address` | [\"https://host/a\", \"s3://bucket/b\"] |",
            "| `train.epochs` | 3 \\| 4 # x |",
            "trained for 7 steps",
            "It is the model after 7 of the 30 steps of the run, whose `accuracy` was the best",
            "The evaluation of these weights after 7 steps, on 20 samples",
            "| accuracy | 0.750000 |",
            "| | 0 | 1 |\n|---|---|---|\n| **0** | 9 | 1 |\n| **1** | 4 | 6 |\n\n",
            &manifest.blake3,
            &parent,
            "SavedModel::open(folder)",
        ] {
            assert!(card.contains(words), "{words}: {card}");
        }
    }

    #[test]
    fn a_card_names_classes_columns_and_units() {
        let (_, mut manifest) = built(&ModelConfig::Linear {}, &[2], 2);
        manifest.signature = DataSignature {
            columns: vec!["height".to_owned(), "width".to_owned()],
            class_names: vec!["cat".to_owned(), "a|b".to_owned()],
            value_scale: Some(100.0),
            ..DataSignature::default()
        };
        manifest.evaluation = Some(ModelEvaluation {
            confusion: Some(vec![vec![9, 1], vec![4, 6]]),
            ..ModelEvaluation::default()
        });
        let card = render_card(&manifest);
        for words in [
            "Input columns, in their order: `height`, `width`\n",
            "Classes, in the order of the outputs: `cat`, `a\\|b`\n",
            "multiplied by 100, they are in the units of the data",
            "| | cat | a\\|b |\n|---|---|---|\n| **cat** | 9 | 1 |\n| **a\\|b** | 4 | 6 |\n",
        ] {
            assert!(card.contains(words), "{words}: {card}");
        }
    }

    #[test]
    fn the_mistakes_of_many_classes_are_listed_by_their_number() {
        let mut rows = vec![vec![0; 30]; 30];
        (rows[3][3], rows[3][4], rows[7][1]) = (50, 2, 5);
        let mut text = String::new();
        confusion(&rows, &[], &mut text);
        assert!(
            text.ends_with("|---|---|---|\n| 7 | 1 | 5 |\n| 3 | 4 | 2 |\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_readme_of_the_user_is_not_replaced() {
        let (_, manifest) = built(&ModelConfig::Linear {}, &[4], 3);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CARD_FILE);
        write_card(folder.path(), &manifest).unwrap();
        assert!(is_card(&path));
        write_card(folder.path(), &manifest).unwrap();
        std::fs::write(&path, "mine").unwrap();
        write_card(folder.path(), &manifest).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
