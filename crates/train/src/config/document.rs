//! [`Document`]: the source texts of a [`RunConfig`], which trace every value to its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::{LocatedProblem, render};
use super::merge::{ConfigEntry, MergedConfig, Override};
use super::run_config::VERSION;
use super::section::{self, AssignmentPart, SectionError};
use super::text::{self, ConfigText, SourceSpan, TEXT_BYTES_MAX};
use super::{ConfigError, ConfigProblem, RunConfig, Severity, ValueOrigin, check, suggest};

/// The sections of a run file, in the order in which messages list them.
const SECTIONS: [&str; 13] = [
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
    "events",
];

/// The default kinds of optional sections that have a `kind`.
const DEFAULT_KINDS: [(&str, &str); 2] = [("optimizer", "adamw"), ("schedule", "constant")];

/// The source positions of all values of a run, and notices about them.
#[derive(Debug, Clone)]
pub struct Document {
    file: Arc<ConfigText>,
    spans: BTreeMap<String, SourceSpan>,
    entries: BTreeMap<String, ConfigEntry>,
    notices: Vec<ConfigProblem>,
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
            return Err(ConfigError::without_source(vec![ConfigProblem::error(
                "", message,
            )]));
        }
        let file = Arc::new(ConfigText {
            name: file_name.to_owned(),
            text: text.to_owned(),
            is_argument: false,
        });
        let parsed = text::parse(text).map_err(|errors| syntax_errors(&file, errors))?;
        let spans = parsed.spans.clone();
        let merged = MergedConfig::merge(parsed, environment, overrides);
        let mut document = Self {
            file,
            spans,
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
    pub fn origin(&self, path: &str) -> ValueOrigin {
        self.entries
            .get(path)
            .map_or(ValueOrigin::Default, |entry| entry.origin.clone())
    }

    /// Returns the dotted paths and origins of all values that were set.
    pub fn origins(&self) -> impl Iterator<Item = (&str, &ValueOrigin)> {
        self.entries
            .iter()
            .map(|(path, entry)| (path.as_str(), &entry.origin))
    }

    /// Returns the notices about a run that can start.
    #[must_use]
    pub fn notices(&self) -> &[ConfigProblem] {
        &self.notices
    }

    /// Renders the notices with the lines they refer to; empty if there are none.
    #[must_use]
    pub fn render_notices(&self, colour: bool) -> String {
        let notices = self.notices.iter().cloned();
        let located: Vec<LocatedProblem> = notices
            .map(|p| self.locate(p, AssignmentPart::Value))
            .collect();
        render(&located, colour)
    }

    /// Attaches the lines they refer to to problems that were found later; `None` if there are none.
    #[must_use]
    pub fn refuse(&self, problems: Vec<ConfigProblem>) -> Option<ConfigError> {
        let located: Vec<LocatedProblem> = problems
            .into_iter()
            .map(|problem| self.locate(problem, AssignmentPart::Value))
            .collect();
        (!located.is_empty()).then(|| ConfigError::new(located))
    }

    /// Reads all sections and collects the problems of all of them.
    fn read(&self, table: &Table) -> (Option<RunConfig>, Vec<LocatedProblem>) {
        let mut reading = SectionReader {
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
        let events = reading.section("events");
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
                events: events?,
                data: data?,
                model: model?,
                optimizer: optimizer?,
                schedule: schedule?,
            })
        };
        (all(), located)
    }

    /// Finds the source text of a problem: the value itself, else the enclosing section.
    fn locate(&self, problem: ConfigProblem, about: AssignmentPart) -> LocatedProblem {
        let position = self.position(&problem.path, about);
        LocatedProblem { problem, position }
    }

    fn position(
        &self,
        path: &str,
        about: AssignmentPart,
    ) -> Option<(Arc<ConfigText>, Range<usize>)> {
        if let Some(entry) = self.entries.get(path) {
            let source = entry.source.as_ref().unwrap_or(&self.file);
            let span = match about {
                AssignmentPart::Key => &entry.key,
                AssignmentPart::Value | AssignmentPart::Section => &entry.value,
            };
            return Some((Arc::clone(source), span.clone()));
        }
        if let Some(span) = self.spans.get(path).filter(|span| span.is_table) {
            return Some((Arc::clone(&self.file), span.key.clone()));
        }
        // A section that only arguments set: report any of them.
        let under = format!("{path}.");
        if let Some((inner, _)) = self.entries.range(under.clone()..).next()
            && inner.starts_with(&under)
        {
            return self.position(inner, AssignmentPart::Key);
        }
        let (parent, _) = path.rsplit_once('.')?;
        self.position(parent, AssignmentPart::Section)
    }
}

/// Reads the sections one by one and collects their problems.
struct SectionReader<'a> {
    document: &'a Document,
    table: &'a Table,
    located: Vec<LocatedProblem>,
}

impl SectionReader<'_> {
    fn note(&mut self, problem: ConfigProblem, about: AssignmentPart) {
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
                self.note(
                    ConfigProblem::error("version", message).hint(hint),
                    AssignmentPart::Value,
                );
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
            let problem = ConfigProblem {
                hint: suggest::hint(key, &SECTIONS),
                ..ConfigProblem::error(text::join("", key), what)
            };
            self.note(problem, AssignmentPart::Key);
        }
    }

    fn section<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let table = match self.table.get(name) {
            Some(Value::Table(table)) => table.clone(),
            Some(other) => {
                let message = format!("`{name}` must be a section, found {other}");
                let hint = format!("write `[{name}]` on a separate line, followed by its keys");
                self.note(
                    ConfigProblem::error(name, message).hint(hint),
                    AssignmentPart::Value,
                );
                return None;
            }
            None if name == "data" || name == "model" => {
                let tag = if name == "data" { "source" } else { "kind" };
                let hint = format!("add `[{name}]`, followed by `{tag} = ...`");
                let problem =
                    ConfigProblem::error(name, format!("the section [{name}] is missing"));
                self.note(problem.hint(hint), AssignmentPart::Section);
                return None;
            }
            None => default_section(name),
        };
        let raw = |path: &str| self.document.entries.get(path)?.raw.clone();
        match section::read(name, &table, &raw) {
            Ok(section) => Some(section),
            Err(mistakes) => {
                for SectionError { problem, about } in mistakes {
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

fn syntax_errors(file: &Arc<ConfigText>, errors: Vec<text::SyntaxError>) -> ConfigError {
    let located = errors.into_iter().map(|error| LocatedProblem {
        problem: ConfigProblem::error("", format!("invalid TOML: {}", error.message)),
        position: Some((Arc::clone(file), error.span)),
    });
    ConfigError::new(located.collect())
}
