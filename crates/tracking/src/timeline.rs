//! [`RunTimeline`]: the recordings of all ranks of a run on one clock, and their form for timeline viewers.
//!
//! The form is the trace event format of Chrome, which Perfetto reads as well: a process for each rank, a thread for what it
//! computes, one for its collectives and one for each of its threads that load samples or save checkpoints, and a counter of the bytes in collectives. Times are microseconds since the first span.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use ronde_core::Rank;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::recording::{RecordingLine, RecordingSection};
use ronde_core::spans::{SpanKind, TimeSpan};

/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 1 << 10;

/// The recordings of all ranks of a run.
#[derive(Debug, Clone, Default)]
pub struct RunTimeline {
    ranks: BTreeMap<Rank, RankTimeline>,
    /// The number of spans that the workers could not record.
    pub dropped: u64,
    /// The number of lines that could not be read, such as the last one of a worker that was killed.
    pub damaged_lines: u64,
    /// The largest error of the offsets between the clocks of the ranks, in nanoseconds.
    pub clock_error_ns: u64,
}

/// The activity of a rank, on the clock of rank 0.
#[derive(Debug, Clone, Default)]
struct RankTimeline {
    /// The process ids under which the rank ran.
    pids: Vec<u32>,
    threads: BTreeMap<TimelineThread, Vec<TimeSpan>>,
}

/// A thread of a rank in the order in which viewers show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimelineThread {
    Compute,
    Collectives,
    WriteCheckpoint,
    PublishCheckpoint,
    /// A thread of the loader, by its number.
    Loader(u32),
}

impl TimelineThread {
    /// Returns the thread to which a span belongs.
    fn of(span: &TimeSpan) -> Self {
        match span.kind {
            SpanKind::Collective => Self::Collectives,
            SpanKind::WriteCheckpoint => Self::WriteCheckpoint,
            SpanKind::PublishCheckpoint => Self::PublishCheckpoint,
            SpanKind::Fetch | SpanKind::Decode => Self::Loader(span.thread),
            _ => Self::Compute,
        }
    }

    /// Returns the number of the thread in the format.
    fn number(self) -> u64 {
        match self {
            Self::Compute => 1,
            Self::Collectives => 2,
            Self::WriteCheckpoint => 3,
            Self::PublishCheckpoint => 4,
            Self::Loader(number) => 5 + u64::from(number),
        }
    }
}

impl std::fmt::Display for TimelineThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compute => f.write_str("compute"),
            Self::Collectives => f.write_str("collectives"),
            Self::WriteCheckpoint => f.write_str("checkpoint"),
            Self::PublishCheckpoint => f.write_str("checkpoint publication"),
            Self::Loader(number) => match number.checked_sub(BackgroundSpans::EVALUATION_THREADS) {
                None => write!(f, "loader {number}"),
                Some(number) => write!(f, "loader {number} of evaluations"),
            },
        }
    }
}

impl RunTimeline {
    /// Reads the files of a recording.
    ///
    /// # Errors
    /// A file cannot be read, or is not a recording.
    pub fn read(files: &[PathBuf]) -> io::Result<Self> {
        let mut timeline = Self::default();
        for path in files {
            let read = File::open(path).and_then(|file| timeline.add(BufReader::new(file)));
            read.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })?;
        }
        timeline.ranks.values_mut().for_each(RankTimeline::order);
        Ok(timeline)
    }

    /// Returns the files of a recording in a folder, in the order of their names.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "spans")
            {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Adds the file of a worker.
    fn add(&mut self, mut lines: impl BufRead) -> io::Result<()> {
        let mut section: Option<RecordingSection> = None;
        let (mut bytes, mut is_first) = (Vec::new(), true);
        loop {
            bytes.clear();
            let mut line = io::Read::take(&mut lines, LINE_BYTES_MAX);
            let read = line.read_until(b'\n', &mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            // A line without an end was cut off, and its last number may be wrong.
            let line = bytes.strip_suffix(b"\n");
            let line = line.and_then(|line| std::str::from_utf8(line).ok());
            let line = line.and_then(RecordingLine::parse);
            if std::mem::take(&mut is_first) && line != Some(RecordingLine::Header) {
                let problem = "not a recording of this version of ronde";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            match (line, section) {
                (Some(RecordingLine::Header), _) => {}
                (Some(RecordingLine::Dropped(number)), _) => {
                    self.dropped = self.dropped.saturating_add(number);
                }
                (Some(RecordingLine::Section(new)), _) => {
                    section = Some(new);
                    self.clock_error_ns = self.clock_error_ns.max(new.error_ns);
                    let rank = self.ranks.entry(new.rank).or_default();
                    if !rank.pids.contains(&new.pid) {
                        rank.pids.push(new.pid);
                    }
                }
                (Some(RecordingLine::Span(span)), Some(section)) => {
                    let rank = self.ranks.entry(section.rank).or_default();
                    rank.add(span, section.offset_ns);
                }
                (Some(RecordingLine::Span(_)) | None, _) => self.damaged_lines += 1,
            }
        }
    }

    /// Returns the ranks with spans.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }

    /// Returns the number of spans of all ranks.
    #[must_use]
    pub fn spans(&self) -> usize {
        let ranks = self.ranks.values();
        ranks.map(|rank| rank.all().count()).sum()
    }

    /// Returns the begin of the first span and the end of the last one in nanoseconds.
    fn ends_ns(&self) -> Option<(u64, u64)> {
        let spans = || self.ranks.values().flat_map(RankTimeline::all);
        let first = spans().map(|span| span.begun_ns).min()?;
        let last = spans().map(|span| span.ended_ns).max()?;
        Some((first, last))
    }

    /// Returns the seconds between the first and the last span.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        self.ends_ns()
            .map_or(0.0, |(first, last)| (last - first) as f64 / 1e9)
    }

    /// Writes the timeline in the trace event format, as one JSON object.
    ///
    /// # Errors
    /// Writing failed.
    pub fn write_chrome(&self, mut to: impl Write) -> io::Result<()> {
        let (first_ns, _) = self.ends_ns().unwrap_or((0, 0));
        write!(
            to,
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_spans\":{},\"clock_error_us\":{}}},\"traceEvents\":[",
            self.dropped,
            Microseconds(self.clock_error_ns)
        )?;
        let mut separator = "\n";
        for (rank, timeline) in &self.ranks {
            timeline.write_names(&mut to, *rank, &mut separator)?;
            timeline.write_spans(&mut to, *rank, first_ns)?;
        }
        to.write_all(b"\n]}\n")?;
        to.flush()
    }
}

impl RankTimeline {
    fn all(&self) -> impl Iterator<Item = &TimeSpan> {
        self.threads.values().flatten()
    }

    /// Adds a span after moving it to the clock of rank 0.
    fn add(&mut self, mut span: TimeSpan, offset_ns: i64) {
        span.begun_ns = span.begun_ns.saturating_add_signed(offset_ns);
        span.ended_ns = span.ended_ns.saturating_add_signed(offset_ns);
        let thread = self.threads.entry(TimelineThread::of(&span));
        thread.or_default().push(span);
    }

    /// Puts the spans in the order of their begins, outer ones first, and shortens what is not nested: spans before and after
    /// a change of the clock's offset, and collectives, whose times are measured by several threads.
    fn order(&mut self) {
        for spans in self.threads.values_mut() {
            spans.sort_by_key(|span| (span.begun_ns, std::cmp::Reverse(span.ended_ns)));
            let mut open: Vec<u64> = Vec::new();
            for span in spans {
                while open.last().is_some_and(|end| *end <= span.begun_ns) {
                    open.pop();
                }
                if span.kind == SpanKind::Collective
                    && let Some(end) = open.pop()
                {
                    span.begun_ns = end;
                    span.ended_ns = span.ended_ns.max(end);
                }
                if let Some(end) = open.last() {
                    span.ended_ns = span.ended_ns.min(*end);
                }
                open.push(span.ended_ns);
            }
        }
    }

    fn write_names(
        &self,
        to: &mut impl Write,
        rank: Rank,
        separator: &mut &'static str,
    ) -> io::Result<()> {
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        let name = format!("rank {rank} (pid {})", pids.join(", "));
        write!(
            to,
            "{separator}{{\"ph\":\"M\",\"pid\":{rank},\"tid\":0,\"name\":\"process_name\",\"args\":{{\"name\":\"{name}\"}}}}"
        )?;
        *separator = ",\n";
        for thread in self.threads.keys() {
            let number = thread.number();
            write!(
                to,
                ",\n{{\"ph\":\"M\",\"pid\":{rank},\"tid\":{number},\"name\":\"thread_name\",\"args\":{{\"name\":\"{thread}\"}}}}"
            )?;
        }
        Ok(())
    }

    fn write_spans(&self, to: &mut impl Write, rank: Rank, first_ns: u64) -> io::Result<()> {
        for span in self.all() {
            let is_collective = span.kind == SpanKind::Collective;
            let thread = TimelineThread::of(span).number();
            let (begun, ended) = (span.begun_ns - first_ns, span.ended_ns - first_ns);
            write!(
                to,
                ",\n{{\"ph\":\"X\",\"pid\":{rank},\"tid\":{thread},\"ts\":{},\"dur\":{},\"name\":\"{}\",\"args\":{{\"{}\":{}}}}}",
                Microseconds(begun),
                Microseconds(ended - begun),
                span.kind.name(),
                detail(span.kind),
                span.detail
            )?;
            if is_collective {
                for (at, bytes) in [(begun, span.detail), (ended, 0)] {
                    write!(
                        to,
                        ",\n{{\"ph\":\"C\",\"pid\":{rank},\"ts\":{},\"name\":\"bytes in collectives\",\"args\":{{\"bytes\":{bytes}}}}}",
                        Microseconds(at)
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the name of the detail of a span.
fn detail(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Forward | SpanKind::Border | SpanKind::Decode => "shard",
        SpanKind::Fetch => "samples",
        SpanKind::Backward => "bucket",
        SpanKind::Collective => "bytes",
        _ => "step",
    }
}

/// Nanoseconds that are displayed as microseconds with three decimals.
struct Microseconds(u64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests;
