//! Layers of values: file, environment, `--set`, flags; merged key by key, each with its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::{Table, Value};

use super::error::Located;
use super::text::{Parsed, Source, is_bare, join, parse_value};
use super::{Origin, Problem};

/// Environment variables of this prefix are values of a run: `RONDE_SET_TRAIN__EPOCHS=3` is
/// `train.epochs=3`. Two underscores are a dot.
pub const ENVIRONMENT_PREFIX: &str = "RONDE_SET_";

/// Most parts of a dotted path that an argument may name.
const PATH_PARTS_MAX: usize = 8;

/// A value given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Override {
    /// The text after `--set`: `train.epochs=3`. The value is TOML, or else a string as it stands.
    Set(String),
    /// A flag of its own: `--workers 3`. Wins over every `--set`.
    Flag {
        /// Name of the flag, with its dashes.
        name: String,
        /// Dotted path of the value that it sets: `workers.count`.
        path: String,
        /// The value as it was written.
        value: String,
    },
}

/// One value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) origin: Origin,
    pub(super) layer: Layer,
    /// `None`: the run file.
    pub(super) source: Option<Arc<Source>>,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    /// What an argument said, for a string that looks like another type.
    pub(super) raw: Option<String>,
}

/// Layers in the order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    File,
    Environment,
    Set,
    Flag,
}

/// The merged layers.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) table: Table,
    pub(super) entries: BTreeMap<String, Entry>,
    /// Mistakes in arguments themselves.
    pub(super) refused: Vec<Located>,
}

impl Layers {
    pub(super) fn merge(
        file: Parsed,
        environment: &[(String, String)],
        overrides: &[Override],
    ) -> Self {
        let entries = file.places.iter().filter(|(_, place)| !place.is_table);
        let mut layers = Self {
            entries: entries
                .map(|(path, place)| (path.clone(), file_entry(place)))
                .collect(),
            table: file.table,
            refused: Vec::new(),
        };
        let mut arguments: Vec<Argument> = environment
            .iter()
            .filter_map(|(name, value)| environment_argument(name, value))
            .chain(overrides.iter().map(override_argument))
            .collect();
        arguments.sort_by_key(|argument| argument.entry.layer);
        for argument in arguments {
            layers.apply(&argument);
        }
        layers
    }

    fn apply(&mut self, argument: &Argument) {
        let parts: Vec<&str> = argument.path.split('.').collect();
        if parts.len() > PATH_PARTS_MAX || !parts.iter().all(|part| is_bare(part)) {
            let message = format!("`{}` is not a path like train.epochs", argument.path);
            return self.refuse(argument, message);
        }
        let Some(value) = &argument.value else {
            return self.refuse(argument, "expected `key=value`, for example train.epochs=3");
        };
        if self.put(&parts, value, &argument.entry).is_none() {
            let message = format!("`{}` goes through a key that is no section", argument.path);
            self.refuse(argument, message);
        }
    }

    fn refuse(&mut self, argument: &Argument, message: impl Into<String>) {
        let source = argument.entry.source.clone();
        self.refused.push(Located {
            problem: Problem::error(argument.path.clone(), message),
            place: source.map(|source| (source, argument.entry.key.clone())),
        });
    }

    /// Sets a value; `None` when something on the way is no table.
    fn put(&mut self, parts: &[&str], value: &Value, entry: &Entry) -> Option<()> {
        if let Value::Table(inner) = value {
            for (key, value) in inner {
                self.put(&[parts, &[key.as_str()]].concat(), value, entry)?;
            }
            return Some(());
        }
        let path = parts
            .iter()
            .fold(String::new(), |prefix, key| join(&prefix, key));
        self.displace(&path, value, entry.layer);
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

    /// Drops values of lower layers that make no sense beside the new one.
    fn displace(&mut self, path: &str, value: &Value, layer: Layer) {
        let Some((section, key)) = path.split_once('.') else {
            return;
        };
        let dropped: Vec<String> = match (section, key) {
            ("train", "epochs") => vec!["steps".to_owned()],
            ("train", "steps") => vec!["epochs".to_owned()],
            ("data", "source") | ("model" | "optimizer" | "schedule", "kind") => {
                let table = self.table.get(section).and_then(Value::as_table);
                let other = table.filter(|table| table.get(key) != Some(value));
                other.map_or_else(Vec::new, |table| {
                    table.keys().filter(|k| *k != key).cloned().collect()
                })
            }
            _ => return,
        };
        for other in dropped {
            let prefix = join(section, &other);
            let lower = |entry: &Entry| entry.layer < layer;
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

/// An argument taken apart.
struct Argument {
    path: String,
    value: Option<Value>,
    entry: Entry,
}

fn file_entry(place: &super::text::Place) -> Entry {
    Entry {
        origin: Origin::File {
            span: place.value.clone(),
        },
        layer: Layer::File,
        source: None,
        key: place.key.clone(),
        value: place.value.clone(),
        raw: None,
    }
}

fn environment_argument(name: &str, value: &str) -> Option<Argument> {
    let path = name.strip_prefix(ENVIRONMENT_PREFIX)?;
    Some(Argument {
        path: path.to_ascii_lowercase().replace("__", "."),
        value: Some(parse_value(value)),
        entry: Entry {
            origin: Origin::Environment {
                name: name.to_owned(),
            },
            layer: Layer::Environment,
            source: Some(Arc::new(Source {
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

fn override_argument(given: &Override) -> Argument {
    match given {
        Override::Set(text) => {
            let (path, value) = match text.split_once('=') {
                Some((path, value)) => (path, Some(value)),
                None => (text.as_str(), None),
            };
            let start = path.len() + usize::from(value.is_some());
            Argument {
                path: path.trim().to_owned(),
                value: value.map(|value| parse_value(value.trim())),
                entry: Entry {
                    origin: Origin::Set { text: text.clone() },
                    layer: Layer::Set,
                    source: Some(Arc::new(Source {
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
        Override::Flag { name, path, value } => Argument {
            path: path.clone(),
            value: Some(parse_value(value)),
            entry: Entry {
                origin: Origin::Flag { name: name.clone() },
                layer: Layer::Flag,
                source: Some(Arc::new(Source {
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
