//! [`KeySpace`]: the values that a sweep tries for a key of the run file.

use ronde_core::philox::Stream;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::error::SweepError;

/// The largest number of values of a key.
const VALUES_MAX: usize = 10_000;

/// The values of a key: a list, or a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeySpace {
    /// One of these values.
    List(Vec<Value>),
    /// A number of a range.
    Range(NumberRange),
}

/// A range of numbers; of whole numbers if both ends are whole numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberRange {
    from: Value,
    to: Value,
    #[serde(default)]
    scale: RangeScale,
    /// The number of values in a grid, which are equally far from each other.
    points: Option<u32>,
}

/// How values are distributed over a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RangeScale {
    #[default]
    Linear,
    Log,
}

impl KeySpace {
    /// Checks the values of `key`.
    pub(crate) fn check(&self, key: &str, is_grid: bool) -> Result<(), SweepError> {
        let invalid = |problem: &str| SweepError::value(format!("keys.\"{key}\""), problem);
        match self {
            Self::List(values) if values.is_empty() => Err(invalid("the list has no values")),
            Self::List(values) if values.len() > VALUES_MAX => {
                Err(invalid("the list has more than 10,000 values"))
            }
            Self::List(_) => Ok(()),
            Self::Range(range) => {
                let (Some(from), Some(to)) = (number(&range.from), number(&range.to)) else {
                    return Err(invalid("expected numbers for `from` and `to`"));
                };
                if !(from < to && (to - from).is_finite()) {
                    return Err(invalid("expected `from` to be less than `to`"));
                }
                if range.scale == RangeScale::Log && from <= 0.0 {
                    return Err(invalid("expected `from` above 0 for a logarithmic scale"));
                }
                match (range.points, is_grid) {
                    (None, true) => Err(invalid(
                        "expected `points`, the number of values in the grid",
                    )),
                    (Some(points), _) if !(2..=VALUES_MAX as u32).contains(&points) => {
                        Err(invalid("expected 2 to 10,000 `points`"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Returns the values of a grid.
    pub(crate) fn grid(&self) -> Vec<Value> {
        match self {
            Self::List(values) => values.clone(),
            Self::Range(range) => {
                let points = range.points.unwrap_or(2).max(2);
                let last = f64::from(points - 1);
                let mut values: Vec<Value> = (0..points)
                    .map(|point| range.at(f64::from(point) / last))
                    .collect();
                // Whole numbers that are close to each other.
                values.dedup();
                values
            }
        }
    }

    /// Returns a random value; the stream decides.
    pub(crate) fn draw(&self, stream: &Stream) -> Value {
        let words = stream.block(0);
        let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
        // 53 bits, from 0 to below 1.
        let fraction = bits as f64 / (1_u64 << 53) as f64;
        match self {
            Self::List(values) => {
                let index = (fraction * values.len() as f64) as usize;
                values[index.min(values.len() - 1)].clone()
            }
            Self::Range(range) => range.at(fraction),
        }
    }

    /// Returns whether the values are numbers of a logarithmic range.
    pub(crate) fn is_logarithmic(&self) -> bool {
        matches!(self, Self::Range(range) if range.scale == RangeScale::Log)
    }
}

impl NumberRange {
    /// Returns the value at a fraction of the range. Other than whole numbers have four digits, so that they can be read
    /// and are the same on all processors.
    fn at(&self, fraction: f64) -> Value {
        let (from, to) = (
            number(&self.from).unwrap_or_default(),
            number(&self.to).unwrap_or_default(),
        );
        let is_whole = self.from.is_integer() && self.to.is_integer();
        // Each whole number has the same share, the ends included.
        let (low, high) = match is_whole && fraction < 1.0 && self.points.is_none() {
            true => (from, to + 1.0),
            false => (from, to),
        };
        let value = match self.scale {
            RangeScale::Linear => low + (high - low) * fraction,
            RangeScale::Log => low * (high / low).powf(fraction),
        };
        match is_whole {
            true if self.points.is_none() => Value::Integer(value.floor().clamp(from, to) as i64),
            true => Value::Integer(value.round().clamp(from, to) as i64),
            false => {
                let rounded = format!("{value:.3e}").parse().unwrap_or(value);
                Value::Float(f64::clamp(rounded, from, to))
            }
        }
    }
}

/// Returns the number of a value.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> KeySpace {
        let table: toml::Table = format!("x = {text}").parse().unwrap();
        table["x"].clone().try_into().unwrap()
    }

    fn texts(values: &[Value]) -> String {
        let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
        texts.join(" ")
    }

    #[test]
    fn grids_have_the_ends_and_the_number_of_points() {
        for (text, values) in [
            ("[1, \"a\", [2, 3]]", "1 \"a\" [2, 3]"),
            ("{ from = 1, to = 5, points = 3 }", "1 3 5"),
            ("{ from = 1, to = 3, points = 9 }", "1 2 3"),
            (
                "{ from = 0.001, to = 1.0, scale = \"log\", points = 4 }",
                "0.001 0.01 0.1 1.0",
            ),
            ("{ from = 0.0, to = 1.0, points = 3 }", "0.0 0.5 1.0"),
        ] {
            let space = space(text);
            space.check("x", true).unwrap();
            assert_eq!(texts(&space.grid()), values, "{text}");
        }
    }

    #[test]
    fn random_values_are_within_their_range_and_reach_all_of_it() {
        let draws = |text: &str| -> Vec<Value> {
            let space = space(text);
            let stream = |index| Stream::new([index, 2, 3, 4]);
            (0..2_000).map(|index| space.draw(&stream(index))).collect()
        };
        let whole = draws("{ from = 2, to = 5 }");
        for number in 2..=5 {
            let count = whole
                .iter()
                .filter(|value| **value == Value::Integer(number))
                .count();
            assert!((400..600).contains(&count), "{number}: {count}");
        }
        let log = draws("{ from = 1e-4, to = 1e-1, scale = \"log\" }");
        let below = log
            .iter()
            .filter(|value| number(value).unwrap() < 1e-3)
            .count();
        assert!((550..780).contains(&below), "{below}");
        assert!(
            log.iter()
                .all(|value| (1e-4..=1e-1).contains(&number(value).unwrap()))
        );
        assert!(draws("[true, false]").contains(&Value::Boolean(false)));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, problem) in [
            ("[]", "the list has no values"),
            ("{ from = 2, to = 1 }", "`from` to be less than `to`"),
            ("{ from = 0, to = 1, scale = \"log\" }", "above 0"),
            ("{ from = \"a\", to = 1 }", "expected numbers"),
            ("{ from = 0, to = 1 }", "the number of values in the grid"),
            ("{ from = 0, to = 1, points = 1 }", "2 to 10,000"),
        ] {
            let error = space(text).check("x", true).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
