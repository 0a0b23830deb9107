//! [`PatternError`]: why the braces or wildcards of an address are invalid.

use super::braces::TEXTS_MAX;

/// The reason why the braces or wildcards of an address are invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatternError {
    #[error("a `}}` has no `{{`")]
    NoOpeningBrace,
    #[error("a `{{` is not closed by a `}}`")]
    NoClosingBrace,
    #[error("`{{{inside}}}` is neither a list such as {{a,b}} nor a range such as {{000..127}}")]
    Braces { inside: String },
    #[error("the number `{text}` is too large")]
    Number { text: String },
    #[error("it expands to more than {TEXTS_MAX} files")]
    TooManyFiles,
    #[error("`**` must be a whole path segment")]
    DeepInSegment,
    #[error("`[^` is not supported: write `[!` for letters that must not match")]
    Caret,
    #[error("a `[` is not closed by a `]`")]
    NoClosingBracket,
}
