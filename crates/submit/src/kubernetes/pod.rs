//! [`KubernetesPod`]: what `ronde` does in a pod of a job: it leads the run in one of them, at first that with index 0, and
//! joins it in each other one.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::POD_FOLDER;
use crate::drain_sources;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::launcher_arguments::RESUME;
use crate::process_folder::{ProcessCommand, ProcessFolder, read_json};

/// The word among the arguments of the launcher for the address of its pod.
pub(super) const ADDRESS_WORD: &str = "{address}";
/// The folder of the run file and of the data beside it.
pub(super) const INPUT_FOLDER: &str = "/run/ronde/inputs";
/// The folder of the credentials.
pub(super) const SECRET_FOLDER: &str = "/run/ronde/credentials";
/// The file with the command of the launcher.
pub(super) const COMMAND_FILE: &str = "command.json";
/// Exists in the folder of a pod whose job was cancelled.
const CANCELLED_FILE: &str = "cancelled.json";
/// Exists in the folder of the pod that leads its job.
const LEADS_FILE: &str = "leads.json";
/// The exit code of a cancelled launcher, which ends the Job.
pub(super) const CANCELLED_CODE: i32 = 130;

/// The folders that the manifest mounts in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFolders {
    /// The run file, its data, and the command of the launcher.
    pub inputs: PathBuf,
    /// The files of the job's Secret.
    pub credentials: PathBuf,
    /// A folder of this pod alone.
    pub pod: PathBuf,
}

impl Default for PodFolders {
    fn default() -> Self {
        Self {
            inputs: PathBuf::from(INPUT_FOLDER),
            credentials: PathBuf::from(SECRET_FOLDER),
            pod: PathBuf::from(POD_FOLDER),
        }
    }
}

/// A pod of a job, as Kubernetes describes it to the processes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesPod {
    /// The index in the Job.
    pub index: u32,
    /// The name of the pod.
    pub name: String,
    /// The address of the pod.
    pub address: String,
    /// The folders of the pod.
    pub folders: PodFolders,
    /// The folder of the job, which outlives the pod.
    pub paths: JobPaths,
}

/// A file whose existence is a signal.
#[derive(Debug, Serialize, Deserialize)]
struct Note {}

impl KubernetesPod {
    /// Returns the folder of the process of this pod.
    #[must_use]
    pub fn process(&self) -> ProcessFolder {
        ProcessFolder::new(&self.folders.pod)
    }

    /// Returns the command of the launcher. A run that an earlier pod has begun resumes from its checkpoint, or begins again
    /// if it has none. `has_stored`: whether there is a checkpoint at the address of the results.
    ///
    /// # Errors
    /// The command of the manifest cannot be read.
    pub fn launcher(&self, has_stored: bool) -> Result<ProcessCommand, SubmitError> {
        let path = self.folders.inputs.join(COMMAND_FILE);
        let command: Option<ProcessCommand> = read_json(&path)?;
        let mut command =
            command.ok_or_else(|| SubmitError::damaged(&path, "there is no such file"))?;
        for word in &mut command.arguments {
            *word = word.replace(ADDRESS_WORD, &self.bracketed());
        }
        if has_stored || self.paths.has_checkpoint() {
            command.arguments.push(RESUME.to_owned());
        } else if self.paths.has_begun(false) {
            command.arguments.push("--overwrite".to_owned());
        }
        Ok(command)
    }

    /// Returns the address of this pod, in brackets if it has colons.
    fn bracketed(&self) -> String {
        match self.address.contains(':') {
            true => format!("[{}]", self.address),
            false => self.address.clone(),
        }
    }

    /// Returns the address of a coordinator in this pod.
    #[must_use]
    pub fn coordinator(&self, port: u16) -> String {
        format!("{}:{port}", self.bracketed())
    }

    /// Notes in the folder of this pod that it leads the job.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn mark_leading(&self) -> Result<(), SubmitError> {
        crate::copying::publish_json(&self.folders.pod.join(LEADS_FILE), &Note {})
    }

    /// Returns whether the pod with this folder leads its job.
    #[must_use]
    pub fn leads(folder: &Path) -> bool {
        folder.join(LEADS_FILE).exists()
    }

    /// Returns the words of the agent in this pod. Its output of ranks is kept in the folder of the job.
    #[must_use]
    pub fn agent(&self, leader: &str, slots: u32, drain_on: &[String]) -> Vec<String> {
        let token = self.folders.credentials.join("token").display().to_string();
        let logs = self.paths.process_path(1).display().to_string();
        let slots = slots.to_string();
        let words = ["join", leader, "--token-file", &token, "-n", &slots];
        let more = ["--host", &self.name, "--logs", &logs];
        let words = words.into_iter().chain(more).map(str::to_owned);
        words.chain(drain_sources::words(drain_on)).collect()
    }

    /// Returns the exit code of the pod for that of its launcher.
    #[must_use]
    pub fn exit_code(&self, launcher: i32) -> i32 {
        match is_cancelled(&self.folders.pod) {
            true => CANCELLED_CODE,
            false => launcher,
        }
    }

    /// Notes in the folder of a pod that its job was cancelled.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn mark_cancelled(folder: &Path) -> Result<(), SubmitError> {
        crate::copying::publish_json(&folder.join(CANCELLED_FILE), &Note {})
    }
}

fn is_cancelled(folder: &Path) -> bool {
    folder.join(CANCELLED_FILE).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(folder: &Path) -> KubernetesPod {
        KubernetesPod {
            index: 0,
            name: "run-0-abcde".to_owned(),
            address: "10.0.0.7".to_owned(),
            folders: PodFolders {
                inputs: folder.join("inputs"),
                credentials: folder.join("credentials"),
                pod: folder.join("pod"),
            },
            paths: JobPaths::new(folder.join("results")),
        }
    }

    #[test]
    fn a_launcher_that_replaces_another_one_resumes_or_begins_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut pod = pod(dir.path());
        for folder in ["inputs", "pod", "results/results"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let command = ProcessCommand {
            arguments: vec!["train".to_owned(), "--listen={address}:4711".to_owned()],
            directory: PathBuf::from("/"),
        };
        let text = serde_json::to_string(&command).unwrap();
        std::fs::write(pod.folders.inputs.join(COMMAND_FILE), text).unwrap();
        let last = |pod: &KubernetesPod| pod.launcher(false).unwrap().arguments.pop().unwrap();
        assert_eq!(last(&pod), "--listen=10.0.0.7:4711");
        pod.address = "fd00::7".to_owned();
        assert_eq!(last(&pod), "--listen=[fd00::7]:4711");
        let events = pod.paths.results().join("events.jsonl");
        std::fs::write(&events, "{\"event\":\"run_started\"}\n").unwrap();
        assert_eq!(last(&pod), "--overwrite");
        std::fs::write(&events, "{\"event\":\"checkpoint_saved\"}\n").unwrap();
        assert_eq!(last(&pod), "--resume");
        std::fs::remove_file(&events).unwrap();
        let stored = pod.launcher(true).unwrap();
        assert_eq!(
            stored.arguments.last().unwrap(),
            "--resume",
            "of another pod"
        );
        assert_eq!(pod.exit_code(143), 143);
        KubernetesPod::mark_cancelled(&pod.folders.pod).unwrap();
        assert_eq!(pod.exit_code(143), CANCELLED_CODE);
    }
}
