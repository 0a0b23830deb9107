//! [`PodInputs`]: the run file, the small files that it names and the command of the launcher, as a ConfigMap.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::error::SubmitError;
use crate::input_folder::InputFolder;
use crate::target::SubmitRequest;

/// The largest size of the contents of a ConfigMap.
const BYTES_MAX: u64 = 1 << 20;

/// The input files of a job with their contents.
pub(super) struct PodInputs {
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The path of the run file; `None`: the embedded example.
    run_file: Option<PathBuf>,
}

impl PodInputs {
    /// Reads the files of a request.
    pub(super) fn read(request: &SubmitRequest) -> Result<Self, SubmitError> {
        let Some(folder) = InputFolder::of(request)? else {
            return Ok(Self {
                files: Vec::new(),
                run_file: None,
            });
        };
        // Before the contents are read: they may be larger than the memory.
        check_size(folder.bytes, folder.files.len())?;
        let read = |file: &PathBuf| {
            let path = folder.base.join(file);
            let bytes = std::fs::read(&path).map_err(SubmitError::file("read", &path))?;
            Ok((file.clone(), bytes))
        };
        let files = folder.files.iter().map(read);
        let files = files.collect::<Result<_, SubmitError>>()?;
        folder.check_unchanged()?;
        Ok(Self {
            files,
            run_file: Some(folder.run_file),
        })
    }

    /// Refuses contents that do not fit a ConfigMap together with a further text.
    pub(super) fn check_fits(&self, text: &str) -> Result<(), SubmitError> {
        let bytes = self.files.iter().map(|(_, content)| content.len());
        let bytes = bytes.sum::<usize>() + text.len();
        check_size(bytes as u64, self.files.len())
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

fn check_size(bytes: u64, files: usize) -> Result<(), SubmitError> {
    match bytes <= BYTES_MAX {
        true => Ok(()),
        false => Err(SubmitError::invalid(
            format!(
                "cannot send the run to the cluster: its {files} files and its command have {bytes} bytes, and a ConfigMap has \
                 room for {BYTES_MAX}"
            ),
            "name the data by addresses such as s3://bucket/data",
        )),
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
    use crate::run_inputs::RunInputs;

    #[test]
    fn files_are_texts_or_encoded_bytes_with_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("run.toml"), "a = 1\n").unwrap();
        std::fs::write(dir.path().join("data/x.bin"), [0, 255, 1, 2]).unwrap();
        let request = |files: &[&str]| {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            let mut request = crate::kubernetes::manifest::tests::request(1);
            request.run_file = Some(dir.path().join("run.toml"));
            request.inputs = RunInputs::new(move || Ok(files.clone()));
            request
        };
        let inputs = PodInputs::read(&request(&["data/x.bin"])).unwrap();
        let (texts, bytes) = inputs.data("command.json", "{}");
        assert_eq!(texts, json!({ "command.json": "{}", "file-1": "a = 1\n" }));
        assert_eq!(bytes, json!({ "file-0": "AP8BAg==" }));
        let items = inputs.items("command.json");
        assert_eq!(items[1]["path"], "data/x.bin", "{items}");
        let room = usize::try_from(BYTES_MAX).unwrap() - "a = 1\n".len();
        std::fs::write(dir.path().join("large"), vec![b'x'; room]).unwrap();
        let inputs = PodInputs::read(&request(&["large"])).unwrap();
        inputs.check_fits("").unwrap();
        let refused = inputs.check_fits("{}").unwrap_err().to_string();
        assert!(refused.contains("by addresses"), "{refused}");
        std::fs::write(dir.path().join("large"), vec![b'x'; room + 1]).unwrap();
        assert!(PodInputs::read(&request(&["large"])).is_err());
    }
}
