//! [`Wanted`]: which fields of records are asked for.

use std::collections::HashMap;

/// Which fields of records are asked for. Formats that can leave the others unread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wanted {
    /// All.
    #[default]
    All,
    /// These; a record need not have them.
    Fields(WantedFields),
}

/// Names of fields in the order in which they are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedFields {
    names: Vec<String>,
    places: HashMap<String, usize>,
}

impl WantedFields {
    /// The names, each once.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The place of a name among them.
    #[must_use]
    pub fn place(&self, field: &str) -> Option<usize> {
        self.places.get(field).copied()
    }
}

impl Wanted {
    /// Fields with these names.
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

    /// Whether a field is asked for.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.place(field).is_some(),
        }
    }
}
