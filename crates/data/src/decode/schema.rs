//! [`Schema`]: what of a record are features and what is the label, as it stands in a run file.

use serde::{Deserialize, Serialize};

use super::wrong;
use crate::DataError;
use crate::format::NumberType;

/// Most fields that features or label may be made of.
const FIELDS_MAX: usize = 1 << 16;

/// What of a record are features, and what is the label.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// What is given to the model.
    pub features: Features,
    /// What it is to answer; absent where the features tell it themselves, as tokens do.
    pub label: Option<Label>,
}

/// What is given to the model; told apart by `decode`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "decode", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Features {
    /// An encoded image: JPEG, PNG or WebP.
    Image(ImageFeatures),
    /// Numbers of the record, or text that says them.
    Numbers(NumberFeatures),
    /// Bytes that are numbers, one after the other, little-endian.
    Raw(RawFeatures),
    /// Numbers of tokens; the next one is to be told at each place.
    Tokens(TokenFeatures),
}

/// One name or several. `"3..6"` stands for the columns 3, 4 and 5 of a file without names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name of a field, or a list of names")]
pub enum Fields {
    /// One.
    One(String),
    /// Several, in the order of the features.
    Several(Vec<String>),
}

/// An encoded image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageFeatures {
    /// The field that holds it: `image/encoded`, `jpg`, `image.bytes`; of a folder of images `image`.
    #[serde(default = "image")]
    pub field: String,
    /// What the model gets: `[3, height, width]`, or `[1, height, width]` for grey levels.
    pub shape: Vec<usize>,
    /// The shorter side is made so long before the middle (or any part) is cut out; without it, as long as `shape`'s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
    /// Which part is taken to train on; without it, the whole image, stretched. To measure on it is the middle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crop: Option<Crop>,
    /// Every other image to train on is turned left to right.
    #[serde(default)]
    pub flip: bool,
    /// Least and largest share of the image's area that `random_resized` takes.
    #[serde(default = "area")]
    pub area: [f32; 2],
    /// Subtracted from each channel's values of 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// What they are then divided by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
}

fn image() -> String {
    "image".to_owned()
}

fn area() -> [f32; 2] {
    [0.08, 1.0]
}

/// Which part of an image is taken to train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Crop {
    /// A part of random area (`area`) and of a proportion of 3:4 to 4:3, anywhere (Szegedy and others, "Going deeper with
    /// convolutions", section 6).
    RandomResized,
    /// A part anywhere, after `resize`.
    Random,
    /// The middle, after `resize`.
    Center,
}

/// Numbers of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberFeatures {
    /// The fields that hold them, one after the other.
    pub field: Fields,
    /// Shape of a sample; its elements are the numbers, row-major.
    pub shape: Vec<usize>,
    /// The numbers are divided by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Bytes that are numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFeatures {
    /// The field that holds them.
    pub field: String,
    /// What they are; absent for the contents of a `.npy` file, which say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<NumberType>,
    /// Shape of a sample; its elements are the numbers, row-major.
    pub shape: Vec<usize>,
    /// The numbers are divided by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Numbers of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFeatures {
    /// The field that holds them.
    #[serde(default = "tokens")]
    pub field: String,
    /// Tokens of a sample; records have one more, the last answer.
    pub context: usize,
    /// Different tokens; all are below it. Of text with a tokenizer it may be absent: that of the tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u32>,
}

impl TokenFeatures {
    /// Different tokens, when it is told.
    pub(super) fn told_vocabulary(&self) -> Result<u32, DataError> {
        let missing = "it is not told how many different tokens there are";
        self.vocabulary
            .ok_or_else(|| wrong("features.vocabulary", missing))
    }
}

fn tokens() -> String {
    "tokens".to_owned()
}

/// What the model is to answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The field that holds it; several only with `values`. Of a folder of images it is `class`.
    #[serde(default = "class")]
    pub field: Fields,
    /// Count of classes; the field holds their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<u32>,
    /// The number of the first class: 1 where 0 stands for none.
    #[serde(default)]
    pub first: i64,
    /// The names of the classes; the field holds a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// Count of values that are to be learnt instead of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<u32>,
    /// Values are divided by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

fn class() -> Fields {
    Fields::One("class".to_owned())
}

impl Label {
    /// The number of one of `classes` classes in the field `class`.
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
}

impl Fields {
    /// All names.
    pub(super) fn names(&self, key: &str) -> Result<Vec<String>, DataError> {
        let given = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        };
        let too_many = || wrong(key, format!("more than {FIELDS_MAX} fields"));
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
            0 => Err(wrong(key, "no field is named")),
            1..=FIELDS_MAX => Ok(names),
            _ => Err(too_many()),
        }
    }
}

/// First column and the one behind the last of `"3..6"`.
fn columns(name: &str) -> Option<(usize, usize)> {
    let (first, end) = name.split_once("..")?;
    Some((first.parse().ok()?, end.parse().ok()?))
}
