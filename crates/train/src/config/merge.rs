//! Merges the values of the run file, the environment, `--set` and flags key by key, each with its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::{Table, Value};

use super::error::LocatedProblem;
use super::text::{ConfigText, ParsedRunFile, is_bare, join, parse_value};
use super::{ConfigProblem, ValueOrigin};

/// The prefix of environment variables that set values of a run: `RONDE_SET_TRAIN__EPOCHS=3` sets
/// `train.epochs=3`. Two underscores stand for a dot.
pub const ENVIRONMENT_PREFIX: &str = "RONDE_SET_";

/// The largest number of parts of a dotted path in an argument.
const PATH_PARTS_MAX: usize = 8;

/// A value given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Override {
    /// The text after `--set`: `train.epochs=3`. The value is TOML, or else an unquoted string.
    Set(String),
    /// A dedicated flag: `--workers 3`. Takes precedence over every `--set`.
    Flag {
        /// The name of the flag, with its dashes.
        name: String,
        /// The dotted path of the value that it sets: `workers.count`.
        path: String,
        /// The value as it was written.
        value: String,
    },
}

/// The origin and source position of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConfigEntry {
    pub(super) origin: ValueOrigin,
    pub(super) given_by: ConfigSource,
    /// `None`: the run file.
    pub(super) source: Option<Arc<ConfigText>>,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    /// The text of an argument, for a string that looks like another type.
    pub(super) raw: Option<String>,
}

/// The sources of a configuration value, in the order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConfigSource {
    File,
    Environment,
    Set,
    Flag,
}

/// The values of all sources, merged.
#[derive(Default)]
pub(super) struct MergedConfig {
    pub(super) table: Table,
    pub(super) entries: BTreeMap<String, ConfigEntry>,
    /// Mistakes in arguments themselves.
    pub(super) refused: Vec<LocatedProblem>,
}

impl MergedConfig {
    pub(super) fn merge(
        file: ParsedRunFile,
        environment: &[(String, String)],
        overrides: &[Override],
    ) -> Self {
        let entries = file.spans.iter().filter(|(_, span)| !span.is_table);
        let mut merged = Self {
            entries: entries
                .map(|(path, span)| (path.clone(), file_entry(span)))
                .collect(),
            table: file.table,
            refused: Vec::new(),
        };
        let mut arguments: Vec<OverrideArgument> = environment
            .iter()
            .filter_map(|(name, value)| environment_argument(name, value))
            .chain(overrides.iter().map(override_argument))
            .collect();
        arguments.sort_by_key(|argument| argument.entry.given_by);
        for argument in arguments {
            merged.apply(&argument);
        }
        merged
    }

    fn apply(&mut self, argument: &OverrideArgument) {
        let parts: Vec<&str> = argument.path.split('.').collect();
        if parts.len() > PATH_PARTS_MAX || !parts.iter().all(|part| is_bare(part)) {
            let message = format!(
                "`{}` is not a valid path such as train.epochs",
                argument.path
            );
            return self.refuse(argument, message);
        }
        let Some(value) = &argument.value else {
            return self.refuse(argument, "expected `key=value`, for example train.epochs=3");
        };
        if self.put(&parts, value, &argument.entry).is_none() {
            let message = format!(
                "`{}` passes through a key that is not a section",
                argument.path
            );
            self.refuse(argument, message);
        }
    }

    fn refuse(&mut self, argument: &OverrideArgument, message: impl Into<String>) {
        let source = argument.entry.source.clone();
        self.refused.push(LocatedProblem {
            problem: ConfigProblem::error(argument.path.clone(), message),
            position: source.map(|source| (source, argument.entry.key.clone())),
        });
    }

    /// Sets a value; `None` if a part of the path is not a table.
    fn put(&mut self, parts: &[&str], value: &Value, entry: &ConfigEntry) -> Option<()> {
        if let Value::Table(inner) = value {
            for (key, value) in inner {
                self.put(&[parts, &[key.as_str()]].concat(), value, entry)?;
            }
            return Some(());
        }
        let path = parts
            .iter()
            .fold(String::new(), |prefix, key| join(&prefix, key));
        self.displace(&path, value, entry.given_by);
        let (last, sections) = parts.split_last()?;
        let mut table = &mut self.table;
        for section in sections {
            let inner = table
                .entry((*section).to_owned())
                .or_insert_with(|| Value::Table(Table::new()));
            table = inner.as_table_mut()?;
        }
        table.insert((*last).to_owned(), value.clone());
        self.entries.insert(path, entry.clone());
        Some(())
    }

    /// Drops values of sources with lower precedence that make no sense beside the new one.
    fn displace(&mut self, path: &str, value: &Value, given_by: ConfigSource) {
        let Some((section, key)) = path.split_once('.') else {
            return;
        };
        let dropped: Vec<String> = match (section, key) {
            ("train", "epochs") => vec!["steps".to_owned()],
            ("train", "steps") => vec!["epochs".to_owned()],
            ("data", "source")
            | ("compression", "codec")
            | ("model" | "optimizer" | "schedule" | "sync", "kind") => {
                let table = self.table.get(section).and_then(Value::as_table);
                let other = table.filter(|table| table.get(key) != Some(value));
                // All codecs have senders.
                let stays =
                    |k: &String| k == key || (section, k.as_str()) == ("compression", "senders");
                other.map_or_else(Vec::new, |table| {
                    table.keys().filter(|k| !stays(k)).cloned().collect()
                })
            }
            _ => return,
        };
        for other in dropped {
            let prefix = join(section, &other);
            let lower = |entry: &ConfigEntry| entry.given_by < given_by;
            let under = |path: &str| {
                path == prefix
                    || path
                        .strip_prefix(&prefix)
                        .is_some_and(|r| r.starts_with('.'))
            };
            if !self
                .entries
                .iter()
                .any(|(path, entry)| under(path) && lower(entry))
            {
                continue;
            }
            self.entries.retain(|path, _| !under(path));
            if let Some(Value::Table(table)) = self.table.get_mut(section) {
                table.remove(&other);
            }
        }
    }
}

/// A parsed argument.
struct OverrideArgument {
    path: String,
    value: Option<Value>,
    entry: ConfigEntry,
}

fn file_entry(span: &super::text::SourceSpan) -> ConfigEntry {
    ConfigEntry {
        origin: ValueOrigin::File {
            span: span.value.clone(),
        },
        given_by: ConfigSource::File,
        source: None,
        key: span.key.clone(),
        value: span.value.clone(),
        raw: None,
    }
}

fn environment_argument(name: &str, value: &str) -> Option<OverrideArgument> {
    let path = name.strip_prefix(ENVIRONMENT_PREFIX)?;
    Some(OverrideArgument {
        path: path.to_ascii_lowercase().replace("__", "."),
        value: Some(parse_value(value)),
        entry: ConfigEntry {
            origin: ValueOrigin::Environment {
                name: name.to_owned(),
            },
            given_by: ConfigSource::Environment,
            source: Some(Arc::new(ConfigText {
                name: "environment".to_owned(),
                text: format!("{name}={value}"),
                is_argument: true,
            })),
            key: 0..name.len(),
            value: name.len() + 1..name.len() + 1 + value.len(),
            raw: Some(value.to_owned()),
        },
    })
}

fn override_argument(given: &Override) -> OverrideArgument {
    match given {
        Override::Set(text) => {
            let (path, value) = match text.split_once('=') {
                Some((path, value)) => (path, Some(value)),
                None => (text.as_str(), None),
            };
            let start = path.len() + usize::from(value.is_some());
            OverrideArgument {
                path: path.trim().to_owned(),
                value: value.map(|value| parse_value(value.trim())),
                entry: ConfigEntry {
                    origin: ValueOrigin::Set { text: text.clone() },
                    given_by: ConfigSource::Set,
                    source: Some(Arc::new(ConfigText {
                        name: "--set".to_owned(),
                        text: text.clone(),
                        is_argument: true,
                    })),
                    key: 0..path.len(),
                    value: start..text.len(),
                    raw: value.map(|value| value.trim().to_owned()),
                },
            }
        }
        Override::Flag { name, path, value } => OverrideArgument {
            path: path.clone(),
            value: Some(parse_value(value)),
            entry: ConfigEntry {
                origin: ValueOrigin::Flag { name: name.clone() },
                given_by: ConfigSource::Flag,
                source: Some(Arc::new(ConfigText {
                    name: "flag".to_owned(),
                    text: format!("{name} {value}"),
                    is_argument: true,
                })),
                key: 0..name.len(),
                value: name.len() + 1..name.len() + 1 + value.len(),
                raw: Some(value.clone()),
            },
        },
    }
}
