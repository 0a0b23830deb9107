//! Names of classes and columns: their standard form, in which equal names are equal texts.

use std::borrow::Cow;
use std::collections::HashMap;

use icu_normalizer::ComposingNormalizerBorrowed;

/// Returns a name without surrounding white space, in Unicode's normalization form C. Cost: none for ASCII.
#[must_use]
pub fn standard_name(name: &str) -> Cow<'_, str> {
    let name = name.trim();
    match name.is_ascii() {
        true => Cow::Borrowed(name),
        false => ComposingNormalizerBorrowed::new_nfc().normalize(name),
    }
}

/// Returns names in their standard form.
pub(crate) fn standard_names<N: AsRef<str>>(names: &[N]) -> Vec<String> {
    let standard = names
        .iter()
        .map(|name| standard_name(name.as_ref()).into_owned());
    standard.collect()
}

/// The first of several names that cannot be told apart from another one, or is empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("a name is empty")]
    Empty,
    #[error(
        "`{name}` is listed twice; white space around a name and the form of its characters (Unicode NFC) make no \
         difference"
    )]
    Repeated { name: String },
}

/// Returns the position of each name.
pub(crate) fn positions(names: &[String]) -> Result<HashMap<String, u32>, NameError> {
    let mut positions = HashMap::with_capacity(names.len());
    for (position, name) in (0..).zip(names) {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if positions.insert(name.clone(), position).is_some() {
            return Err(NameError::Repeated { name: name.clone() });
        }
    }
    Ok(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_and_forms_of_characters_make_no_difference() {
        for (name, standard) in [
            (" cat\t", "cat"),
            ("\u{a0}cat", "cat"),
            ("cafe\u{301}", "caf\u{e9}"),
            ("\u{212b}ngstr\u{f6}m", "\u{c5}ngstr\u{f6}m"),
            ("Cat", "Cat"),
        ] {
            assert_eq!(standard_name(name), standard, "{name:?}");
        }
        let names = standard_names(&["caf\u{e9}", "dog ", "cafe\u{301}"]);
        let problem = positions(&names).unwrap_err().to_string();
        assert!(problem.contains("`caf\u{e9}` is listed twice"), "{problem}");
        assert!(positions(&standard_names(&["a", "  "])).is_err());
        assert_eq!(positions(&standard_names(&["b", "a"])).unwrap()["a"], 1);
    }
}
