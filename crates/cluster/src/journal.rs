//! [`Journal`]: the events of a job as JSON lines in a file that outlives its coordinators.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ronde_core::{Event, FormatHeader};
use serde::{Deserialize, Serialize};

/// Number of bytes after which [`Journal::lines_from`] reads no further line.
const LINES_BYTES: usize = 1 << 20;

/// Consecutive complete lines of a job's event file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLines {
    /// The lines with their line breaks; empty without more.
    pub text: String,
    /// The position of the next line in bytes.
    pub next: u64,
}

#[derive(Serialize, Deserialize)]
struct JournalLine<E> {
    t: f64,
    #[serde(flatten)]
    event: E,
}

/// An append-only event file. Every line is complete except possibly the last one, which a crash
/// may have truncated; such a line is removed before more is written.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// The number of events in it.
    count: u64,
}

impl Journal {
    /// Opens the file to append to it, or creates it. `seen` receives all events in it.
    pub(crate) fn open(path: &Path, seen: &mut dyn FnMut(&Event)) -> std::io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut count = 0;
        let whole = walk(&file, &mut |event| {
            event.iter().for_each(&mut *seen);
            count += 1;
            true
        })?;
        file.set_len(whole)?;
        file.seek(SeekFrom::End(0))?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            count,
        };
        if whole == 0 {
            journal.line(&FormatHeader::of(FormatHeader::EVENTS))?;
        }
        Ok(journal)
    }

    /// Appends an event; returns its number, starting from 1.
    pub(crate) fn append(&mut self, event: &Event) -> std::io::Result<u64> {
        let t = ronde_clock::date()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        self.line(&JournalLine { t, event })?;
        self.count += 1;
        Ok(self.count)
    }

    fn line(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// Reads the events after the first `known` ones, with their numbers. `None` represents a line
    /// that only a newer version can read.
    pub(crate) fn after(&self, known: u64) -> std::io::Result<Vec<(u64, Option<Event>)>> {
        let (mut number, mut events) = (0, Vec::new());
        walk(&File::open(&self.path)?, &mut |event| {
            number += 1;
            if number > known {
                events.push((number, event));
            }
            number < self.count
        })?;
        Ok(events)
    }

    /// Reads complete lines from a position on, the header included, until they have about 1 MiB.
    pub(crate) fn lines_from(&self, position: u64) -> std::io::Result<EventLines> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(position))?;
        let (mut reader, mut lines) = (BufReader::new(file), Vec::new());
        while lines.len() < LINES_BYTES {
            let whole = lines.len();
            reader.read_until(b'\n', &mut lines)?;
            if lines.len() == whole || !lines.ends_with(b"\n") {
                lines.truncate(whole);
                break;
            }
        }
        let next = position.saturating_add(lines.len() as u64);
        let text = String::from_utf8_lossy(&lines).into_owned();
        Ok(EventLines { text, next })
    }
}

/// Reads an event file up to the last complete line while `visit` returns true, and returns the
/// number of bytes read. Every line except the header counts, even if it cannot be parsed.
pub(crate) fn walk(
    file: &File,
    visit: &mut dyn FnMut(Option<Event>) -> bool,
) -> std::io::Result<u64> {
    let mut reader = BufReader::new(file);
    let (mut whole, mut line, mut continues) = (0, Vec::new(), true);
    while continues {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            break;
        }
        let is_header = whole == 0;
        whole += length as u64;
        if !is_header {
            let read = serde_json::from_slice::<JournalLine<Event>>(&line);
            continues = visit(read.ok().map(|line| line.event));
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use ronde_core::{Generation, Rank};

    use super::*;

    fn notice(text: &str) -> Event {
        Event::Notice {
            rank: Some(Rank(1)),
            message: text.to_owned(),
        }
    }

    #[test]
    fn events_read_back_as_they_were_written() {
        for line in [
            r#"{"t":1.5,"event":"recovered","generation":1,"step":22,"duration_s":0.09}"#,
            r#"{"t":1.5,"event":"resumed","generation":2,"world_size":2,"step":23,"applied":0,"healed":0}"#,
            r#"{"t":1.5,"event":"step_times","rank":0,"step":1,"compute_s":1e-7,"communicate_s":0.1,"wait_data_s":null,"forward_s":0.0,"backward_s":0.25,"optimizer_s":0.0,"reducing_s":0.0,"waited_s":0.0,"bytes_sent":1}"#,
            r#"{"t":1.5,"event":"notice","rank":null,"message":"a\nb"}"#,
        ] {
            let read: JournalLine<Event> = serde_json::from_str(line).expect(line);
            let again = serde_json::to_string(&read).unwrap();
            assert_eq!(again, line);
        }
    }

    #[test]
    fn a_journal_is_continued_after_a_crash_in_the_middle_of_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut journal = Journal::open(&path, &mut |_| ()).unwrap();
        assert_eq!(journal.append(&notice("one")).unwrap(), 1);
        let two = Event::MembershipChanged {
            generation: Generation(2),
            world_size: 3,
            reason: "because".to_owned(),
        };
        assert_eq!(journal.append(&two).unwrap(), 2);
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"t\":1.0,\"event\":\"noti").unwrap();
        let mut seen = Vec::new();
        let mut journal = Journal::open(&path, &mut |event| seen.push(event.clone())).unwrap();
        assert_eq!(seen, [notice("one"), two.clone()]);
        assert_eq!(journal.append(&notice("three")).unwrap(), 3);
        let after = [(2, Some(two)), (3, Some(notice("three")))];
        assert_eq!(journal.after(1).unwrap(), after);
        let first = journal.lines_from(0).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((&first.text, first.next), (&text, text.len() as u64));
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"t\":1.0,").unwrap();
        for beyond in [0, 1_000] {
            let position = first.next + beyond;
            let none = journal.lines_from(position).unwrap();
            assert_eq!((none.text.as_str(), none.next), ("", position));
        }
        let from_last = text.trim_end().rfind('\n').unwrap() as u64 + 1;
        let last = journal.lines_from(from_last).unwrap();
        assert_eq!(last.text, text[from_last as usize..]);
        assert!(text.starts_with("{\"format\":\"ronde.events\",\"version\":1}\n"));
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
