//! Notes about the job of Slurm in the folder of a job: which script was sent, and which job of Slurm runs it. By them a job is
//! found whose submitter was killed between `sbatch` and its record, and a script that was sent twice runs once.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::client::call;
use crate::copying::publish_new_json;
use crate::error::SubmitError;
use crate::process_folder::{read_json, remove_if_exists};

/// The file with the [`SentScript`].
const SENT_FILE: &str = "sent.json";
/// The file with the [`LeadingJob`].
const LEADING_FILE: &str = "slurm-job.json";

/// The batch script of a job, written before it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentScript {
    /// The path of the script; for an array it is in the folder of its first job.
    pub(super) script: PathBuf,
    /// The number of the task, if the job is one of an array.
    pub(super) task: Option<u32>,
}

/// The job of Slurm that leads a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeadingJob {
    /// Its number.
    pub(super) id: u64,
    /// The number of its array, if it is a task of one.
    pub(super) array: Option<u64>,
}

impl LeadingJob {
    /// Returns the number that the submitter gets for it: that of the array, if it is a task of one.
    pub(super) fn submitted_id(&self) -> u64 {
        self.array.unwrap_or(self.id)
    }

    /// Takes the folder of a job for this job of Slurm, and returns whether it has it now.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn claim(&self, folder: &Path) -> Result<bool, SubmitError> {
        let path = folder.join(LEADING_FILE);
        if publish_new_json(&path, self)? {
            return Ok(true);
        }
        let leading: Option<Self> = read_json(&path)?;
        Ok(leading.is_none_or(|leading| leading.id == self.id))
    }
}

/// Notes a script that is about to be sent. The note of an earlier script is dropped.
pub(super) fn note(folder: &Path, sent: &SentScript) -> Result<(), SubmitError> {
    for file in [LEADING_FILE, SENT_FILE] {
        remove_if_exists(&folder.join(file))?;
    }
    publish_new_json(&folder.join(SENT_FILE), sent).map(|_| ())
}

/// Returns the job of Slurm that leads the job of a folder, if it has begun.
pub(super) fn leading(folder: &Path) -> Option<LeadingJob> {
    read_json(&folder.join(LEADING_FILE)).ok().flatten()
}

/// Returns the number of the job of Slurm for the script that was sent for a folder, and its task.
pub(super) fn find(folder: &Path) -> Result<Option<(u64, Option<u32>)>, SubmitError> {
    let Some(sent) = read_json::<SentScript>(&folder.join(SENT_FILE))? else {
        return Ok(None);
    };
    if let Some(leading) = leading(folder) {
        return Ok(Some((leading.submitted_id(), sent.task)));
    }
    let listed = call("squeue", &["-h", "--states=all", "-o", "%F|%o"])?;
    Ok(id_of(&listed, &sent.script).map(|id| (id, sent.task)))
}

/// Returns the number of the job with a script, from the lines of `squeue`.
fn id_of(listed: &str, script: &Path) -> Option<u64> {
    let script = script.to_str()?;
    listed.lines().find_map(|line| {
        let (id, command) = line.split_once('|')?;
        (command.trim() == script).then(|| id.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_was_sent_is_found_by_its_path_and_runs_once() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("job.sh");
        let listed = format!("7|/other/job.sh\n8|{}\n9|\n", script.display());
        assert_eq!(id_of(&listed, &script), Some(8));
        assert_eq!(id_of("7|/other/job.sh", &script), None);
        assert_eq!(find(dir.path()).unwrap(), None);
        let sent = SentScript {
            script,
            task: Some(3),
        };
        note(dir.path(), &sent).unwrap();
        let (first, second) = (
            LeadingJob {
                id: 9,
                array: Some(7),
            },
            LeadingJob {
                id: 12,
                array: None,
            },
        );
        assert!(first.claim(dir.path()).unwrap() && first.claim(dir.path()).unwrap());
        assert!(!second.claim(dir.path()).unwrap());
        assert_eq!(find(dir.path()).unwrap(), Some((7, Some(3))));
        note(dir.path(), &sent).unwrap();
        assert!(second.claim(dir.path()).unwrap());
    }
}
