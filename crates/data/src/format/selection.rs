//! [`FieldSelection`]: the fields of records that are requested.

use std::collections::HashMap;

/// The fields of records that are requested. Formats that can, leave the other fields unread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FieldSelection {
    /// All fields.
    #[default]
    All,
    /// These fields; a record need not have them.
    Fields(FieldNames),
}

/// Field names in the order of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldNames {
    names: Vec<String>,
    positions: HashMap<String, usize>,
}

impl FieldNames {
    /// Returns the names without duplicates.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the position of a name in the list.
    #[must_use]
    pub fn position(&self, field: &str) -> Option<usize> {
        self.positions.get(field).copied()
    }
}

impl FieldSelection {
    /// Creates a request for fields with these names.
    pub fn fields<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let (mut unique, mut positions) = (Vec::new(), HashMap::new());
        for name in names {
            let name = name.into();
            if !positions.contains_key(&name) {
                positions.insert(name.clone(), unique.len());
                unique.push(name);
            }
        }
        Self::Fields(FieldNames {
            names: unique,
            positions,
        })
    }

    /// Returns whether a field is requested.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.position(field).is_some(),
        }
    }
}
