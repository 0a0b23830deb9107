//! The names of the classes and columns of a model from which a run starts: `model.init`.

use std::path::{Path, PathBuf};

use ronde_core::DataSignature;
use ronde_data::{DatasetDescription, InModelOrder, ModelForm};
use ronde_engine::{GraphOutline, ModelConfig, matches_pattern};
use ronde_saved_model::{InitialWeights, MANIFEST_FILE, ModelManifest, WEIGHTS_FILE};

use crate::config::RunConfig;
use crate::config::StartSection;
use crate::error::TrainError;
use crate::token_texts::check_tokens;

/// Returns the data section of a run in the order of the classes and columns of the model from which it starts. `None`: it
/// starts from no model with names.
///
/// # Errors
/// [`TrainError::Impossible`] when a class or column is missing or new, and the tensors that depend on them are not in
/// `model.init_new`.
pub fn in_order_of_initial(
    config: &RunConfig,
    base: &Path,
    data: &DatasetDescription,
) -> Result<Option<InModelOrder>, TrainError> {
    let start = &config.model.start;
    let Some(InitialModel { manifest, folder }) = InitialModel::of(start, base) else {
        return Ok(None);
    };
    let signature = manifest.signature;
    let model = &config.model.config;
    let new = NewTensors::of(model, data, &start.init_new);
    let form = ModelForm {
        signature: &signature,
        image_scaling: None,
        has_outputs: model.uses_targets() && !new.outputs,
        has_columns: !new.inputs,
        has_units: false,
    };
    let refused = |error: &dyn std::fmt::Display| TrainError::Impossible {
        problem: format!("cannot start from model.init: {error}"),
        hint: new.hint.clone(),
    };
    let ordered = config.data.in_model_order(data, &form);
    let mut ordered = ordered.map_err(|error| refused(&error))?;
    if let (Some(theirs), Some(own), false) = (&manifest.vocabulary, &data.vocabulary, new.outputs)
    {
        check_tokens(theirs, &folder, own).map_err(|error| refused(&error))?;
    }
    let has_other_classes = signature.class_names != data.signature.class_names;
    if new.outputs && model.uses_targets() && has_other_classes {
        ordered.notes.push(
            "the classes are not those of model.init; model.init_new draws the tensors that depend on them"
                .to_owned(),
        );
    }
    let divisors = [signature.value_scale, data.signature.value_scale];
    if !new.outputs && divisors[0] != divisors[1] {
        let [theirs, own] = divisors.map(|divisor| divisor.unwrap_or(1.0));
        ordered.notes.push(format!(
            "the target values are divided by {own}, those of model.init were divided by {theirs}"
        ));
    }
    Ok(Some(ordered))
}

/// Checks that the data of a user's own model has the classes and columns of the model from which it starts, in their order.
///
/// # Errors
/// [`TrainError::Impossible`] with the names of both, unless `model.init_new` names new tensors.
pub fn check_own(
    start: &StartSection,
    base: &Path,
    data: &DataSignature,
) -> Result<(), TrainError> {
    let initial = InitialModel::of(start, base).filter(|_| start.init_new.is_empty());
    let Some(model) = initial.map(|initial| initial.manifest.signature) else {
        return Ok(());
    };
    for (what, model, data) in [
        ("classes", &model.class_names, &data.class_names),
        ("columns", &model.columns, &data.columns),
    ] {
        if model != data && !model.is_empty() && !data.is_empty() {
            let (model, data) = (model.clone(), data.clone());
            let error = ronde_data::SignatureError { what, model, data };
            return Err(TrainError::Impossible {
                problem: format!("cannot start from model.init: {error}"),
                hint: "use the names of the model in its order, or name the new tensors in model.init_new"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

/// The model from which a run starts.
struct InitialModel {
    manifest: ModelManifest,
    folder: PathBuf,
}

impl InitialModel {
    /// Reads the manifest beside the file of `model.init`; `None` without one. Problems of the files are reported when
    /// the weights are read.
    fn of(start: &StartSection, base: &Path) -> Option<Self> {
        let weights = InitialWeights::file_of(&base.join(start.init.as_ref()?));
        if weights.file_name() != Some(WEIGHTS_FILE.as_ref()) {
            return None;
        }
        Some(Self {
            manifest: ModelManifest::read(&weights.with_file_name(MANIFEST_FILE)).ok()?,
            folder: weights.parent()?.to_owned(),
        })
    }
}

/// Whether `model.init_new` has all tensors that depend on the classes, or on the columns.
struct NewTensors {
    outputs: bool,
    inputs: bool,
    /// What to do about other names.
    hint: String,
}

impl NewTensors {
    fn of(model: &ModelConfig, data: &DatasetDescription, patterns: &[String]) -> Self {
        let model = model.with_whole_layers();
        let (shape, classes) = (&data.shape, data.classes);
        let outline = |shape: &[usize], classes| model.outline(shape, classes).ok();
        let present = outline(shape, classes);
        let wider: Vec<usize> = shape.iter().map(|length| length + 1).collect();
        let outputs = changed(&present, &outline(shape, classes + 1));
        let inputs = match shape.len() {
            1 => changed(&present, &outline(&wider, classes)),
            _ => Vec::new(),
        };
        let are_new = |tensors: &[String]| {
            let is_new = |name: &String| patterns.iter().any(|one| matches_pattern(one, name));
            !tensors.is_empty() && tensors.iter().all(is_new)
        };
        Self {
            outputs: are_new(&outputs),
            inputs: are_new(&inputs),
            hint: format!(
                "use the names of the model, or draw the tensors that depend on them: model.init_new = {:?} for other \
                 classes{}",
                outputs,
                match inputs.is_empty() {
                    true => String::new(),
                    false => format!(", {inputs:?} for other columns"),
                }
            ),
        }
    }
}

/// Returns the tensors that have another shape in one of two outlines of a model.
fn changed(one: &Option<Vec<GraphOutline>>, other: &Option<Vec<GraphOutline>>) -> Vec<String> {
    let (Some(one), Some(other)) = (one, other) else {
        return Vec::new();
    };
    let tensors = |layers: &[GraphOutline]| {
        let tensors = layers.iter().flat_map(|layer| {
            let tensors = layer.layout().tensors.iter();
            tensors.map(|entry| (entry.name.clone(), entry.shape.clone()))
        });
        tensors.collect::<Vec<_>>()
    };
    let others = tensors(other);
    let mine = tensors(one).into_iter();
    let changed = mine.filter(|tensor| !others.contains(tensor));
    changed.map(|(name, _)| name).collect()
}
