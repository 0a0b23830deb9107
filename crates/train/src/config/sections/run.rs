//! `[run]`: the name, the seed and the folder of a run.

use std::path::{Component, Path, PathBuf};

use ronde_store::Address;
use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// The longest name of a run, in characters.
const NAME_LETTERS_MAX: usize = 100;

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// The name of the run; default `run`.
    #[serde(serialize_with = "ronde_core::outside_identity")]
    pub name: String,
    /// The seed of all random numbers; default 42.
    pub seed: u64,
    /// The folder for results, or an address to which they are sent while the run is under way: `s3://bucket/prefix`,
    /// `az://container/prefix` or `gs://bucket/prefix`; default `runs/<name>`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub output: Option<PathBuf>,
    /// If `output` is an address: the folder on each host in which results are collected before they are sent; default
    /// `runs/<name>`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub folder: Option<PathBuf>,
    /// The folder that relative paths of this file start from, such as those of data; a relative one starts from the folder of this
    /// file; default: that folder. The run file in the folder of a run has it.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub base: Option<PathBuf>,
}

impl Default for RunSection {
    fn default() -> Self {
        Self {
            name: "run".to_owned(),
            seed: 42,
            output: None,
            folder: None,
            base: None,
        }
    }
}

impl RunSection {
    /// Returns the folder that relative paths start from; `folder` is that of the run file.
    #[must_use]
    pub fn base_folder(&self, folder: &Path) -> PathBuf {
        match &self.base {
            Some(base) => folder.join(base),
            None => folder.to_owned(),
        }
    }

    /// Sets the folder that relative paths start from, for a run file that is saved in `folder`: relative to it if both are in a
    /// common folder besides the root, so that the common folder can be moved. Both paths are absolute.
    pub fn set_base(&mut self, base: &Path, folder: &Path) {
        let shared = base.components().zip(folder.components());
        let shared = shared.take_while(|(one, other)| one == other).count();
        let root = 1;
        self.base = Some(if shared <= root {
            base.to_owned()
        } else {
            let up = folder
                .components()
                .skip(shared)
                .map(|_| Component::ParentDir);
            let relative: PathBuf = up.chain(base.components().skip(shared)).collect();
            match relative.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => relative,
            }
        });
    }

    /// Returns the folder for results on this host.
    #[must_use]
    pub fn output_folder(&self) -> PathBuf {
        let folder = match self.output_text() {
            Some(_) => &self.folder,
            None => &self.output,
        };
        folder.clone().unwrap_or_else(|| self.default_folder())
    }

    fn default_folder(&self) -> PathBuf {
        PathBuf::from("runs").join(&self.name)
    }

    /// Removes folders that follow from the name, so that another name has another folder.
    pub(in crate::config) fn leave_out_default(&mut self) {
        let default = Some(self.default_folder());
        for folder in [&mut self.output, &mut self.folder] {
            if *folder == default {
                *folder = None;
            }
        }
    }

    /// Returns the address to which the results are sent; `None` if they stay in the folder.
    #[must_use]
    pub fn output_address(&self) -> Option<Address> {
        let address: Address = self.output_text()?.parse().ok()?;
        address.is_remote().then_some(address)
    }

    /// Returns `output` if it is written as an address.
    fn output_text(&self) -> Option<&str> {
        let text = self.output.as_deref()?.to_str()?;
        text.contains("://").then_some(text)
    }

    /// Sets the folder for results, and returns the default address of checkpoints if results are sent.
    pub(in crate::config) fn resolve(&mut self) -> Option<String> {
        let folder = self.output_folder();
        let Some(text) = self.output_text() else {
            self.output = Some(folder);
            return None;
        };
        let checkpoints = format!("{}/checkpoints", text.trim_end_matches('/'));
        self.folder = Some(folder);
        Some(checkpoints)
    }

    fn check_output(&self, problems: &mut Vec<ConfigProblem>) {
        let mut error = |key: &str, message: String, hint: &str| {
            problems.push(ConfigProblem::error(key, message).hint(hint));
        };
        let addresses =
            "write a folder, s3://bucket/prefix, az://container/prefix or gs://bucket/prefix";
        if self
            .output
            .as_deref()
            .is_some_and(|output| output.as_os_str().is_empty())
        {
            let hint = "remove it to use runs/<name>";
            error("run.output", "`run.output` is empty".to_owned(), hint);
        }
        match self.output_text().map(str::parse::<Address>) {
            Some(Err(problem)) => error(
                "run.output",
                format!("invalid `run.output`: {problem}"),
                addresses,
            ),
            Some(Ok(Address::Web { .. })) => {
                let message = "invalid `run.output`: a web server can only be read".to_owned();
                error("run.output", message, addresses);
            }
            Some(Ok(_)) => {}
            None if self.folder.is_some() => {
                let message =
                    "`run.folder` has no effect, because `run.output` is a folder".to_owned();
                error("run.folder", message, "set `run.output` alone");
            }
            None => {}
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        let name = &self.name;
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts || name.len() > NAME_LETTERS_MAX || !name.chars().all(letters) {
            let message = format!("invalid `run.name` {name:?}: it is also the name of a folder");
            let hint = format!(
                "use 1 to {NAME_LETTERS_MAX} letters, digits, `-`, `_` and `.`, starting with a letter or digit"
            );
            problems.push(ConfigProblem::error("run.name", message).hint(hint));
        }
        self.check_output(problems);
        if i64::try_from(self.seed).is_err() {
            let message = format!(
                "`run.seed` is {}, but must be at most {}",
                self.seed,
                i64::MAX
            );
            problems.push(ConfigProblem::error("run.seed", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_of_a_saved_run_file_is_relative_if_both_can_be_moved_together() {
        let check = |base: &str, folder: &str, expected: &str| {
            let mut section = RunSection::default();
            section.set_base(Path::new(base), Path::new(folder));
            assert_eq!(
                section.base,
                Some(PathBuf::from(expected)),
                "{base} {folder}"
            );
        };
        check("/home/p", "/home/p/runs/x", "../..");
        check("/home/p/examples", "/home/p/runs/x", "../../examples");
        check("/home/p/runs/x", "/home/p/runs/x", ".");
        check("/home/p/runs/x/y", "/home/p/runs/x", "y");
        check("/home/p", "/scratch/x", "/home/p");
        check("/", "/home/p/runs/x", "/");
    }
}
