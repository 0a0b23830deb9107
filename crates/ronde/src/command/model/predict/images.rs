//! The images of `ronde predict --images`.

#[cfg(feature = "full")]
use std::path::PathBuf;
use std::sync::Arc;

use ronde_data::Dataset;
use ronde_saved_model::SavedModel;

#[cfg(feature = "full")]
use crate::command::data::progress;

/// Finds the images, which are converted as those on which the model was trained. Relative paths start from the current folder.
/// With `quiet`, files that are left out are not reported.
///
/// # Errors
/// A message if the model has no use for images, or a pattern matches no file.
#[cfg(feature = "full")]
pub(super) fn find(
    patterns: &[String],
    model: &SavedModel,
    quiet: bool,
) -> Result<Arc<dyn Dataset>, String> {
    let features = ronde_serve::image_features(model.manifest()).ok_or_else(refused)?;
    // As for data, so that an image has one name in all outputs.
    let here = PathBuf::from(".");
    let here = here.canonicalize().unwrap_or(here);
    let show = progress::show(quiet);
    let opening = ronde::environment::surroundings().opening(&here, 0, show);
    let found = ronde_data::ImageFiles::find(patterns, &opening, &features);
    Ok(Arc::new(found.map_err(|error| format!("error: {error}"))?))
}

/// Reports that this build decodes no images.
///
/// # Errors
/// Always.
#[cfg(not(feature = "full"))]
pub(super) fn find(
    _patterns: &[String],
    _model: &SavedModel,
    _quiet: bool,
) -> Result<Arc<dyn Dataset>, String> {
    Err(
        "error: cannot use --images: this program was built without images\n  \
         help: build it with `--features full`"
            .to_owned(),
    )
}

/// Returns the message for a model that was not trained on images.
pub(super) fn refused() -> String {
    "error: cannot use --images: the model was not trained on encoded images (data.features.decode = \"image\")\n  \
     help: leave it out, or train the model again if an earlier release wrote it"
        .to_owned()
}
