//! [`ConfigError`]: everything that is wrong with a run, shown where it was written.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use ronde_core::Recovery;

use super::text::Source;
use super::{Problem, Severity};

/// Most problems that are shown; the others are counted.
const SHOWN_MAX: usize = 20;

/// Columns that a shown line may take.
const WIDTH: usize = 140;

/// A problem and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Located {
    pub(super) problem: Problem,
    pub(super) place: Option<(Arc<Source>, Range<usize>)>,
}

/// All that is wrong with a run: at least one problem.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConfigError {
    located: Vec<Located>,
}

impl ConfigError {
    /// Sorted: the whole run, then the file from top to bottom, then arguments.
    pub(super) fn new(mut located: Vec<Located>) -> Self {
        located.sort_by_key(|located| match &located.place {
            None => (0, 0),
            Some((source, span)) if !source.is_argument => (1, span.start),
            Some(_) => (2, 0),
        });
        Self { located }
    }

    pub(super) fn without_source(problems: Vec<Problem>) -> Self {
        let located = problems.into_iter();
        let located = located.map(|problem| Located {
            problem,
            place: None,
        });
        Self::new(located.collect())
    }

    /// The problems, in the order in which they are shown.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.located.iter().map(|located| &located.problem)
    }

    /// The problems with the lines that they are about, for people.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        render(&self.located, colour)
    }

    /// Nothing will help but a change by the user.
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

/// Problems one after the other, with a blank line between them.
pub(super) fn render(located: &[Located], colour: bool) -> String {
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

fn group(located: &Located) -> Group<'_> {
    let Located { problem, place } = located;
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Notice => Level::NOTE,
    };
    let title = level.primary_title(&problem.message);
    let mut group = match place {
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

/// A span that lies inside the text, at borders of characters and on one line.
fn inside(text: &str, span: &Range<usize>) -> Range<usize> {
    let border = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = border(span.start);
    let end = border(span.end).max(start);
    let line = text[start..end].find(['\n', '\r']);
    start..line.map_or(end, |length| start + length)
}
