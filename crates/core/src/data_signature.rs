//! [`DataSignature`]: the names and the units of the numbers that a model receives and returns.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest number of names that a message lists.
const NAMES_SHOWN_MAX: usize = 20;

/// The names and the units of the numbers that a model receives and returns, as its data defines them. Names have neither
/// surrounding white space nor different forms of one character, so equal names are equal texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataSignature {
    /// The names of the columns of a table that are the features, in the order of the model's input; empty if they have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// The divisor of the features: the model receives the numbers of the data divided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_scale: Option<f32>,
    /// The names of the classes in the order of their numbers in the model; empty if they have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// The number of the first class in the data; in the model it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_class: i64,
    /// The names of the columns of a table that are the target values, in the order of the model's outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub value_names: Vec<String>,
    /// The divisor of the target values: an output of the model times this number is in the units of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_scale: Option<f32>,
}

// The divisors are never NaN: a data set refuses such a one.
impl Eq for DataSignature {}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// The relation of the names of some data to those of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameMatch {
    /// Both have the same names in the same order, or neither has names.
    Same,
    /// Both have the same names, in another order.
    Reordered,
    /// Only one of them has names, so numbers alone are compared.
    Unnamed,
    /// A name is missing or new.
    Different,
}

impl NameMatch {
    /// Compares the names of a model with those of some data.
    #[must_use]
    pub fn of(model: &[String], data: &[String]) -> Self {
        if model == data {
            return Self::Same;
        }
        if model.is_empty() || data.is_empty() {
            return Self::Unnamed;
        }
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort_unstable();
            names
        };
        match sorted(model) == sorted(data) {
            true => Self::Reordered,
            false => Self::Different,
        }
    }
}

impl DataSignature {
    /// Returns whether there is neither a name nor a unit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the name of each of `classes` classes: a name, or the number in the data where this is not the number in the
    /// model. Empty if the numbers of the model are all there is.
    #[must_use]
    pub fn class_labels(&self, classes: usize) -> Vec<String> {
        match (self.class_names.len() == classes, self.first_class) {
            (true, _) => self.class_names.clone(),
            (false, 0) => Vec::new(),
            (false, first) => (first..)
                .take(classes)
                .map(|class| class.to_string())
                .collect(),
        }
    }
}

/// A list of names in a message: each in backticks, at most 20.
#[derive(Debug, Clone, Copy)]
pub struct NameList<'a>(pub &'a [String]);

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(NAMES_SHOWN_MAX)];
        if !shown.is_empty() {
            write!(f, "`{}`", shown.join("`, `"))?;
        }
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn names_match_in_any_order() {
        for (model, data, expected) in [
            ("", "", NameMatch::Same),
            ("a b", "a b", NameMatch::Same),
            ("a b c", "c a b", NameMatch::Reordered),
            ("a b", "", NameMatch::Unnamed),
            ("", "a", NameMatch::Unnamed),
            ("a b", "a", NameMatch::Different),
            ("a b", "a c", NameMatch::Different),
            ("a a b", "a b b", NameMatch::Different),
        ] {
            let found = NameMatch::of(&names(model), &names(data));
            assert_eq!(found, expected, "{model} and {data}");
        }
    }

    #[test]
    fn classes_have_names_or_the_numbers_of_the_data() {
        let labels = |class_names: &str, first_class| {
            let signature = DataSignature {
                class_names: names(class_names),
                first_class,
                ..DataSignature::default()
            };
            signature.class_labels(2).join(" ")
        };
        assert_eq!(labels("a b", 0), "a b");
        assert_eq!(labels("", 0), "");
        assert_eq!(labels("", -1), "-1 0");
        assert_eq!(labels("", 1), "1 2");
    }

    #[test]
    fn lists_are_short() {
        assert!(DataSignature::default().is_empty());
        let many: Vec<String> = (0..22).map(|name| name.to_string()).collect();
        assert!(NameList(&many).to_string().ends_with("`19` and 2 more"));
        assert_eq!(NameList(&names("a b")).to_string(), "`a`, `b`");
    }
}
