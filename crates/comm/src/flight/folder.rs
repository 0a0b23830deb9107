//! Flight records as files in a folder: one per rank, of the newest generation.

use std::io;
use std::path::{Path, PathBuf};

use ronde_core::Generation;

use super::record::FlightRecord;

/// File name ending of a complete record.
const ENDING: &str = ".json";

impl FlightRecord {
    /// Writes the record into a folder, which is created if necessary, as
    /// `flight-<group>-<generation>-rank-<rank>.json`, atomically. Records of earlier
    /// generations of the group are removed; nothing is written if there are records of a later one.
    /// Returns the path of the file.
    ///
    /// # Errors
    /// The folder cannot be written.
    /// The folder does not take it.
    pub fn write_into(&self, folder: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let group = self.group.chars();
        let group: String = group
            .map(|c| if c.is_alphanumeric() { c } else { '_' })
            .collect();
        let of_group = format!("flight-{group}-");
        let name = format!("{of_group}{}-rank-{}{ENDING}", self.generation, self.rank);
        let path = folder.join(&name);
        for entry in std::fs::read_dir(folder)?.flatten() {
            let other = entry.file_name();
            match other.to_str().and_then(|name| generation(name, &of_group)) {
                Some(other) if other > self.generation => return Ok(path),
                Some(other) if other < self.generation => {
                    // Another rank may have removed it.
                    let _gone = std::fs::remove_file(entry.path());
                }
                _ => {}
            }
        }
        let half_written = folder.join(format!("{name}.part"));
        std::fs::write(&half_written, serde_json::to_vec(self)?)?;
        std::fs::rename(&half_written, &path)?;
        Ok(path)
    }

    /// Reads the records in a folder, for [`super::merge_report`]; none if the folder does not exist.
    ///
    /// # Errors
    /// The folder cannot be read, or a file in it is not a valid record: the error names it.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Self>> {
        let files = Self::files(folder)?;
        files.iter().map(|path| Self::read(path)).collect()
    }

    /// Removes all records from a folder; other files are kept.
    ///
    /// # Errors
    /// The folder or a file cannot be changed.
    pub fn remove_all(folder: &Path) -> io::Result<()> {
        Self::files(folder)?
            .iter()
            .try_for_each(std::fs::remove_file)
    }

    /// Returns the files of the records in a folder.
    fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("flight-") && name.ends_with(ENDING) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn read(path: &Path) -> io::Result<Self> {
        let told = |problem: String| {
            let problem = format!("{}: {problem}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, problem)
        };
        let bytes = std::fs::read(path).map_err(|error| told(error.to_string()))?;
        let record: Self = serde_json::from_slice(&bytes)
            .map_err(|error| told(format!("not a flight record: {error}")))?;
        match record.version {
            super::record::VERSION => Ok(record),
            other => Err(told(format!(
                "flight record has version {other}; this program reads {}",
                super::record::VERSION
            ))),
        }
    }
}

/// Returns the generation in a file's name, if it is a record of the group.
fn generation(name: &str, of_group: &str) -> Option<Generation> {
    let (generation, rank) = name.strip_prefix(of_group)?.split_once("-rank-")?;
    rank.strip_suffix(ENDING)?.parse::<u32>().ok()?;
    generation.parse().ok().map(Generation)
}

#[cfg(test)]
mod tests {
    use ronde_core::GroupRank;

    use super::*;

    fn record(group: &str, generation: u64, rank: u32) -> FlightRecord {
        FlightRecord {
            version: super::super::record::VERSION,
            job: "job".to_owned(),
            group: group.to_owned(),
            generation: Generation(generation),
            rank: GroupRank(rank),
            size: 2,
            members: Vec::new(),
            began_unix_s: 0.0,
            taken_s: 1.0,
            forgotten: 0,
            failure: None,
            unanswered: Vec::new(),
            operations: Vec::new(),
        }
    }

    #[test]
    fn the_newest_generation_of_each_group_stays() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("flight");
        assert_eq!(FlightRecord::read_all(&folder).unwrap(), []);
        let other = record("other", 1, 0);
        let old = record("a b", 9, 0);
        let (new, of_peer) = (record("a b", 10, 0), record("a b", 10, 1));
        for record in [&other, &old, &new, &of_peer, &old, &new] {
            record.write_into(&folder).unwrap();
        }
        let read = FlightRecord::read_all(&folder).unwrap();
        assert_eq!(read, [new, of_peer, other]);
        FlightRecord::remove_all(&folder).unwrap();
        assert_eq!(FlightRecord::read_all(&folder).unwrap(), []);
    }

    #[test]
    fn a_file_that_is_not_a_record_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("flight-dp-1-rank-0.json"), "{").unwrap();
        std::fs::write(directory.path().join("other.json"), "{").unwrap();
        let error = FlightRecord::read_all(directory.path()).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("flight-dp-1-rank-0.json") && told.contains("not a flight record"),
            "{told}"
        );
    }
}
