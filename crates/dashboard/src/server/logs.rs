//! The logs of a run: the messages among its events, and the output of its ranks.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::history::RunHistory;
use crate::settings::masked;

/// The folder of the output of the ranks in the folder of a run.
const LOGS_FOLDER: &str = "logs";
/// Bytes at the end of each file that are searched.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Largest number of files that are searched.
const FILES_MAX: usize = 1_024;
/// Largest number of lines of an answer; the newest ones.
const LINES_MAX: usize = 2_000;

/// Selects lines of the logs of a run.
#[derive(Debug, Deserialize)]
pub(super) struct LogQuery {
    /// The run.
    pub(super) id: String,
    /// The rank; empty: all.
    #[serde(default)]
    rank: String,
    /// Text that the line contains, in upper or lower case.
    #[serde(default)]
    text: String,
}

impl LogQuery {
    fn selects(&self, rank: &str, line: &str) -> bool {
        let wanted = self.rank.is_empty() || self.rank == rank;
        let text = self.text.to_lowercase();
        wanted && (text.is_empty() || line.to_lowercase().contains(&text))
    }
}

/// A line of the logs.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct LogLine {
    /// Time in seconds since 1970; output of ranks has none.
    t: Option<f64>,
    rank: String,
    is_warning: bool,
    text: String,
}

/// Returns the selected messages among the events.
pub(super) fn messages(history: &RunHistory, query: &LogQuery) -> Vec<LogLine> {
    let messages = history.messages.iter().rev();
    let lines = messages.map(|message| LogLine {
        t: Some(message.t),
        rank: message
            .rank
            .map_or_else(String::new, |rank| rank.to_string()),
        is_warning: message.is_warning,
        text: masked(&message.text),
    });
    lines
        .filter(|line| query.selects(&line.rank, &line.text))
        .take(LINES_MAX)
        .collect()
}

/// The selected lines.
#[derive(Debug, Serialize)]
pub(super) struct LogAnswer {
    /// Messages, the newest first.
    messages: Vec<LogLine>,
    /// Output of the ranks, in its order.
    output: Vec<LogLine>,
    /// The ranks that have output.
    ranks: Vec<String>,
    /// Whether there are more lines than these.
    is_cut: bool,
}

/// Searches the output of the ranks. Reads at most 8 MB of each file.
pub(super) fn search(folder: &Path, messages: Vec<LogLine>, query: &LogQuery) -> LogAnswer {
    let mut answer = LogAnswer {
        messages,
        output: Vec::new(),
        ranks: Vec::new(),
        is_cut: false,
    };
    let entries = std::fs::read_dir(folder.join(LOGS_FOLDER));
    let mut files: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rank: u32 = name
                .strip_prefix("rank-")?
                .strip_suffix(".log")?
                .parse()
                .ok()?;
            Some((rank, entry.path()))
        })
        .collect();
    files.sort();
    files.truncate(FILES_MAX);
    for (rank, path) in files {
        let rank = rank.to_string();
        let is_selected = query.rank.is_empty() || query.rank == rank;
        if let (true, Ok(text)) = (is_selected, end_of(&path)) {
            let lines = text.lines().filter(|line| query.selects(&rank, line));
            answer.output.extend(lines.map(|line| LogLine {
                t: None,
                rank: rank.clone(),
                is_warning: false,
                text: masked(line),
            }));
        }
        answer.ranks.push(rank);
    }
    let surplus = answer.output.len().saturating_sub(LINES_MAX);
    answer.is_cut = surplus > 0;
    answer.output.drain(..surplus);
    answer
}

/// Reads the end of a regular file.
fn end_of(path: &Path) -> std::io::Result<String> {
    if !path.symlink_metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(FILE_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_selected_by_rank_and_text() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join(LOGS_FOLDER);
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(logs.join("rank-0.log"), "Alpha\nbeta http://u:p@h\n").unwrap();
        std::fs::write(logs.join("rank-1.log"), b"alpha\xff\n").unwrap();
        std::fs::write(logs.join("other.log"), "alpha\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", logs.join("rank-2.log")).unwrap();
        let search = |rank: &str, text: &str| {
            let query = LogQuery {
                id: String::new(),
                rank: rank.to_owned(),
                text: text.to_owned(),
            };
            let answer = search(dir.path(), Vec::new(), &query);
            let lines = answer.output.into_iter().map(|line| line.text);
            lines.collect::<Vec<_>>()
        };
        assert_eq!(search("", "ALPHA"), ["Alpha", "alpha\u{fffd}"]);
        assert_eq!(search("0", ""), ["Alpha", "beta http://•••@h"]);
        assert_eq!(search("2", ""), [""; 0], "links are not followed");
        assert_eq!(search("../../etc", ""), [""; 0]);
    }
}
