//! [`Schema`]: the fields of a record that are features and label, as set in a run file.

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::format::NumberType;

/// The largest number of fields of features or label.
const FIELDS_MAX: usize = 1 << 20;

/// The fields of a record that are features and label.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// The input of the model.
    pub features: Features,
    /// The targets; absent if the features define them, as tokens do.
    pub label: Option<Label>,
}

/// The input of the model; `decode` selects the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "decode", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Features {
    /// An encoded image: JPEG, PNG or WebP.
    Image(ImageFeatures),
    /// Numeric fields, or numbers as text.
    Numbers(NumberFeatures),
    /// Bytes that are contiguous little-endian numbers.
    Raw(RawFeatures),
    /// Token numbers; the target at each position is the next token.
    Tokens(TokenFeatures),
}

/// One field name or several. `"3..6"` stands for the columns 3, 4 and 5 of a file without names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a name of a field, or a list of names")]
pub enum Fields {
    /// One name.
    One(String),
    /// Several names, in the order of the features.
    Several(Vec<String>),
}

/// An encoded image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ImageFeatures {
    /// The field with the image: `image/encoded`, `jpg`, `image.bytes`; for image folders `image`.
    #[serde(default = "image")]
    pub field: String,
    /// The shape of the model's input: `[3, height, width]`, or `[1, height, width]` for grey levels.
    pub shape: Vec<usize>,
    /// The length to which the shorter side is resized before cropping; by default the size in `shape`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
    /// The crop for training; without it, the whole image is stretched. Evaluation uses the centre.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crop: Option<Crop>,
    /// Whether training images are flipped left to right with probability 1/2.
    #[serde(default)]
    pub flip: bool,
    /// The smallest and largest share of the image's area that `random_resized` crops.
    #[serde(default = "area")]
    pub area: [f32; 2],
    /// The mean that is subtracted from the values (0 to 1) of each channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// The divisor of each channel after the subtraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
}

fn image() -> String {
    "image".to_owned()
}

fn area() -> [f32; 2] {
    [0.08, 1.0]
}

/// The crop of a training image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Crop {
    /// A crop of random area (`area`), aspect ratio (3:4 to 4:3) and position (Szegedy and others, "Going deeper with
    /// convolutions", section 6).
    RandomResized,
    /// A crop at a random position, after `resize`.
    Random,
    /// The centre, after `resize`.
    Center,
}

/// Numeric fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NumberFeatures {
    /// The fields with the numbers, which are concatenated.
    pub field: Fields,
    /// The shape of a sample; its elements are the numbers in row-major order.
    pub shape: Vec<usize>,
    /// A divisor of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Bytes that are read as numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RawFeatures {
    /// The field with the bytes.
    pub field: String,
    /// The type of the numbers; absent for the contents of a `.npy` file, whose header specifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<NumberType>,
    /// The shape of a sample; its elements are the numbers in row-major order.
    pub shape: Vec<usize>,
    /// A divisor of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Token numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenFeatures {
    /// The field with the tokens.
    #[serde(default = "tokens")]
    pub field: String,
    /// The number of tokens of a sample; records have one more, the last target.
    pub context: usize,
    /// The number of different tokens; all are below it. With a tokenizer it defaults to the tokenizer's vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u32>,
}

impl TokenFeatures {
    /// Returns the number of different tokens, or an error if it is missing.
    pub(super) fn required_vocabulary(&self) -> Result<u32, DataError> {
        let missing = "missing; set the number of different tokens";
        self.vocabulary
            .ok_or_else(|| DataError::schema("features.vocabulary", missing))
    }
}

fn tokens() -> String {
    "tokens".to_owned()
}

/// The targets of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The field with the label; several only with `values`. For image folders it is `class`.
    #[serde(default = "class")]
    pub field: Fields,
    /// The number of classes; the field holds their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<u32>,
    /// The number of the first class, such as 1 where 0 means none.
    #[serde(default)]
    pub first: i64,
    /// The names of the classes; the field holds a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// The number of values that are learnt instead of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<u32>,
    /// A divisor of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

fn class() -> Fields {
    Fields::One("class".to_owned())
}

impl Label {
    /// Returns a label with the number of one of `classes` classes in the field `class`.
    pub(crate) fn of_classes(classes: u32) -> Self {
        Self {
            field: class(),
            classes: Some(classes),
            first: 0,
            names: None,
            values: None,
            scale: None,
        }
    }

    /// Returns a label with a value in a field.
    pub(crate) fn of_value(field: Fields) -> Self {
        Self {
            field,
            classes: None,
            values: Some(1),
            ..Self::of_classes(1)
        }
    }
}

impl Fields {
    /// Returns all names.
    pub(crate) fn names(&self, key: &str) -> Result<Vec<String>, DataError> {
        let given = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        };
        let too_many = || DataError::schema(key, format!("more than {FIELDS_MAX} fields"));
        let mut names = Vec::new();
        for name in given {
            match columns(name) {
                Some((first, end)) if end.saturating_sub(first) <= FIELDS_MAX => {
                    names.extend((first..end).map(|column| column.to_string()));
                }
                Some(_) => return Err(too_many()),
                None => names.push(name.clone()),
            }
        }
        match names.len() {
            0 => Err(DataError::schema(key, "the list of fields is empty")),
            1..=FIELDS_MAX => Ok(names),
            _ => Err(too_many()),
        }
    }
}

/// Returns first and end column of `"3..6"`.
fn columns(name: &str) -> Option<(usize, usize)> {
    let (first, end) = name.split_once("..")?;
    Some((first.parse().ok()?, end.parse().ok()?))
}
