//! [`PodInputs`]: the run file, small data beside it and the command of the launcher, as a ConfigMap.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::error::SubmitError;
use crate::input_folder::InputFolder;

/// The largest ConfigMap is 1 MiB; its other fields need room too, and binary data grows by a third.
const BYTES_MAX: u64 = 700 << 10;

/// The input files of a job with their contents.
pub(super) struct PodInputs {
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The path of the run file; `None`: the embedded example.
    run_file: Option<PathBuf>,
}

impl PodInputs {
    /// Reads the folder of a run file.
    pub(super) fn read(run_file: Option<&Path>) -> Result<Self, SubmitError> {
        let Some(run_file) = run_file else {
            return Ok(Self {
                files: Vec::new(),
                run_file: None,
            });
        };
        let folder = InputFolder::read(run_file)?;
        if folder.bytes > BYTES_MAX {
            return Err(SubmitError::invalid(
                format!(
                    "cannot send {} to the cluster: its {} files have {} bytes, and a ConfigMap has room for {BYTES_MAX}",
                    folder.base.display(),
                    folder.files.len(),
                    folder.bytes
                ),
                "move the run file to a folder of its own, and name the data by addresses such as s3://bucket/data",
            ));
        }
        let read = |file: &PathBuf| {
            let path = folder.base.join(file);
            let bytes = std::fs::read(&path).map_err(SubmitError::file("read", &path))?;
            Ok((file.clone(), bytes))
        };
        Ok(Self {
            files: folder.files.iter().map(read).collect::<Result<_, _>>()?,
            run_file: Some(folder.run_file),
        })
    }

    /// Returns the path of the run file below the folder of the inputs.
    pub(super) fn run_file(&self) -> Option<&Path> {
        self.run_file.as_deref()
    }

    /// Returns the texts and the other contents of the ConfigMap by key, with a further text.
    pub(super) fn data(&self, key: &str, text: &str) -> (Value, Value) {
        let (mut texts, mut bytes) = (Map::new(), Map::new());
        texts.insert(key.to_owned(), text.into());
        for (number, (_, content)) in self.files.iter().enumerate() {
            match std::str::from_utf8(content) {
                Ok(text) => texts.insert(key_of(number), text.into()),
                Err(_) => bytes.insert(key_of(number), encoded(content).into()),
            };
        }
        (Value::Object(texts), Value::Object(bytes))
    }

    /// Returns the paths of the keys in the volume of the ConfigMap.
    pub(super) fn items(&self, key: &str) -> Value {
        let files = self.files.iter().enumerate().map(|(number, (path, _))| {
            json!({ "key": key_of(number), "path": path.display().to_string() })
        });
        let items = std::iter::once(json!({ "key": key, "path": key })).chain(files);
        Value::Array(items.collect())
    }
}

/// Returns the key of a file; a path may have letters that a key cannot have.
fn key_of(number: usize) -> String {
    format!("file-{number}")
}

/// Returns bytes in base64 (RFC 4648).
fn encoded(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_texts_or_encoded_bytes_with_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("run.toml"), "a = 1\n").unwrap();
        std::fs::write(dir.path().join("data/x.bin"), [0, 255, 1, 2]).unwrap();
        let inputs = PodInputs::read(Some(&dir.path().join("run.toml"))).unwrap();
        let (texts, bytes) = inputs.data("command.json", "{}");
        assert_eq!(texts, json!({ "command.json": "{}", "file-1": "a = 1\n" }));
        assert_eq!(bytes, json!({ "file-0": "AP8BAg==" }));
        let items = inputs.items("command.json");
        assert_eq!(items[1]["path"], "data/x.bin", "{items}");
        std::fs::write(dir.path().join("large"), vec![b'x'; 800 << 10]).unwrap();
        let refused = PodInputs::read(Some(&dir.path().join("run.toml"))).err();
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("by addresses"), "{refused}");
    }
}
