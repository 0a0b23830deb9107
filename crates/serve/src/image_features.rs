//! [`image_features`]: the conversion of encoded images to the inputs of a model.

use ronde_data::decode::{Crop, ImageFeatures};
use ronde_saved_model::ModelManifest;

/// Returns how encoded images become inputs of a model; `None` if the model was not trained on encoded images.
#[must_use]
pub fn image_features(manifest: &ModelManifest) -> Option<ImageFeatures> {
    let images = manifest.images.as_ref()?;
    Some(ImageFeatures {
        field: "image".to_owned(),
        shape: manifest.input_shape.clone(),
        resize: images.resize,
        crop: images.crops_center.then_some(Crop::Center),
        flip: false,
        area: [1.0, 1.0],
        mean: images.mean.clone(),
        std: images.std.clone(),
    })
}
