//! The names, the units and the tokens of a saved model, compared with those of the data on which a command uses it.

use std::path::Path;

use ronde_data::{DataConfig, Dataset, InModelOrder, ModelForm, OpenContext, Split};
use ronde_engine::ModelConfig;
use ronde_saved_model::{ModelManifest, SavedModel};
use ronde_train::check_tokens;

/// Opens data with the classes, the columns and the units of a model. Returns it with notes about what was changed or cannot be
/// compared. Cost: that of opening the data, twice if the order of its names is not that of the model.
///
/// # Errors
/// The data cannot be opened, or a name or a token of it is not one of the model.
pub(crate) fn open_for(
    saved: &SavedModel,
    data: &DataConfig,
    opening: &OpenContext,
) -> Result<(Split, Vec<String>), String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("{error}\n  help: name the run file of suitable data with --data")
    };
    let opened = |data: &DataConfig| ronde_data::open(data, opening);
    let split = opened(data).map_err(|error| error.to_string())?;
    let description = split.train.description();
    let manifest = saved.manifest();
    let InModelOrder { config, notes } = data
        .in_model_order(description, &form(manifest))
        .map_err(|error| failed(&error))?;
    tokens_match(saved, &*split.train).map_err(|error| failed(&error))?;
    let split = match config {
        None => split,
        Some(data) => opened(&data).map_err(|error| error.to_string())?,
    };
    Ok((split, notes))
}

/// Returns the names and the units that data must have for a model.
fn form(manifest: &ModelManifest) -> ModelForm<'_> {
    let model = manifest.model.as_ref();
    let images = manifest.images.as_ref();
    ModelForm {
        signature: &manifest.signature,
        image_scaling: images.map(|images| [&images.mean, &images.std]),
        has_outputs: model.is_none_or(ModelConfig::uses_targets),
        has_columns: true,
        has_units: true,
    }
}

/// Checks that the tokens of the data have the texts of those of a model.
fn tokens_match(saved: &SavedModel, data: &dyn Dataset) -> Result<(), String> {
    let description = data.description();
    let (Some(theirs), Some(own)) = (&saved.manifest().vocabulary, &description.vocabulary) else {
        return Ok(());
    };
    let folder = saved.weights().path().parent();
    check_tokens(theirs, folder.unwrap_or(Path::new(".")), own)
}
