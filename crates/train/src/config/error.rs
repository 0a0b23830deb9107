//! [`ConfigError`]: all problems of a run, rendered with their source lines.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use ronde_core::Recovery;

use super::text::ConfigText;
use super::{ConfigProblem, Severity};

/// The largest number of problems that are rendered; the rest is only counted.
const SHOWN_MAX: usize = 20;

/// The width of rendered lines in columns.
const WIDTH: usize = 140;

/// A problem and its position in a source text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LocatedProblem {
    pub(super) problem: ConfigProblem,
    pub(super) position: Option<(Arc<ConfigText>, Range<usize>)>,
}

/// All problems of a run; at least one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConfigError {
    located: Vec<LocatedProblem>,
}

impl ConfigError {
    /// Creates an error from problems, sorted: the whole run, then the file from top to bottom, then arguments.
    pub(super) fn new(mut located: Vec<LocatedProblem>) -> Self {
        located.sort_by_key(|located| match &located.position {
            None => (0, 0),
            Some((source, span)) if !source.is_argument => (1, span.start),
            Some(_) => (2, 0),
        });
        Self { located }
    }

    pub(super) fn without_source(problems: Vec<ConfigProblem>) -> Self {
        let located = problems.into_iter();
        let located = located.map(|problem| LocatedProblem {
            problem,
            position: None,
        });
        Self::new(located.collect())
    }

    /// Returns the problems in the order in which they are rendered.
    pub fn problems(&self) -> impl Iterator<Item = &ConfigProblem> {
        self.located.iter().map(|located| &located.problem)
    }

    /// Renders the problems with the lines they refer to.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        render(&self.located, colour)
    }

    /// Returns [`Recovery::Abort`]: the user has to change the run.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems().take(SHOWN_MAX).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}", problem.message)?;
        }
        match self.located.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Renders problems, separated by blank lines.
pub(super) fn render(located: &[LocatedProblem], colour: bool) -> String {
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer.term_width(WIDTH).decor_style(DecorStyle::Ascii);
    let mut shown: Vec<String> = located
        .iter()
        .take(SHOWN_MAX)
        .map(|located| renderer.render(&[group(located)]))
        .collect();
    if located.len() > SHOWN_MAX {
        shown.push(format!("... and {} more", located.len() - SHOWN_MAX));
    }
    shown.join("\n\n")
}

fn group(located: &LocatedProblem) -> Group<'_> {
    let LocatedProblem { problem, position } = located;
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Notice => Level::NOTE,
    };
    let title = level.primary_title(&problem.message);
    let mut group = match position {
        Some((source, span)) => {
            let span = inside(&source.text, span);
            let annotation = AnnotationKind::Primary.span(span);
            title.element(
                Snippet::source(&source.text)
                    .path(&source.name)
                    .annotation(annotation),
            )
        }
        None => Group::with_title(title),
    };
    if let Some(hint) = &problem.hint {
        group = group.element(Level::HELP.message(hint));
    }
    group
}

/// Clamps a span to the text, to character boundaries and to one line.
fn inside(text: &str, span: &Range<usize>) -> Range<usize> {
    let boundary = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = boundary(span.start);
    let end = boundary(span.end).max(start);
    let line = text[start..end].find(['\n', '\r']);
    start..line.map_or(end, |length| start + length)
}
