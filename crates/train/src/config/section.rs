//! Reads one section into its type and reports *every* invalid key in it, not only the first.
//!
//! serde stops at the first error and, in sections with a `kind`, does not report its position. Keys are visited
//! in order, so the error is in the last key of the shortest prefix of keys that gives the same message. This
//! module finds that key by bisection, records and removes it, and reads the rest again.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::message::SerdeMessage;
use super::text::join;
use super::{ConfigProblem, suggest};

/// Keys that select the kind of a section; the other keys depend on them.
const TAGS: [&str; 2] = ["kind", "source"];

/// The largest number of errors that are searched for in one section.
const ERRORS_MAX: usize = 20;

/// The part of a `key = value` line that an error refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AssignmentPart {
    Key,
    Value,
    Section,
}

/// An error found in a section.
pub(super) struct SectionError {
    pub(super) problem: ConfigProblem,
    pub(super) about: AssignmentPart,
}

/// Reads a section. `raw` returns the text of an argument for a path, which is tried as a string.
pub(super) fn read<T: DeserializeOwned>(
    section: &str,
    table: &Table,
    raw: &dyn Fn(&str) -> Option<String>,
) -> Result<T, Vec<SectionError>> {
    let mut table = table.clone();
    let mut errors: Vec<SectionError> = Vec::new();
    let mut removed = BTreeSet::new();
    let mut tried = BTreeSet::new();
    while errors.len() < ERRORS_MAX {
        let message = match try_read::<T>(&table) {
            Ok(read) if errors.is_empty() => return Ok(read),
            Ok(_) => break,
            Err(message) => message,
        };
        let parsed = SerdeMessage::parse(&message);
        if let SerdeMessage::Missing { key } = parsed {
            if !removed.contains(key) {
                errors.push(missing(section, key));
            }
            break;
        }
        let keys = culprit::<T>(&table, &message);
        let path = keys.iter().fold(section.to_owned(), |p, key| join(&p, key));
        let Some(value) = value_at(&mut table, &keys) else {
            errors.push(describe(section, section, &parsed, AssignmentPart::Section));
            break;
        };
        match raw(&path) {
            Some(text) if !value.is_str() && tried.insert(path.clone()) => {
                let given = std::mem::replace(value, Value::String(text));
                if still_wrong_at::<T>(&table, &keys) {
                    put_back(&mut table, &keys, given);
                } else {
                    continue;
                }
            }
            _ => {}
        }
        let about = match parsed {
            SerdeMessage::UnknownKey { .. } => AssignmentPart::Key,
            _ => AssignmentPart::Value,
        };
        errors.push(describe(section, &path, &parsed, about));
        if let Some(first) = keys.first().filter(|_| keys.len() == 1) {
            removed.insert(first.clone());
        }
        remove(&mut table, &keys);
    }
    Err(errors)
}

fn try_read<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    Value::Table(table.clone())
        .try_into::<T>()
        .map_err(|error| error.message().to_owned())
}

/// Returns the path of the key that a message refers to, relative to the section. Empty: the section itself.
fn culprit<T: DeserializeOwned>(root: &Table, message: &str) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    loop {
        let Some(level) = table_at(root, &keys) else {
            return keys;
        };
        let names: Vec<&String> = level.keys().collect();
        let with_first = |count: usize| {
            let keep: BTreeSet<&String> = names[..count].iter().copied().collect();
            let mut part = root.clone();
            if let Some(level) = table_at_mut(&mut part, &keys) {
                level.retain(|key, _| TAGS.contains(&key) || keep.contains(&key.to_owned()));
            }
            try_read::<T>(&part).err().as_deref() == Some(message)
        };
        let counts: Vec<usize> = (0..=names.len()).collect();
        let found = counts.partition_point(|&count| !with_first(count));
        let next = match found {
            0 => names.iter().find(|name| TAGS.contains(&name.as_str())),
            found => names.get(found - 1),
        };
        let Some(next) = next else { return keys };
        keys.push((*next).clone());
        if found == 0 && message_without::<T>(root, &keys).as_deref() == Some(message) {
            keys.pop();
            return keys;
        }
        if matches!(SerdeMessage::parse(message), SerdeMessage::UnknownKey { key, .. } if key == *next)
        {
            return keys;
        }
    }
}

fn message_without<T: DeserializeOwned>(root: &Table, keys: &[String]) -> Option<String> {
    let mut rest = root.clone();
    remove(&mut rest, keys);
    try_read::<T>(&rest).err()
}

fn table_at<'a>(root: &'a Table, keys: &[String]) -> Option<&'a Table> {
    keys.iter()
        .try_fold(root, |table, key| table.get(key)?.as_table())
}

fn table_at_mut<'a>(root: &'a mut Table, keys: &[String]) -> Option<&'a mut Table> {
    keys.iter()
        .try_fold(root, |table, key| table.get_mut(key)?.as_table_mut())
}

fn value_at<'a>(root: &'a mut Table, keys: &[String]) -> Option<&'a mut Value> {
    let (last, sections) = keys.split_last()?;
    table_at_mut(root, sections)?.get_mut(last)
}

fn put_back(root: &mut Table, keys: &[String], value: Value) {
    if let Some(current) = value_at(root, keys) {
        *current = value;
    }
}

fn remove(root: &mut Table, keys: &[String]) {
    if let Some((last, sections)) = keys.split_last()
        && let Some(table) = table_at_mut(root, sections)
    {
        table.remove(last);
    }
}

fn still_wrong_at<T: DeserializeOwned>(table: &Table, keys: &[String]) -> bool {
    try_read::<T>(table)
        .err()
        .is_some_and(|message| culprit::<T>(table, &message) == keys)
}

fn missing(section: &str, key: &str) -> SectionError {
    SectionError {
        problem: ConfigProblem::error(section, format!("missing key `{key}` in [{section}]"))
            .hint(format!("add `{key} = ...` to [{section}]")),
        about: AssignmentPart::Section,
    }
}

fn describe(
    section: &str,
    path: &str,
    message: &SerdeMessage<'_>,
    about: AssignmentPart,
) -> SectionError {
    let problem = match message {
        SerdeMessage::UnknownKey { key, known } => ConfigProblem {
            hint: suggest::hint(key, known),
            ..ConfigProblem::error(path, format!("unknown key `{key}` in [{section}]"))
        },
        SerdeMessage::UnknownWord { word, known } => ConfigProblem {
            hint: suggest::hint(word, known),
            ..ConfigProblem::error(path, format!("invalid `{path}` \"{word}\""))
        },
        SerdeMessage::Missing { key } => {
            ConfigProblem::error(path, format!("missing key `{key}` in `{path}`"))
        }
        SerdeMessage::Wrong { found, expected } => {
            let problem =
                ConfigProblem::error(path, format!("`{path}` must be {expected}, found {found}"));
            // The usual cause is a number or boolean in quotes.
            if found.starts_with("string") && !expected.contains("string") {
                problem.hint(format!("write {expected}, without quotes"))
            } else {
                problem.hint(format!("write {expected}"))
            }
        }
        SerdeMessage::Other(text) => ConfigProblem::error(path, format!("`{path}`: {text}")),
    };
    SectionError { problem, about }
}
