//! Writes the trained model atomically: the weights as safetensors, and a configuration file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ronde_core::FormatHeader;
use ronde_parallel::{ModelState, TensorRange};
use safetensors::Dtype;
use safetensors::tensor::View;
use serde::{Deserialize, Serialize};

use crate::{Plan, TrainError};

/// The file name of the weights in the run's folder.
pub const MODEL_FILE: &str = "model.safetensors";
/// The file name of the model's configuration in the run's folder.
pub const CONFIG_FILE: &str = "model.json";

/// The contents of the model's configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// The format and its version.
    pub header: FormatHeader,
    /// The name of the run.
    pub run: String,
    /// The configuration of the model; absent for a user's own model.
    pub model: Option<ronde_engine::ModelConfig>,
    /// The shape of one sample.
    pub input_shape: Vec<usize>,
    /// The number of classes.
    pub classes: u32,
    /// The number of trained steps.
    pub steps: u64,
    /// The hash of the plan.
    pub plan: String,
    /// All settings that the trained bits depend on.
    pub identity: Vec<(String, String)>,
    /// The BLAKE3 hash of the weights file.
    pub blake3: String,
}

/// The files of a saved model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedModel {
    /// The path of the weights.
    pub model: PathBuf,
    /// The path of the configuration.
    pub config: PathBuf,
    /// The BLAKE3 hash of the weights file, 64 hexadecimal digits.
    pub blake3: String,
}

/// Writes all tensors by name as a safetensors file, without a copy of the state. Equal states give equal bytes.
///
/// # Errors
/// The writer fails, or the format rejects a tensor.
pub fn write_safetensors(state: &ModelState, to: &mut dyn Write) -> io::Result<()> {
    // The format sorts tensors of one type by name.
    let mut tensors: Vec<&TensorRange> = state.tensors().iter().collect();
    tensors.sort_by_key(|tensor| &tensor.entry.name);
    let headers = tensors
        .iter()
        .map(|&tensor| (&tensor.entry.name, TensorHeader(tensor)));
    let header = safetensors::serialize(headers, None).map_err(io::Error::other)?;
    to.write_all(&header)?;
    for tensor in tensors {
        let values = &state.values()[tensor.range.clone()];
        to.write_all(bytemuck::cast_slice(values))?;
    }
    Ok(())
}

/// The name, shape and length of a tensor for the file header, without its values.
struct TensorHeader<'a>(&'a TensorRange);

impl View for TensorHeader<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.0.entry.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        self.0.range.len() * size_of::<f32>()
    }
}

/// A writer that also hashes the bytes it writes.
struct HashingWriter<'a> {
    file: &'a mut File,
    hasher: blake3::Hasher,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes weights and configuration into `folder` after a number of steps; an earlier model is replaced atomically.
///
/// # Errors
/// A file cannot be written. No incomplete file remains under the final names.
pub fn save(
    folder: &Path,
    state: &ModelState,
    (plan, steps): (&Plan, u64),
    model: ModelDescription,
) -> Result<SavedModel, TrainError> {
    let path = folder.join(MODEL_FILE);
    let blake3 = publish_by(&path, |file| {
        let hasher = blake3::Hasher::new();
        let mut to = HashingWriter { file, hasher };
        write_safetensors(state, &mut to)?;
        Ok(to.hasher.finalize().to_hex().to_string())
    })?;
    let manifest = ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: plan.config.run.name.clone(),
        model: model.config,
        input_shape: model.input_shape,
        classes: model.classes,
        steps,
        plan: plan.identity.hex(),
        identity: plan
            .identity
            .parts()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        blake3: blake3.clone(),
    };
    let config = folder.join(CONFIG_FILE);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| TrainError::File {
        action: "write",
        path: config.clone(),
        source: error.into(),
    })?;
    publish(&config, &text)?;
    Ok(SavedModel {
        model: path,
        config,
        blake3,
    })
}

/// The parts of the model's configuration that are not in the plan.
#[derive(Debug, Clone)]
pub struct ModelDescription {
    /// The configuration of a built-in model.
    pub config: Option<ronde_engine::ModelConfig>,
    /// The shape of one sample.
    pub input_shape: Vec<usize>,
    /// The number of classes.
    pub classes: u32,
}

/// Returns the name of the temporary file that is renamed to `path` once it is complete.
#[must_use]
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp-ronde");
    path.with_file_name(name)
}

/// Writes a file atomically: a reader sees either the old or the new contents.
///
/// # Errors
/// The file cannot be written; the temporary file is removed.
pub fn publish(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    publish_by(path, |file| file.write_all(bytes))
}

/// Publishes the file that `write` writes, and returns its result.
fn publish_by<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<T>,
) -> Result<T, TrainError> {
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        let written = write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(written)
    };
    write().map_err(|source| {
        // Report the write error; ignore an error of removing the temporary file.
        let _ = std::fs::remove_file(&temporary);
        TrainError::File {
            action: "write",
            path: path.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use ronde_core::seed::SeedTree;
    use ronde_engine::ModelConfig;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn the_streamed_file_equals_the_formats_own_output() {
        let model: ModelConfig =
            serde_json::from_str(r#"{"kind": "mlp", "hidden": [9, 8, 7]}"#).unwrap();
        let chain = model.build(&[5], 3, &SeedTree::new(1)).unwrap();
        let state = ModelState::of(&chain);
        let views = state.tensors().iter().map(|tensor| {
            let bytes = bytemuck::cast_slice(&state.values()[tensor.range.clone()]);
            let view = TensorView::new(Dtype::F32, tensor.entry.shape.clone(), bytes);
            (tensor.entry.name.clone(), view.unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut written = Vec::new();
        write_safetensors(&state, &mut written).unwrap();
        assert!(written == expected);
        let hash = publish_by(&path, |file| {
            let hasher = blake3::Hasher::new();
            let mut to = HashingWriter { file, hasher };
            write_safetensors(&state, &mut to)?;
            Ok(to.hasher.finalize())
        });
        assert_eq!(hash.unwrap(), blake3::hash(&expected));
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}
