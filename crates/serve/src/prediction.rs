//! [`Prediction`]: the result of a model for one sample.

use serde::Serialize;

use crate::class_labels::ClassLabels;

/// The result of a model for one sample. Serialised as an object whose keys depend on the kind of the model. Numbers
/// that are not finite are `null` in JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Prediction {
    /// The class of a sample.
    Class {
        /// The class with the greatest probability, as its number in the data; the first of equal ones.
        class: i64,
        /// Its name, if the classes have names.
        #[serde(skip_serializing_if = "Option::is_none")]
        class_name: Option<String>,
        /// Its probability.
        probability: f32,
        /// The probabilities of all classes, if requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        probabilities: Option<Vec<f32>>,
        /// The most probable classes in the order of their probabilities, if requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        top: Option<Vec<ClassProbability>>,
        /// The names or numbers of all classes, for the headings of a table.
        #[serde(skip)]
        labels: ClassLabels,
    },
    /// The class of each position of a text.
    Positions {
        /// The classes.
        classes: Vec<u32>,
        /// The probability of each of them.
        probabilities: Vec<f32>,
    },
    /// The values of a regression in the units of the data, or the logits of the pixels of a mask.
    Values {
        /// The values, row-major.
        values: Vec<f32>,
    },
    /// The cluster of a sample.
    Cluster {
        /// The nearest cluster; the first of equally near ones.
        cluster: u32,
        /// The squared distance from its centre.
        distance: f32,
    },
    /// The objects in an image.
    Boxes {
        /// The boxes by class, most probable first.
        boxes: Vec<FoundBox>,
    },
    /// A generated text.
    Text {
        /// The text that it continues or translates, as far as its tokens have one.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// The generated tokens.
        tokens: Vec<u32>,
        /// The generated text, as far as the tokens have one.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

/// A class with its probability.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassProbability {
    /// The class, as its number in the data.
    pub class: i64,
    /// Its name, if the classes have names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// The probability, 0 to 1.
    pub probability: f32,
}

/// An object in an image. The sides are shares of the image's height and width, from its top left corner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FoundBox {
    /// The class.
    pub class: u32,
    /// The probability of the class, 0 to 1.
    pub probability: f32,
    /// The top side.
    pub top: f32,
    /// The left side.
    pub left: f32,
    /// The bottom side.
    pub bottom: f32,
    /// The right side.
    pub right: f32,
}
