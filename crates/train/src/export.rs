//! The trained model on disk: safetensors and a configuration beside it, published atomically.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ronde_core::FormatHeader;
use ronde_parallel::{ModelState, TensorPlace};
use safetensors::Dtype;
use safetensors::tensor::View;
use serde::{Deserialize, Serialize};

use crate::{Plan, TrainError};

/// Weights of a run, inside its folder.
pub const MODEL_FILE: &str = "model.safetensors";
/// Their configuration.
pub const CONFIG_FILE: &str = "model.json";

/// What stands beside the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// Format and version.
    pub header: FormatHeader,
    /// Name of the run.
    pub run: String,
    /// The model's configuration; absent for a user's own model.
    pub model: Option<ronde_engine::ModelConfig>,
    /// Shape of one sample.
    pub input_shape: Vec<usize>,
    /// Classes told apart.
    pub classes: u32,
    /// Steps trained.
    pub steps: u64,
    /// Hash of the plan.
    pub plan: String,
    /// All that the bits depend on.
    pub identity: Vec<(String, String)>,
    /// blake3 of the weights file.
    pub blake3: String,
}

/// Where a model was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Weights.
    pub model: PathBuf,
    /// Configuration.
    pub config: PathBuf,
    /// blake3 of the weights file, 64 hexadecimal digits.
    pub blake3: String,
}

/// Writes a safetensors file of all tensors by name, one after the other: the state is not copied. The same
/// state gives the same bytes.
///
/// # Errors
/// The writer's, or that the format refuses a tensor.
pub fn write_safetensors(state: &ModelState, to: &mut dyn Write) -> io::Result<()> {
    // What the format puts first of one type: by names.
    let mut places: Vec<&TensorPlace> = state.places().iter().collect();
    places.sort_by_key(|place| &place.entry.name);
    let outlines = places
        .iter()
        .map(|&place| (&place.entry.name, Outline(place)));
    let header = safetensors::serialize(outlines, None).map_err(io::Error::other)?;
    to.write_all(&header)?;
    for place in places {
        let values = &state.values()[place.range.clone()];
        to.write_all(bytemuck::cast_slice(values))?;
    }
    Ok(())
}

/// A tensor without its values.
struct Outline<'a>(&'a TensorPlace);

impl View for Outline<'_> {
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

/// Writes to a file, and hashes what was written.
struct Hashed<'a> {
    file: &'a mut File,
    hasher: blake3::Hasher,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes weights and configuration into `folder`; an earlier model is replaced at once or not at all.
///
/// # Errors
/// The folder or disk does not take it; nothing half-written is left under the final names.
pub fn save(
    folder: &Path,
    state: &ModelState,
    plan: &Plan,
    model: Described,
) -> Result<Saved, TrainError> {
    let path = folder.join(MODEL_FILE);
    let blake3 = publish_by(&path, |file| {
        let hasher = blake3::Hasher::new();
        let mut to = Hashed { file, hasher };
        write_safetensors(state, &mut to)?;
        Ok(to.hasher.finalize().to_hex().to_string())
    })?;
    let manifest = ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: plan.config.run.name.clone(),
        model: model.config,
        input_shape: model.input_shape,
        classes: model.classes,
        steps: plan.steps,
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
    Ok(Saved {
        model: path,
        config,
        blake3,
    })
}

/// What the configuration says of the model besides the plan.
#[derive(Debug, Clone)]
pub struct Described {
    /// Configuration of a built-in model.
    pub config: Option<ronde_engine::ModelConfig>,
    /// Shape of one sample.
    pub input_shape: Vec<usize>,
    /// Classes told apart.
    pub classes: u32,
}

/// Name of the file that is written before it takes `path`'s name.
#[must_use]
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp-ronde");
    path.with_file_name(name)
}

/// Writes a file so that a reader sees the old or the new contents, never a mixture.
///
/// # Errors
/// The system's, naming the file; the temporary file is removed.
pub fn publish(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    publish_by(path, |file| file.write_all(bytes))
}

/// The same of what a function writes; gives what that gives.
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
        // The write error is what matters; a left-over is removed as far as possible.
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
    fn what_is_written_tensor_by_tensor_is_the_formats_own_file() {
        let model: ModelConfig =
            serde_json::from_str(r#"{"kind": "mlp", "hidden": [9, 8, 7]}"#).unwrap();
        let chain = model.build(&[5], 3, &SeedTree::new(1)).unwrap();
        let state = ModelState::of(&chain);
        let views = state.places().iter().map(|place| {
            let bytes = bytemuck::cast_slice(&state.values()[place.range.clone()]);
            let view = TensorView::new(Dtype::F32, place.entry.shape.clone(), bytes);
            (place.entry.name.clone(), view.unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut written = Vec::new();
        write_safetensors(&state, &mut written).unwrap();
        assert!(written == expected);
        let hash = publish_by(&path, |file| {
            let hasher = blake3::Hasher::new();
            let mut to = Hashed { file, hasher };
            write_safetensors(&state, &mut to)?;
            Ok(to.hasher.finalize())
        });
        assert_eq!(hash.unwrap(), blake3::hash(&expected));
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}
