//! The folder that the relative paths of a saved run start from.

use std::path::{Component, Path, PathBuf};

use ronde_train::RunConfig;
use ronde_train::config::Document;

use crate::command::run::resume::is_override;

/// Returns the folder that `run.base` names if an argument or the environment sets it; a relative one starts from the current folder.
pub(crate) fn named(config: &RunConfig, document: &Document) -> Option<PathBuf> {
    let base = config.run.base.clone();
    base.filter(|_| is_override(document, "run.base"))
}

/// Returns whether the files of the data of a run are in a folder.
pub(crate) fn has_data(config: &RunConfig, base: &Path) -> bool {
    let mut paths = config.data.relative_paths().into_iter();
    paths.all(|path| base.join(path).symlink_metadata().is_ok())
}

/// Returns the first of the candidates that has the data of a run.
///
/// # Errors
/// A message with all candidates, if none of them has the data.
pub(crate) fn find(config: &RunConfig, candidates: &[PathBuf]) -> Result<PathBuf, String> {
    let found = candidates.iter().find(|base| has_data(config, base));
    found.cloned().ok_or_else(|| not_found(config, candidates))
}

/// Returns the message about a run whose data is in none of the candidates.
pub(crate) fn not_found(config: &RunConfig, candidates: &[PathBuf]) -> String {
    let mut looked: Vec<String> = candidates.iter().map(|base| shown(base)).collect();
    looked.dedup();
    let paths = config.data.relative_paths();
    let names: Vec<String> = paths
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect();
    format!(
        "error: cannot find the data of the run: looked for {} in {}\n  help: name the folder that has it with \
         --set run.base=FOLDER, or the run file itself",
        names.join(" and "),
        looked.join(" and in ")
    )
}

/// Returns an absolute path without `..`, also if it does not exist.
fn shown(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut short = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(short.pop()),
            other => short.push(other),
        }
    }
    short.display().to_string()
}
