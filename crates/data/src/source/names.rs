//! [`FolderNames`]: which files of a folder are data, and the account of the others.

use crate::error::DataError;
use crate::format::FormatKind;

/// Which files of a folder are data. Hidden files and folders, and what table writers put beside their tables, are never data.
/// Wildcards, lists and the names of files select by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderNames {
    /// All files, because their format is given.
    All,
    /// Files with the name of a known format (`a.csv`, `a.csv.gz`, `train-00000-of-01024`), without backups and partial files.
    KnownFormats,
}

/// Endings before or after that of the format which mark a backup or a partial file.
const UNFINISHED: [&str; 14] = [
    "bak",
    "backup",
    "old",
    "orig",
    "save",
    "tmp",
    "temp",
    "part",
    "partial",
    "incomplete",
    "crdownload",
    "download",
    "swp",
    "swo",
];

impl FolderNames {
    /// Returns whether the file of this name is data.
    pub(super) fn takes(self, name: &str) -> bool {
        self == Self::All || (FormatKind::of(name).is_some() && !is_unfinished(name))
    }
}

/// Returns whether a name of a known format is that of a backup or of a partial file: `a.bak.csv`, `~$a.csv`.
fn is_unfinished(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = FormatKind::without_compression(&name);
    let before = name.rsplit_once('.').map_or("", |(before, _)| before);
    let ending = before.rsplit_once('.').map_or("", |(_, ending)| ending);
    name.starts_with(['~', '#']) || UNFINISHED.contains(&ending)
}

/// Returns whether a file is a marker that Spark, Hive and similar tools write beside tables.
pub(super) fn is_writer_marker(name: &str) -> bool {
    ["_SUCCESS", "_metadata", "_common_metadata"].contains(&name)
        || name.starts_with("_committed_")
        || name.starts_with("_started_")
}

/// Returns whether a folder has the logs or unfinished files of a table writer.
pub(super) fn is_writer_folder(name: &str) -> bool {
    ["_temporary", "_delta_log", "_spark_metadata"].contains(&name)
}

/// The files of folders that are not data because of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The number of files; a folder that was not entered counts as one.
    pub count: usize,
    /// The first name.
    pub first: Option<String>,
}

impl LeftOut {
    /// Adds a file, or a folder that is not entered.
    pub(crate) fn add(&mut self, name: impl Into<String>) {
        self.count += 1;
        self.first.get_or_insert_with(|| name.into());
    }

    /// Adds those of another folder.
    pub(super) fn append(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }

    /// Returns the notice about them; `None` if there are none. `of` names the setting.
    pub(crate) fn notice(&self, of: &str) -> Option<String> {
        let first = self.first.as_ref()?;
        let (count, s) = counted(self.count);
        Some(format!(
            "leaving out {count} file{s} of {of} because of {its} name{s}, the first: {first}",
            its = if self.count == 1 { "its" } else { "their" },
        ))
    }

    /// Returns the error for an address without any data.
    pub(crate) fn error(&self, pattern: &str) -> DataError {
        DataError::LeftOut {
            pattern: pattern.to_owned(),
            count: self.count,
            first: self.first.clone().unwrap_or_default(),
        }
    }
}

/// Returns a number, and the ending of the plural.
pub(super) fn counted(count: usize) -> (usize, &'static str) {
    (count, if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_known_formats_are_data_but_not_backups_and_partial_files() {
        for name in [
            "a.csv",
            "A.CSV",
            "a.b.csv.gz",
            "a.tar.zst",
            "a.tgz",
            "_a.parquet",
            "part-00000.snappy.parquet",
            "1.JPEG",
            "a.jsonl",
            "a.npz",
            "old.csv",
            "part.tfrecord",
            "train-00000-of-01024",
        ] {
            assert!(FolderNames::KnownFormats.takes(name), "{name}");
        }
        for name in [
            "a.csv~",
            "a.csv.bak",
            "a.csv.tmp",
            "a.csv.old",
            "a.csv.part",
            "a.csv.incomplete",
            "a.csv.swp",
            "a.csv.crdownload",
            "a.csv.1",
            "a.csv.gz~",
            "a.csv.bak.gz",
            "a.bak.csv",
            "a.tmp.parquet",
            "a.part.tar.gz",
            "#a.csv#",
            "~$a.csv",
            "README",
            "a",
            "a.csv.zip",
            "a.bin",
            "part-00000",
        ] {
            assert!(!FolderNames::KnownFormats.takes(name), "{name}");
            assert!(FolderNames::All.takes(name), "{name}");
        }
    }

    #[test]
    fn the_notice_has_the_number_and_the_first_name() {
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.notice("data.train"), None);
        left_out.add("data/a.csv~");
        assert_eq!(
            left_out.notice("data.train").unwrap(),
            "leaving out 1 file of data.train because of its name, the first: data/a.csv~"
        );
        left_out.add("data/b.csv~");
        assert_eq!(
            left_out.notice("data.test").unwrap(),
            "leaving out 2 files of data.test because of their names, the first: data/a.csv~"
        );
    }
}
