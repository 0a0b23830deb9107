//! [`LauncherArguments`]: the words of the `ronde train` that leads a submitted job.

use std::path::Path;

use crate::target::SubmitRequest;

/// The word with which a run continues from the checkpoint in its output folder.
pub(crate) const RESUME: &str = "--resume";

/// A run with the paths and addresses of the host of its launcher.
pub(crate) struct LauncherArguments<'a> {
    /// The path of the run file there; `None`: the embedded example.
    pub(crate) run_file: Option<String>,
    /// The output folder of the run.
    pub(crate) results: &'a Path,
    /// The address of the coordinator; `None`: a run with fixed members.
    pub(crate) listen: Option<String>,
    /// The largest number of workers on the host.
    pub(crate) here: u32,
    pub(crate) request: &'a SubmitRequest,
}

impl LauncherArguments<'_> {
    /// Returns the words after `ronde`.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec!["train".to_owned()];
        words.extend(self.run_file.clone());
        words.extend(["-n".to_owned(), self.request.workers.to_string()]);
        if let Some(listen) = &self.listen {
            words.push(format!("--listen={listen}"));
            words.extend(["--here".to_owned(), self.here.to_string()]);
        }
        let folder = toml::Value::String(self.results.display().to_string());
        let outputs = match &self.request.output {
            None => vec![format!("run.output={folder}")],
            Some(address) => {
                let address = toml::Value::String(address.clone());
                vec![
                    format!("run.output={address}"),
                    format!("run.folder={folder}"),
                ]
            }
        };
        for set in self.request.sets.iter().chain(&outputs) {
            words.extend(["--set".to_owned(), set.clone()]);
        }
        if self.request.continues.is_some() {
            words.push(RESUME.to_owned());
        }
        words
    }
}

/// Returns the words with the folder of the results instead of `{}`.
pub(crate) fn folder_word(words: &[&str], results: &Path) -> Vec<String> {
    let word = |word: &&str| match *word {
        "{}" => results.display().to_string(),
        word => word.to_owned(),
    };
    words.iter().map(word).collect()
}
