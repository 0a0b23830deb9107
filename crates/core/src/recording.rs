//! The files of a recording of spans: one per worker process, lines of text.
//!
//! All lines are words separated by single spaces. The first one is the name and the version of the format. A line with
//! `section` and six numbers is a [`RecordingSection`]: later lines belong to it. A line with five numbers is a span: kind, begin and
//! duration in nanoseconds, detail, number of the thread. A line with `dropped` and a number reports spans that are missing.

use std::fmt::Write as _;

use crate::header::FormatHeader;
use crate::rank::{Generation, Rank};
use crate::spans::{SpanKind, TimeSpan};

/// The worker that recorded the lines after this one, and its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingSection {
    /// Identifies the recording: the time at which it was requested, in milliseconds since 1970.
    pub recording: u64,
    /// The rank of the worker.
    pub rank: Rank,
    /// The version of the membership.
    pub generation: Generation,
    /// The process id.
    pub pid: u32,
    /// Nanoseconds to add to times for the clock of rank 0.
    pub offset_ns: i64,
    /// The largest error of that offset in nanoseconds.
    pub error_ns: u64,
}

/// A line of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingLine {
    /// The first line.
    Header,
    /// A section begins.
    Section(RecordingSection),
    /// A span.
    Span(TimeSpan),
    /// The number of spans that are missing here.
    Dropped(u64),
}

impl RecordingLine {
    /// Appends the line to a text, with a line break.
    pub fn append_to(&self, text: &mut String) {
        // Writing to a text cannot fail.
        let _written = match self {
            Self::Header => {
                let (format, version) = FormatHeader::RECORDING;
                writeln!(text, "{format} {version}")
            }
            Self::Section(section) => writeln!(
                text,
                "section {} {} {} {} {} {}",
                section.recording,
                section.rank,
                section.generation,
                section.pid,
                section.offset_ns,
                section.error_ns
            ),
            Self::Span(span) => writeln!(
                text,
                "{} {} {} {} {}",
                span.kind.number(),
                span.begun_ns,
                span.ended_ns.saturating_sub(span.begun_ns),
                span.detail,
                span.thread
            ),
            Self::Dropped(number) => writeln!(text, "dropped {number}"),
        };
    }

    /// Reads a line without its line break; `None` if it is damaged, cut off, or of a newer version.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let first = words.next()?;
        let read = match first {
            "section" => Self::Section(RecordingSection {
                recording: number(&mut words)?,
                rank: Rank(number(&mut words)?),
                generation: Generation(number(&mut words)?),
                pid: number(&mut words)?,
                offset_ns: number(&mut words)?,
                error_ns: number(&mut words)?,
            }),
            "dropped" => Self::Dropped(number(&mut words)?),
            name if name == FormatHeader::RECORDING.0 => {
                let version: u32 = number(&mut words)?;
                (version == FormatHeader::RECORDING.1).then_some(Self::Header)?
            }
            kind => {
                let kind = SpanKind::of_number(kind.parse().ok()?)?;
                let begun_ns: u64 = number(&mut words)?;
                let duration_ns = number(&mut words)?;
                Self::Span(TimeSpan {
                    kind,
                    detail: number(&mut words)?,
                    thread: number(&mut words)?,
                    begun_ns,
                    ended_ns: begun_ns.checked_add(duration_ns)?,
                })
            }
        };
        words.next().is_none().then_some(read)
    }
}

/// Reads the next word as a number.
fn number<'a, T: std::str::FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_written_and_damaged_ones_are_skipped() {
        let lines = [
            RecordingLine::Header,
            RecordingLine::Section(RecordingSection {
                recording: 5,
                rank: Rank(3),
                generation: Generation(2),
                pid: 17,
                offset_ns: -4,
                error_ns: 9,
            }),
            RecordingLine::Span(TimeSpan {
                kind: SpanKind::Collective,
                detail: 1 << 40,
                thread: 3,
                begun_ns: u64::MAX - 5,
                ended_ns: u64::MAX,
            }),
            RecordingLine::Dropped(12),
        ];
        let mut text = String::new();
        lines.iter().for_each(|line| line.append_to(&mut text));
        let read = text.lines().map(RecordingLine::parse);
        assert!(read.eq(lines.iter().copied().map(Some)));
        for damaged in [
            "",
            "1 2 3",
            "1 2 3 4",
            "1 2 3 4 5 6",
            "99 2 3 4 0",
            "1 18446744073709551615 1 4 0",
            "-1 2 3 4 0",
            "section 1 2 3 4 5",
            "section 1 -2 3 4 5 6",
            "dropped",
            "ronde.recording 9",
            "1  2 3",
            "\u{0}",
        ] {
            assert_eq!(RecordingLine::parse(damaged), None, "{damaged}");
        }
    }
}
