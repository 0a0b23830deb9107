//! [`NamedRow`]: a sample as a JSON object with a number for each column of a table.

use std::fmt;

use ronde_data::standard_name;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::request_error::RequestError;

/// The largest number of columns of a row.
const COLUMNS_MAX: usize = 1 << 20;

/// A sample with a number for each column.
#[derive(Debug, PartialEq)]
pub(super) struct NamedRow(Vec<(String, f32)>);

impl<'de> Deserialize<'de> for NamedRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = NamedRow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a number for each column")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<NamedRow, A::Error> {
        let mut row = Vec::new();
        while let Some((name, number)) = fields.next_entry::<String, f64>()? {
            let number = number as f32;
            if !number.is_finite() {
                return Err(A::Error::custom("a number is out of the range of f32"));
            }
            if row.len() == COLUMNS_MAX {
                return Err(A::Error::custom(format!(
                    "an object has more than {COLUMNS_MAX} columns"
                )));
            }
            row.push((standard_name(&name).into_owned(), number));
        }
        Ok(NamedRow(row))
    }
}

impl NamedRow {
    /// Appends the numbers in the order of `columns`, divided by `divisor`.
    ///
    /// # Errors
    /// Returns an error with the names of both if the columns are not those of the row.
    pub(super) fn append_to(
        mut self,
        columns: &[String],
        divisor: Option<f32>,
        features: &mut Vec<f32>,
    ) -> Result<(), RequestError> {
        let names: Vec<String> = self.0.iter().map(|(name, _)| name.clone()).collect();
        let differ = || RequestError::Columns {
            found: names.clone(),
            expected: columns.to_vec(),
        };
        if self.0.len() != columns.len() {
            return Err(differ());
        }
        for column in columns {
            let at = self.0.iter().position(|(name, _)| name == column);
            let (_, number) = self.0.swap_remove(at.ok_or_else(differ)?);
            features.push(divisor.map_or(number, |divisor| number / divisor));
        }
        Ok(())
    }
}
