//! [`SentFiles`]: decides which files are sent now. Pure.

use std::collections::BTreeMap;

use super::LocalFile;

/// The shortest time between two uploads of a file, in seconds.
const EVERY_S: f64 = 2.0;
/// The rate at which a growing file is sent at most, in bytes per second: a large one is sent less often.
const BYTES_PER_S: f64 = 4.0 * 1_048_576.0;
/// The shortest pause after an upload, as a multiple of its duration: with a slow link, a file that grows does not fill it.
const PAUSE_SHARE: f64 = 3.0;

/// The files that have been sent, as they were then.
#[derive(Debug, Default)]
pub(super) struct SentFiles {
    sent: BTreeMap<String, SentFile>,
}

#[derive(Debug)]
struct SentFile {
    bytes: u64,
    modified: u128,
    at_s: f64,
    /// How long it took.
    took_s: f64,
}

impl SentFiles {
    /// Returns the files that are new or have changed, and of these only those that may be sent now unless `all` are wanted.
    /// Small files are first, so that a log of many megabytes does not keep back the others. The manifest of the model is the
    /// last one: a reader that finds it finds the weights.
    pub(super) fn due(&self, mut found: Vec<LocalFile>, now_s: f64, all: bool) -> Vec<LocalFile> {
        found.retain(|file| match self.sent.get(&file.name) {
            None => true,
            Some(sent) => {
                let is_changed = (sent.bytes, sent.modified) != (file.bytes, file.modified);
                let growth_s = file.bytes as f64 / BYTES_PER_S;
                let wait_s = growth_s.max(sent.took_s * PAUSE_SHARE).max(EVERY_S);
                is_changed && (all || now_s - sent.at_s >= wait_s)
            }
        });
        found.sort_by_key(|file| {
            let is_last = file.name == ronde_saved_model::MANIFEST_FILE;
            (is_last, file.bytes, file.name.clone())
        });
        found
    }

    /// Returns the names that were sent and whose files are gone.
    pub(super) fn gone(&self, found: &[LocalFile]) -> Vec<String> {
        let is_gone = |name: &&String| !found.iter().any(|file| file.name == **name);
        self.sent.keys().filter(is_gone).cloned().collect()
    }

    /// Returns whether a file was sent.
    pub(super) fn has(&self, name: &str) -> bool {
        self.sent.contains_key(name)
    }

    /// Notes that a file was sent between two times.
    pub(super) fn add(&mut self, file: &LocalFile, start_s: f64, now_s: f64) {
        let sent = SentFile {
            bytes: file.bytes,
            modified: file.modified,
            at_s: now_s,
            took_s: now_s - start_s,
        };
        self.sent.insert(file.name.clone(), sent);
    }

    /// Notes that an object was removed.
    pub(super) fn remove(&mut self, name: &str) {
        self.sent.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: u64, modified: u128) -> LocalFile {
        LocalFile {
            path: name.into(),
            name: name.to_owned(),
            bytes,
            modified,
        }
    }

    #[test]
    fn changed_files_are_sent_again_after_a_time_that_grows_with_their_size() {
        let mut sent = SentFiles::default();
        let names =
            |files: Vec<LocalFile>| files.into_iter().map(|file| file.name).collect::<Vec<_>>();
        let first = vec![
            file("model.json", 1, 0),
            file("model.safetensors", 9, 0),
            file("events.jsonl", 5, 0),
        ];
        let due = sent.due(first.clone(), 0.0, false);
        assert_eq!(
            names(due),
            ["events.jsonl", "model.safetensors", "model.json"]
        );
        first.iter().for_each(|file| sent.add(file, 0.0, 0.0));
        assert!(
            sent.due(first.clone(), 99.0, true).is_empty(),
            "nothing has changed"
        );
        let grown = || vec![file("events.jsonl", 6, 1)];
        assert!(sent.due(grown(), 1.0, false).is_empty());
        assert_eq!(names(sent.due(grown(), 1.0, true)), ["events.jsonl"]);
        assert_eq!(names(sent.due(grown(), 2.0, false)), ["events.jsonl"]);
        let large = || vec![file("events.jsonl", 64 << 20, 2)];
        assert!(sent.due(large(), 15.0, false).is_empty());
        assert_eq!(names(sent.due(large(), 16.0, false)), ["events.jsonl"]);
        sent.add(&grown()[0], 2.0, 12.0);
        let slow = || vec![file("events.jsonl", 7, 2)];
        assert!(sent.due(slow(), 41.0, false).is_empty(), "it took 10 s");
        assert_eq!(names(sent.due(slow(), 42.0, false)), ["events.jsonl"]);
        assert_eq!(sent.gone(&grown()), ["model.json", "model.safetensors"]);
        sent.remove("model.json");
        assert_eq!(sent.gone(&grown()), ["model.safetensors"]);
    }
}
