//! [`Document`]: the source texts of a [`RunConfig`], which trace every value to its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::{Located, render};
use super::merge::{Entry, MergedConfig, Override};
use super::run_config::VERSION;
use super::section::{self, About, Mistake};
use super::text::{self, Place, Source, TEXT_BYTES_MAX};
use super::{ConfigError, Origin, Problem, RunConfig, Severity, check, suggest};

/// The sections of a run file, in the order in which messages list them.
const SECTIONS: [&str; 12] = [
    "run",
    "workers",
    "data",
    "model",
    "train",
    "optimizer",
    "schedule",
    "comm",
    "loader",
    "check",
    "elastic",
    "checkpoint",
];

/// The default kinds of optional sections that have a `kind`.
const DEFAULT_KINDS: [(&str, &str); 2] = [("optimizer", "adamw"), ("schedule", "constant")];

/// The source positions of all values of a run, and notices about them.
#[derive(Debug, Clone)]
pub struct Document {
    file: Arc<Source>,
    places: BTreeMap<String, Place>,
    entries: BTreeMap<String, Entry>,
    notices: Vec<Problem>,
}

impl Document {
    /// Reads a run. `file_name` is only used in messages. Variables of `environment` that begin with
    /// [`super::ENVIRONMENT_PREFIX`] set values; flags take precedence over `--set`, later ones over earlier
    /// ones. Cost: linear in the text, which may have up to 256 KiB.
    ///
    /// # Errors
    /// All problems of the first kind that occurs: syntax errors; unknown keys and wrong types; the problems found
    /// by [`check::run`].
    pub fn load(
        text: &str,
        file_name: &str,
        environment: &[(String, String)],
        overrides: &[Override],
    ) -> Result<(RunConfig, Self), ConfigError> {
        if text.len() > TEXT_BYTES_MAX {
            let message = format!(
                "{file_name} has {} bytes, but a run file may have at most {TEXT_BYTES_MAX}",
                text.len()
            );
            return Err(ConfigError::without_source(vec![Problem::error(
                "", message,
            )]));
        }
        let file = Arc::new(Source {
            name: file_name.to_owned(),
            text: text.to_owned(),
            is_argument: false,
        });
        let parsed = text::parse(text).map_err(|errors| syntax_errors(&file, errors))?;
        let places = parsed.places.clone();
        let merged = MergedConfig::merge(parsed, environment, overrides);
        let mut document = Self {
            file,
            places,
            entries: merged.entries,
            notices: Vec::new(),
        };
        let (run, mut located) = document.read(&merged.table);
        located.extend(merged.refused);
        let mut run = match run {
            Some(run) if located.is_empty() => run,
            _ => return Err(ConfigError::new(located)),
        };
        run.run.output = Some(run.run.output_folder());
        let (errors, notices) = check::run(&run)
            .into_iter()
            .partition(|problem| problem.severity == Severity::Error);
        document.notices = notices;
        match document.refuse(errors) {
            Some(error) => Err(error),
            None => Ok((run, document)),
        }
    }

    /// Returns the origin of the value at a dotted path.
    #[must_use]
    pub fn origin(&self, path: &str) -> Origin {
        self.entries
            .get(path)
            .map_or(Origin::Default, |entry| entry.origin.clone())
    }

    /// Returns the dotted paths and origins of all values that were set.
    pub fn origins(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.entries
            .iter()
            .map(|(path, entry)| (path.as_str(), &entry.origin))
    }

    /// Returns the notices about a run that can start.
    #[must_use]
    pub fn notices(&self) -> &[Problem] {
        &self.notices
    }

    /// Renders the notices with the lines they refer to; empty if there are none.
    #[must_use]
    pub fn render_notices(&self, colour: bool) -> String {
        let notices = self.notices.iter().cloned();
        let located: Vec<Located> = notices.map(|p| self.locate(p, About::Value)).collect();
        render(&located, colour)
    }

    /// Attaches the lines they refer to to problems that were found later; `None` if there are none.
    #[must_use]
    pub fn refuse(&self, problems: Vec<Problem>) -> Option<ConfigError> {
        let located: Vec<Located> = problems
            .into_iter()
            .map(|problem| self.locate(problem, About::Value))
            .collect();
        (!located.is_empty()).then(|| ConfigError::new(located))
    }

    /// Reads all sections and collects the problems of all of them.
    fn read(&self, table: &Table) -> (Option<RunConfig>, Vec<Located>) {
        let mut reading = Reading {
            document: self,
            table,
            located: Vec::new(),
        };
        let version = reading.version();
        reading.unknown_sections();
        let run = reading.section("run");
        let workers = reading.section("workers");
        let data = reading.section("data");
        let model = reading.section("model");
        let train = reading.section("train");
        let optimizer = reading.section("optimizer");
        let schedule = reading.section("schedule");
        let comm = reading.section("comm");
        let check = reading.section("check");
        let elastic = reading.section("elastic");
        let loader = reading.section("loader");
        let checkpoint = reading.section("checkpoint");
        let located = reading.located;
        let all = || {
            Some(RunConfig {
                version,
                run: run?,
                workers: workers?,
                train: train?,
                comm: comm?,
                check: check?,
                elastic: elastic?,
                loader: loader?,
                checkpoint: checkpoint?,
                data: data?,
                model: model?,
                optimizer: optimizer?,
                schedule: schedule?,
            })
        };
        (all(), located)
    }

    /// Finds the source text of a problem: the value itself, else the enclosing section.
    fn locate(&self, problem: Problem, about: About) -> Located {
        let place = self.place(&problem.path, about);
        Located { problem, place }
    }

    fn place(&self, path: &str, about: About) -> Option<(Arc<Source>, Range<usize>)> {
        if let Some(entry) = self.entries.get(path) {
            let source = entry.source.as_ref().unwrap_or(&self.file);
            let span = match about {
                About::Key => &entry.key,
                About::Value | About::Section => &entry.value,
            };
            return Some((Arc::clone(source), span.clone()));
        }
        if let Some(place) = self.places.get(path).filter(|place| place.is_table) {
            return Some((Arc::clone(&self.file), place.key.clone()));
        }
        // A section that only arguments set: report any of them.
        let under = format!("{path}.");
        if let Some((inner, _)) = self.entries.range(under.clone()..).next()
            && inner.starts_with(&under)
        {
            return self.place(inner, About::Key);
        }
        let (parent, _) = path.rsplit_once('.')?;
        self.place(parent, About::Section)
    }
}

/// Reads the sections one by one and collects their problems.
struct Reading<'a> {
    document: &'a Document,
    table: &'a Table,
    located: Vec<Located>,
}

impl Reading<'_> {
    fn note(&mut self, problem: Problem, about: About) {
        let located = self.document.locate(problem, about);
        self.located.push(located);
    }

    fn version(&mut self) -> i64 {
        match self.table.get("version") {
            None => VERSION,
            Some(Value::Integer(VERSION)) => VERSION,
            Some(other) => {
                let message = format!("unknown run file version {other}");
                let hint = format!("this version of ronde reads version {VERSION}");
                self.note(Problem::error("version", message).hint(hint), About::Value);
                VERSION
            }
        }
    }

    fn unknown_sections(&mut self) {
        let unknown = |key: &&String| *key != "version" && !SECTIONS.contains(&key.as_str());
        for key in self.table.keys().filter(unknown) {
            let what = match self.table.get(key) {
                Some(Value::Table(_)) => format!("unknown section [{key}]"),
                _ => format!("unknown key `{key}` outside of any section"),
            };
            let problem = Problem {
                hint: suggest::hint(key, &SECTIONS),
                ..Problem::error(text::join("", key), what)
            };
            self.note(problem, About::Key);
        }
    }

    fn section<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let table = match self.table.get(name) {
            Some(Value::Table(table)) => table.clone(),
            Some(other) => {
                let message = format!("`{name}` must be a section, found {other}");
                let hint = format!("write `[{name}]` on a separate line, followed by its keys");
                self.note(Problem::error(name, message).hint(hint), About::Value);
                return None;
            }
            None if name == "data" || name == "model" => {
                let tag = if name == "data" { "source" } else { "kind" };
                let hint = format!("add `[{name}]`, followed by `{tag} = ...`");
                let problem = Problem::error(name, format!("the section [{name}] is missing"));
                self.note(problem.hint(hint), About::Section);
                return None;
            }
            None => default_section(name),
        };
        let raw = |path: &str| self.document.entries.get(path)?.raw.clone();
        match section::read(name, &table, &raw) {
            Ok(section) => Some(section),
            Err(mistakes) => {
                for Mistake { problem, about } in mistakes {
                    self.note(problem, about);
                }
                None
            }
        }
    }
}

/// Returns the contents of a section that is absent from the run file.
fn default_section(name: &str) -> Table {
    DEFAULT_KINDS
        .iter()
        .filter(|(section, _)| *section == name)
        .map(|(_, kind)| ("kind".to_owned(), Value::String((*kind).to_owned())))
        .collect()
}

fn syntax_errors(file: &Arc<Source>, errors: Vec<text::SyntaxError>) -> ConfigError {
    let located = errors.into_iter().map(|error| Located {
        problem: Problem::error("", format!("invalid TOML: {}", error.message)),
        place: Some((Arc::clone(file), error.span)),
    });
    ConfigError::new(located.collect())
}
