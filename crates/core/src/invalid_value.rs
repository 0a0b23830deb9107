//! [`InvalidValue`]: a value that a person wrote, and what is allowed instead.

/// A value of a setting, an option or an address that cannot be used.
///
/// The caller knows where the value is written, and adds that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} `{value}`: expected {expected}")]
pub struct InvalidValue {
    /// The kind of value, such as `format`.
    pub kind: &'static str,
    /// The value.
    pub value: String,
    /// A description of the allowed values.
    pub expected: String,
}

impl InvalidValue {
    /// Creates the error for a value.
    pub fn new(
        kind: &'static str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}
