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

/// Returns the position of each name. The error is the first name that occurs twice or is empty, as a problem.
pub(crate) fn positions(names: &[String]) -> Result<HashMap<String, u32>, String> {
    let mut positions = HashMap::with_capacity(names.len());
    for (position, name) in (0..).zip(names) {
        if name.is_empty() {
            return Err("a name is empty".to_owned());
        }
        if positions.insert(name.clone(), position).is_some() {
            return Err(format!(
                "`{name}` is listed twice; white space around a name and the form of its characters (Unicode NFC) make no \
                 difference"
            ));
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
        let problem = positions(&names).unwrap_err();
        assert!(problem.contains("`caf\u{e9}` is listed twice"), "{problem}");
        assert!(positions(&standard_names(&["a", "  "])).is_err());
        assert_eq!(positions(&standard_names(&["b", "a"])).unwrap()["a"], 1);
    }
}
