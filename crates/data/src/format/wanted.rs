//! [`Wanted`]: the fields of records that are requested.

use std::collections::HashMap;

/// The fields of records that are requested. Formats that can, leave the other fields unread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wanted {
    /// All fields.
    #[default]
    All,
    /// These fields; a record need not have them.
    Fields(WantedFields),
}

/// Field names in the order of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedFields {
    names: Vec<String>,
    places: HashMap<String, usize>,
}

impl WantedFields {
    /// Returns the names without duplicates.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the position of a name in the list.
    #[must_use]
    pub fn place(&self, field: &str) -> Option<usize> {
        self.places.get(field).copied()
    }
}

impl Wanted {
    /// Creates a request for fields with these names.
    pub fn fields<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let (mut kept, mut places) = (Vec::new(), HashMap::new());
        for name in names {
            let name = name.into();
            if !places.contains_key(&name) {
                places.insert(name.clone(), kept.len());
                kept.push(name);
            }
        }
        Self::Fields(WantedFields {
            names: kept,
            places,
        })
    }

    /// Returns whether a field is requested.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.place(field).is_some(),
        }
    }
}
