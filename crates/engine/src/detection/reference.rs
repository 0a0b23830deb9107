//! The images of `tests/pytorch/detection.py` with the results of PyTorch and pycocotools.

use serde::Deserialize;

use super::{BOX_OUTPUTS, BOX_TARGETS, DetectedImages};
use crate::loss::IGNORED;

/// The images and the results.
#[derive(Deserialize)]
pub(crate) struct ReferenceImages {
    size: [usize; 2],
    classes: usize,
    /// The mean average precision by pycocotools.
    pub(crate) map50: f64,
    /// The loss of hashed outputs.
    pub(crate) loss: f64,
    /// The product of its gradient with fixed numbers, and its norm.
    pub(crate) gradient: [f64; 2],
    images: Vec<ReferenceImage>,
}

#[derive(Deserialize)]
struct ReferenceImage {
    /// Class, top, left, bottom, right.
    boxes: Vec<(u32, f32, f32, f32, f32)>,
    /// Cell, class, logit and the four outputs that describe a box.
    predictions: Vec<(usize, usize, f32, f32, f32, f32, f32)>,
}

impl ReferenceImages {
    pub(crate) fn load() -> Self {
        serde_json::from_str(include_str!("../../tests/pytorch/detection.json")).unwrap()
    }

    pub(crate) fn images(&self) -> DetectedImages {
        DetectedImages {
            size: self.size,
            classes: self.classes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.images.len()
    }

    fn cells(&self) -> usize {
        self.size[0] * self.size[1] / 64
    }

    /// Returns the number of outputs of an image.
    pub(crate) fn outputs_each(&self) -> usize {
        (BOX_OUTPUTS + self.classes) * self.cells()
    }

    /// Returns the targets of all images; those without a box do not exist.
    pub(crate) fn targets(&self) -> Vec<u32> {
        let most = self.images.iter().map(|image| image.boxes.len()).max();
        let mut targets = Vec::new();
        for image in &self.images {
            let start = targets.len();
            for &(class, top, left, bottom, right) in &image.boxes {
                targets.push(class);
                targets.extend([top, left, bottom, right].map(f32::to_bits));
            }
            targets.resize(start + most.unwrap() * BOX_TARGETS, IGNORED);
        }
        targets
    }

    /// Returns the outputs of all images, with logits of -20 elsewhere.
    pub(crate) fn outputs(&self) -> Vec<f32> {
        let cells = self.cells();
        let mut outputs = Vec::new();
        for image in &self.images {
            let start = outputs.len();
            outputs.resize(start + BOX_OUTPUTS * cells, 0.0);
            outputs.resize(start + self.outputs_each(), -20.0);
            for &(cell, class, logit, down, across, height, width) in &image.predictions {
                for (at, value) in [down, across, height, width].into_iter().enumerate() {
                    outputs[start + at * cells + cell] = value;
                }
                outputs[start + (BOX_OUTPUTS + class) * cells + cell] = logit;
            }
        }
        outputs
    }
}
