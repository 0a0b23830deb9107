//! Labels: class numbers, class names, values.

use std::collections::HashMap;

use ronde_core::DataSignature;

use super::error::DecodeError;
use super::fields::{field, of_kind};
use super::numbers::NumberDecoder;
use super::schema::{Features, Schema};
use crate::dataset::{CLASSES_MAX, Targets};
use crate::error::DataError;
use crate::format::{Record, Value};
use crate::names::{positions, standard_name, standard_names};

/// The conversion of targets.
#[derive(Debug)]
pub(super) enum LabelDecoder {
    /// A number in a field.
    Number {
        field: String,
        classes: u32,
        first: i64,
        /// Whether the run file has the keys `label.first` and `label.classes`.
        has_keys: bool,
    },
    /// A name in a field.
    Name { field: String, names: ClassNames },
    /// Values of one or several fields.
    Values { numbers: NumberDecoder, count: u32 },
    /// The next token of each position; the features provide them.
    Tokens { vocabulary: u32 },
}

/// The names of the classes, in their standard form.
#[derive(Debug)]
pub(super) struct ClassNames {
    /// In the order of the classes.
    list: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl LabelDecoder {
    pub(super) fn new(schema: &Schema) -> Result<Self, DataError> {
        let label = match (&schema.features, &schema.label) {
            (Features::Tokens(tokens), None) => {
                let vocabulary = tokens.required_vocabulary()?;
                return Ok(Self::Tokens { vocabulary });
            }
            (Features::Tokens(_), Some(_)) => {
                return Err(DataError::schema(
                    "label",
                    "remove the label: the target of a token is the next one",
                ));
            }
            (_, None) => {
                return Err(DataError::schema(
                    "label",
                    "missing; it defines the targets",
                ));
            }
            (_, Some(label)) => label,
        };
        let mut fields = label.field.names("label.field")?;
        let is_one = fields.len() == 1;
        let field = fields.swap_remove(0);
        match (label.classes, &label.names, label.values) {
            (Some(classes), None, None) if is_one => {
                if !(1..=CLASSES_MAX).contains(&classes) {
                    let problem =
                        format!("invalid number of classes {classes}: expected 1 to {CLASSES_MAX}");
                    return Err(DataError::schema("label.classes", problem));
                }
                let first = label.first;
                Ok(Self::Number {
                    field,
                    classes,
                    first,
                    has_keys: true,
                })
            }
            (None, Some(names), None) if is_one => by_name(field, names),
            (None, None, Some(count)) => {
                if !(1..=CLASSES_MAX).contains(&count) {
                    let problem =
                        format!("invalid number of values {count}: expected 1 to {CLASSES_MAX}");
                    return Err(DataError::schema("label.values", problem));
                }
                let numbers = NumberDecoder::new("label", &label.field, label.scale)?;
                Ok(Self::Values { numbers, count })
            }
            (_, _, None) if !is_one => Err(DataError::schema(
                "label.field",
                "a class label needs exactly one field",
            )),
            _ => Err(DataError::schema(
                "label",
                "set exactly one of `classes` (a number in the field), `names` (a name in the field) and `values`",
            )),
        }
    }

    pub(super) fn fields(&self) -> Vec<String> {
        match self {
            Self::Number { field, .. } | Self::Name { field, .. } => vec![field.clone()],
            Self::Values { numbers, .. } => numbers.fields(),
            Self::Tokens { .. } => Vec::new(),
        }
    }

    pub(super) fn classes(&self) -> u32 {
        match self {
            Self::Number { classes, .. } => *classes,
            Self::Name { names, .. } => names.list.len() as u32,
            Self::Values { count, .. } => *count,
            Self::Tokens { vocabulary } => *vocabulary,
        }
    }

    pub(super) fn targets(&self) -> Targets {
        match self {
            Self::Values { .. } => Targets::Values,
            _ => Targets::Classes,
        }
    }

    pub(super) fn per_sample(&self) -> usize {
        match self {
            Self::Values { count, .. } => *count as usize,
            _ => 1,
        }
    }

    /// Adds the names and the units of the targets to a signature.
    pub(super) fn describe(&self, signature: &mut DataSignature) {
        match self {
            Self::Number { first, .. } => signature.first_class = *first,
            Self::Name { names, .. } => signature.class_names.clone_from(&names.list),
            Self::Values { numbers, .. } => {
                signature.value_names = standard_names(&numbers.fields());
                signature.value_scale = numbers.scale();
            }
            Self::Tokens { .. } => {}
        }
    }

    pub(super) fn decode(
        &self,
        record: &Record<'_>,
        targets: &mut [u32],
    ) -> Result<(), DecodeError> {
        match self {
            Self::Number {
                field: name,
                classes,
                first,
                has_keys,
            } => {
                let number = number(name, field(record, name)?)?;
                let class = number.checked_sub(*first);
                let class = class.and_then(|class| u32::try_from(class).ok());
                targets[0] = class
                    .filter(|class| class < classes)
                    .ok_or_else(|| out_of_range((name, number), (*first, *classes), *has_keys))?;
            }
            Self::Name { field: name, names } => {
                let text = match field(record, name)? {
                    Value::Bytes(text) => text,
                    other => return Err(of_kind(name, other.kind(), "the name of a class")),
                };
                let text = String::from_utf8_lossy(text);
                let class = names.numbers.get(&*standard_name(&text));
                targets[0] = *class.ok_or_else(|| DecodeError::ClassName {
                    field: name.clone(),
                    name: text.chars().take(40).collect(),
                    names: names.list.clone(),
                })?;
            }
            Self::Values { numbers, .. } => {
                let mut values = vec![0.0; targets.len()];
                numbers.decode(record, &mut values)?;
                for (target, value) in targets.iter_mut().zip(values) {
                    *target = value.to_bits();
                }
            }
            Self::Tokens { .. } => {}
        }
        Ok(())
    }
}

/// Describes a class number that is out of range. The number before or after the range is likely to be the first or the last class.
fn out_of_range(
    (name, number): (&str, i64),
    (first, classes): (i64, u32),
    has_keys: bool,
) -> DecodeError {
    let end = first.saturating_add(i64::from(classes));
    let start = match number {
        1.. if number == end && first == 0 => Some(1),
        number if number.checked_add(1) == Some(first) => Some(number),
        _ => None,
    };
    let more = u64::from(classes) + 1;
    let advice = |start| match has_keys {
        true => format!(
            "; if the numbers begin at {start}, set `first = {start}` in data.label; if there are {more} classes, set \
             `classes = {more}`"
        ),
        false => format!(
            "; if the numbers begin at {start}, read the file with `source = \"records\"`, where data.label has the key \
             `first = {start}`; if there are {more} classes, set `data.classes = {more}`"
        ),
    };
    DecodeError::Class {
        field: name.to_owned(),
        class: number,
        first,
        last: end - 1,
        advice: start.map(advice).unwrap_or_default(),
    }
}

fn by_name(field: String, names: &[String]) -> Result<LabelDecoder, DataError> {
    let refused = |problem: &dyn std::fmt::Display| DataError::schema("label.names", problem);
    match names.len() {
        0 => return Err(refused(&"the list is empty")),
        count if count > CLASSES_MAX as usize => {
            let problem = format!("{count} names; the limit is {CLASSES_MAX}");
            return Err(refused(&problem));
        }
        _ => {}
    }
    let list = standard_names(names);
    let numbers = positions(&list).map_err(|error| refused(&error))?;
    let names = ClassNames { list, numbers };
    Ok(LabelDecoder::Name { field, names })
}

/// Parses the integer in a field, which may be text.
fn number(name: &str, value: &Value<'_>) -> Result<i64, DecodeError> {
    let number = match value {
        Value::Numbers { dtype, bytes } if bytes.len() == dtype.bytes() => dtype.integer(bytes, 0),
        Value::Bytes(text) => std::str::from_utf8(text).ok().and_then(|text| {
            let text = text.trim();
            let whole = |number: f64| (number.fract() == 0.0).then_some(number as i64);
            text.parse()
                .ok()
                .or_else(|| text.parse().ok().and_then(whole))
        }),
        _ => None,
    };
    number.ok_or_else(|| {
        let found = match value {
            Value::Bytes(text) => {
                let shown = String::from_utf8_lossy(&text[..text.len().min(40)]);
                format!("{shown:?}")
            }
            other => other.kind(),
        };
        of_kind(name, found, "the number of a class")
    })
}
