//! The trained model on disk: safetensors and a configuration beside it, published atomically.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ronde_core::FormatHeader;
use ronde_parallel::ModelState;
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

/// The bytes of a safetensors file of all tensors by name. The same state gives the same bytes.
///
/// # Errors
/// A sentence when the format refuses a tensor.
pub fn to_safetensors(state: &ModelState) -> Result<Vec<u8>, String> {
    let views = state
        .places()
        .iter()
        .map(|place| {
            let bytes = bytemuck::cast_slice(&state.values()[place.range.clone()]);
            let shape = place.entry.shape.clone();
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes)
                .map(|view| (place.entry.name.clone(), view))
                .map_err(|error| format!("{}: {error}", place.entry.name))
        })
        .collect::<Result<Vec<_>, _>>()?;
    safetensors::serialize(views, None).map_err(|error| error.to_string())
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
    let bytes = to_safetensors(state).map_err(|problem| TrainError::File {
        action: "write",
        path: path.clone(),
        source: std::io::Error::other(problem),
    })?;
    let blake3 = blake3::hash(&bytes).to_hex().to_string();
    publish(&path, &bytes)?;
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
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
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
