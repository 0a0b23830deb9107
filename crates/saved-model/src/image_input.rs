//! [`ImageInput`]: how an encoded image becomes the input of a model.

use serde::{Deserialize, Serialize};

/// How an encoded image becomes the input of a model, as in the evaluations of its run: resized (triangle filter over all
/// pixels), as bytes divided by 255, minus `mean`, divided by `std`, one plane per channel. The number of channels, the height and
/// the width are those of [`ModelManifest::input_shape`](crate::ModelManifest::input_shape).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageInput {
    /// The length in pixels to which the shorter side is resized before the centre is cropped; absent: the largest centre that
    /// has the proportions of the input is resized to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
    /// Whether the centre of the image is used. Otherwise the whole image is stretched, unless there is `resize`.
    pub crops_center: bool,
    /// The mean that is subtracted from the values (0 to 1) of each channel; absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// The divisor of each channel after the subtraction; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
}
