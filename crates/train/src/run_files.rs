//! The files beside a run file that its run needs, for a copy of the run on other machines.

use std::path::{Path, PathBuf};

use ronde_data::files_of_patterns;
use ronde_saved_model::{InitialWeights, MANIFEST_FILE};
use ronde_store::KeySource;

use crate::config::RunConfig;
use crate::error::TrainError;

impl RunConfig {
    /// Returns the files that the run file names by relative paths, relative to its folder `base`, sorted: data, tokenizer,
    /// initial weights and `job.files`. Cost: one listing of each folder of data.
    ///
    /// # Errors
    /// A file is missing or outside of the folder, or is the key of an encryption, which is a secret.
    pub fn files_beside(&self, base: &Path) -> Result<Vec<PathBuf>, TrainError> {
        self.check_keys()?;
        let mut files = self.data.local_files(base)?;
        if let Some(init) = self
            .model
            .start
            .init
            .as_ref()
            .filter(|init| init.is_relative())
        {
            files.extend(weight_files(init, base)?);
        }
        files.extend(files_of_patterns(&self.job.files, base)?);
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Refuses encryption keys that are files beside the run file.
    fn check_keys(&self) -> Result<(), TrainError> {
        let of_cache = self.data.cache_key_source();
        let of_checkpoints = self.checkpoint.key_source().ok().flatten();
        for (key, source) in [
            ("data.cache_encrypt", of_cache),
            ("checkpoint.encrypt", of_checkpoints),
        ] {
            if let Some(KeySource::File(path)) = source
                && path.is_relative()
            {
                return Err(TrainError::Impossible {
                    problem: format!(
                        "cannot copy {} to other machines: `{key}` names it, and a key is a secret",
                        path.display()
                    ),
                    hint: format!(
                        "set `{key} = \"variable:NAME\"` and give the hosts the variable, on Kubernetes from a Secret with \
                         `--env-from`; or name a file that exists on the hosts by its absolute path"
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Returns the file with initial weights, and the manifest beside it.
fn weight_files(init: &Path, base: &Path) -> Result<Vec<PathBuf>, TrainError> {
    let weights = InitialWeights::file_of(&base.join(init));
    let weights = match weights.strip_prefix(base) {
        Ok(weights) if base.join(weights).is_file() => weights.to_owned(),
        _ => {
            return Err(TrainError::Impossible {
                problem: format!("no such file: {} (`model.init`)", weights.display()),
                hint: "relative paths start at the folder of the run file; a file that only the hosts have needs its absolute \
                       path"
                    .to_owned(),
            });
        }
    };
    let manifest = weights.with_file_name(MANIFEST_FILE);
    let is_named = base.join(&manifest).is_file();
    Ok(std::iter::once(weights)
        .chain(is_named.then_some(manifest))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_its_data_weights_and_further_files_but_no_keys() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1,2\n").unwrap();
        };
        for name in [
            "a.csv",
            "kubeconfig",
            "old/model.safetensors",
            "old/model.json",
            "old/events.jsonl",
            "labels.txt",
        ] {
            write(name);
        }
        let files = |more: &str| {
            let text = format!(
                "[data]\nsource = \"csv\"\ntrain = \"a.csv\"\nshape = [1]\nclasses = 2\n[train]\nsteps = 1\n\
                 [model]\nkind = \"mlp\"\nhidden = [2]\n{more}"
            );
            let (config, _) = crate::config::Document::load(&text, "run.toml", &[], &[]).unwrap();
            config
                .files_beside(dir.path())
                .map_err(|error| error.to_string())
        };
        let paths = |names: &[&str]| Ok(names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(files(""), paths(&["a.csv"]));
        assert_eq!(
            files("init = \"old\"\n[job]\nfiles = [\"*.txt\"]\n"),
            paths(&[
                "a.csv",
                "labels.txt",
                "old/model.json",
                "old/model.safetensors"
            ])
        );
        assert_eq!(files("init = \"/gone\"\n"), paths(&["a.csv"]));
        for (more, problem) in [
            ("init = \"gone\"\n", "no such file"),
            ("init = \"../old\"\n", "no such file"),
            (
                "[job]\nfiles = [\"/etc/passwd\"]\n",
                "relative to the folder",
            ),
            ("[job]\nfiles = [\"gone\"]\n", "gone"),
            (
                "[checkpoint]\nencrypt = \"file:run.key\"\n",
                "a key is a secret",
            ),
        ] {
            let found = files(more).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
