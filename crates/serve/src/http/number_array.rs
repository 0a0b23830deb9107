//! [`NumberArray`]: a nested JSON array of numbers, read without a tree of values.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

/// The largest depth of an array.
const DEPTH_MAX: usize = 8;

/// A nested array of numbers with a shape.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NumberArray {
    /// The lengths, outermost first.
    pub(super) shape: Vec<usize>,
    /// The numbers, row-major; finite.
    pub(super) values: Vec<f32>,
}

/// The part of an array that has been read.
#[derive(Default)]
struct PartialArray {
    /// The length of the arrays of each depth; `None` until one of them has ended.
    lengths: Vec<Option<usize>>,
    /// The depth of the numbers; `None` before the first one.
    number_depth: Option<usize>,
    values: Vec<f32>,
}

impl<'de> Deserialize<'de> for NumberArray {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut array = PartialArray::default();
        let part = ArrayPart {
            array: &mut array,
            depth: 0,
        };
        part.deserialize(deserializer)?;
        Ok(Self {
            shape: array.lengths.into_iter().flatten().collect(),
            values: array.values,
        })
    }
}

/// Reads a number or an array inside `depth` arrays.
struct ArrayPart<'a> {
    array: &'a mut PartialArray,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for ArrayPart<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ArrayPart<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of numbers")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let array = self.array;
        if self.depth == 0 {
            return Err(E::custom("expected an array of numbers, found a number"));
        }
        if *array.number_depth.get_or_insert(self.depth) != self.depth
            || array.lengths.len() > self.depth
        {
            return Err(E::custom("an array has numbers beside arrays"));
        }
        let value = value as f32;
        if !value.is_finite() {
            return Err(E::custom("a number is out of the range of f32"));
        }
        array.values.push(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Self { array, depth } = self;
        if depth >= DEPTH_MAX {
            let message = format!("an array is nested deeper than {DEPTH_MAX}");
            return Err(A::Error::custom(message));
        }
        if array.number_depth.is_some_and(|numbers| depth >= numbers) {
            return Err(A::Error::custom("an array has numbers beside arrays"));
        }
        if array.lengths.len() <= depth {
            array.lengths.resize(depth + 1, None);
        }
        let mut length = 0;
        loop {
            let element = ArrayPart {
                array: &mut *array,
                depth: depth + 1,
            };
            if elements.next_element_seed(element)?.is_none() {
                break;
            }
            length += 1;
        }
        match array.lengths[depth].replace(length) {
            Some(other) if other != length => Err(A::Error::custom(format!(
                "arrays have different lengths: {other} and {length}"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
        let array: NumberArray = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok((array.shape, array.values))
    }

    #[test]
    fn arrays_have_a_shape() {
        assert_eq!(
            read("[[1, 2.5], [-3, 1e3], [0, 0]]").unwrap(),
            (vec![3, 2], vec![1.0, 2.5, -3.0, 1000.0, 0.0, 0.0])
        );
        assert_eq!(read("[]").unwrap(), (vec![0], vec![]));
        assert_eq!(read("[[],[]]").unwrap(), (vec![2, 0], vec![]));
    }

    #[test]
    fn other_values_are_refused() {
        let deep = "[".repeat(100_000);
        for (text, problem) in [
            ("7", "found a number"),
            ("[1, \"a\"]", "invalid type: string"),
            ("[null]", "invalid type: null"),
            ("[true]", "invalid type: boolean"),
            ("{\"a\": 1}", "invalid type: map"),
            ("[1, [2]]", "numbers beside arrays"),
            ("[[2], 1]", "numbers beside arrays"),
            ("[[], 1]", "numbers beside arrays"),
            ("[[1, 2], [3]]", "different lengths: 2 and 1"),
            ("[1e39]", "out of the range"),
            ("[1e999]", "out of range"),
            ("[NaN]", "expected value"),
            ("[[[[[[[[[1]]]]]]]]]", "deeper than 8"),
            (&*deep, "deeper than 8"),
            ("[1", "EOF"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{text:.20}: {error}");
        }
    }
}
