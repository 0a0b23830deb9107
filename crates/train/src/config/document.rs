//! [`Document`]: the source texts of a [`RunConfig`], which trace every value to its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::error::{LocatedProblem, render};
use super::merge::{ConfigEntry, MergedConfig, Override};
use super::read::{self, AssignmentPart};
use super::text::{self, ConfigText, SourceSpan, TEXT_BYTES_MAX};
use super::{ConfigError, ConfigProblem, RunConfig, Severity, ValueOrigin, check};

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
        let raw = |path: &str| document.entries.get(path)?.raw.clone();
        let mut run = match read::read(&merged.table, &raw) {
            Ok(run) if merged.refused.is_empty() => run,
            found => {
                let errors = found.err().into_iter().flatten();
                let located = errors.map(|error| document.locate(error.problem, error.about));
                return Err(ConfigError::new(located.chain(merged.refused).collect()));
            }
        };
        if let Some(checkpoints) = run.run.resolve() {
            run.checkpoint.to.get_or_insert(checkpoints);
        }
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

fn syntax_errors(file: &Arc<ConfigText>, errors: Vec<text::SyntaxError>) -> ConfigError {
    let located = errors.into_iter().map(|error| LocatedProblem {
        problem: ConfigProblem::error("", format!("invalid TOML: {}", error.message)),
        position: Some((Arc::clone(file), error.span)),
    });
    ConfigError::new(located.collect())
}
