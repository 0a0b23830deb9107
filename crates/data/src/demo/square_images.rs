//! [`SquareImagesConfig`]: the settings of synthetic images of shapes.

use serde::{Deserialize, Serialize};

use super::SplitSizes;
use crate::dataset::check_form;
use crate::error::DataError;

/// The settings of synthetic square images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SquareImagesConfig {
    /// The number of training samples.
    pub samples: u64,
    /// The number of samples for evaluation.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub test_samples: u64,
    /// The height and width of an image.
    pub side: usize,
}

impl SquareImagesConfig {
    /// Returns the error of each key, if there is one, for images of some channels.
    pub(crate) fn problems(&self, channels: usize) -> Vec<(&'static str, Option<DataError>)> {
        let counts = SplitSizes::new(self.samples, self.test_samples);
        let form = check_form(&[channels, self.side, self.side], 1);
        vec![("samples", counts.err()), ("side", form.err())]
    }
}
