//! [`Wanted`]: which fields of records are asked for.

/// Which fields of records are asked for. Formats that can leave the others unread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wanted {
    /// All.
    #[default]
    All,
    /// These; a record need not have them.
    Fields(Vec<String>),
}

impl Wanted {
    /// Whether a field is asked for.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.iter().any(|wanted| wanted == field),
        }
    }
}
