//! [`SavedModel`]: a model in a folder, checked and loaded.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_core::layout::{Arena, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_engine::{Chain, EngineError, GraphOutline, LayerExt, ModelConfig, SharedState};

use crate::error::{ModelError, TensorProblem};
use crate::manifest::read_limited;
use crate::manifest::{MANIFEST_FILE, ModelManifest, TOKENIZER_FILE, WEIGHTS_FILE};
use crate::weight_file::WeightFile;

/// The largest tokenizer that is read, in bytes.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// A saved model: its manifest, and its weights in memory.
#[derive(Debug, Clone)]
pub struct SavedModel {
    manifest_path: PathBuf,
    manifest: ModelManifest,
    weights: WeightFile,
}

impl SavedModel {
    /// Reads and checks a saved model. `path` is its folder, such as that of a finished run, its manifest or its
    /// weights. Cost: reads and hashes all weights; memory for one copy of them.
    ///
    /// # Errors
    /// A file is missing, damaged or from a newer release, or the weights do not have the hash in the manifest.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let (manifest_path, weights_path) = paths(path)?;
        let manifest = ModelManifest::read(&manifest_path).map_err(|error| match error {
            ModelError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
                ModelError::NoModel {
                    path: path.to_owned(),
                }
            }
            error => error,
        })?;
        let weights = WeightFile::read(&weights_path)?;
        if weights.blake3() != manifest.blake3 {
            return Err(ModelError::Hash {
                path: weights_path,
                manifest: manifest_path,
                found: weights.blake3().to_owned(),
                expected: manifest.blake3,
            });
        }
        Ok(Self::new(manifest_path, manifest, weights))
    }

    /// Combines a manifest and the weights that it describes.
    pub(crate) fn new(
        manifest_path: PathBuf,
        manifest: ModelManifest,
        weights: WeightFile,
    ) -> Self {
        Self {
            manifest_path,
            manifest,
            weights,
        }
    }

    /// Returns the manifest.
    #[must_use]
    pub fn manifest(&self) -> &ModelManifest {
        &self.manifest
    }

    /// Returns the weights.
    #[must_use]
    pub fn weights(&self) -> &WeightFile {
        &self.weights
    }

    /// Reads the tokenizer of the model, in the format of the library `tokenizers`.
    ///
    /// # Errors
    /// The file is missing, or too large for a tokenizer.
    pub fn tokenizer(&self) -> Result<Vec<u8>, ModelError> {
        let path = self.weights.path().with_file_name(TOKENIZER_FILE);
        read_limited(&path, (TOKENIZER_BYTES_MAX, "a tokenizer"))
    }

    /// Describes the layers of the model without building it: whole ones, whose tensors are those of the file, also if the model
    /// was trained in parts.
    ///
    /// # Errors
    /// The model is not a built-in one, or its configuration is invalid.
    pub fn outline(&self) -> Result<Vec<GraphOutline>, ModelError> {
        let (shape, classes) = (&self.manifest.input_shape, self.manifest.classes);
        let outline = self.config()?.with_whole_layers().outline(shape, classes);
        outline.map_err(|source| self.engine_failed(source))
    }

    /// Checks that the weights are those of the model and finite, without building it. Cost: one pass over the weights.
    ///
    /// # Errors
    /// As [`SavedModel::chain`].
    pub fn check(&self) -> Result<(), ModelError> {
        self.check_tensors(&self.outline()?)
    }

    /// Checks that the weights are those of the layers.
    pub(crate) fn check_tensors(&self, layers: &[GraphOutline]) -> Result<(), ModelError> {
        let tensors = layers
            .iter()
            .flat_map(|layer| layer.layout().tensors.clone());
        let tensors = tensors.collect();
        ranges_of(&self.weights, &StateLayout { tensors }).map(drop)
    }

    pub(crate) fn config(&self) -> Result<&ModelConfig, ModelError> {
        let path = &self.manifest_path;
        let config = self.manifest.model.as_ref();
        config.ok_or_else(|| ModelError::OwnModel { path: path.clone() })
    }

    fn engine_failed(&self, source: EngineError) -> ModelError {
        ModelError::Engine {
            path: self.manifest_path.clone(),
            source,
        }
    }

    /// Builds the model with its weights and in the precision in which it was trained, so that it computes the bits of
    /// the training process. Cost: the layers share the values of the weights.
    ///
    /// # Errors
    /// The model is not a built-in one, or the weights do not fit it.
    pub fn chain(&self) -> Result<Chain, ModelError> {
        let config = self.config()?;
        let (shape, classes) = (&self.manifest.input_shape, self.manifest.classes);
        let precision = self.manifest.precision();
        let built = config
            .build(shape, classes, &SeedTree::new(0))
            .and_then(|chain| chain.with_precision(precision));
        let mut chain = built.map_err(|source| self.engine_failed(source))?;
        self.load_into(&mut chain)?;
        Ok(chain)
    }

    /// Loads the weights into a model with the same tensors, or with parts of them: for models that a program defines. The layers
    /// share the values of the weights, unless they are in parts.
    ///
    /// # Errors
    /// The tensors of the file are not those of the model; every difference is named.
    pub fn load_into(&self, chain: &mut Chain) -> Result<(), ModelError> {
        let layout = chain.layout();
        let whole = layout.whole();
        let ranges = ranges_of(&self.weights, &whole)?;
        if whole == *layout {
            let values: SharedState = self.weights.values().clone();
            chain.load_shared(&values, &ranges);
            return Ok(());
        }
        let arena = Arena::new(layout.tensors.iter().map(TensorEntry::elements));
        let mut values = vec![0.0; arena.len()];
        for (entry, to) in layout.tensors.iter().zip(arena.ranges()) {
            let from = self
                .weights
                .values_of(entry.whole_name())
                .unwrap_or_default();
            match &entry.part {
                Some(part) => part.take(from, &mut values[to.clone()]),
                None => values[to.clone()].copy_from_slice(from),
            }
        }
        let values: SharedState = Arc::new(values);
        chain.load_shared(&values, arena.ranges());
        Ok(())
    }
}

/// Returns the paths of manifest and weights for the path of a folder or of one of the two files.
fn paths(path: &Path) -> Result<(PathBuf, PathBuf), ModelError> {
    let kind = path.extension().and_then(|kind| kind.to_str());
    match kind {
        _ if path.is_dir() => Ok((path.join(MANIFEST_FILE), path.join(WEIGHTS_FILE))),
        Some("json") => Ok((path.to_owned(), path.with_file_name(WEIGHTS_FILE))),
        Some("safetensors") => Ok((path.with_file_name(MANIFEST_FILE), path.to_owned())),
        _ => Err(ModelError::NoModel {
            path: path.to_owned(),
        }),
    }
}

/// Returns the range of each tensor of a layout in the values of a file that has exactly these tensors.
fn ranges_of(weights: &WeightFile, layout: &StateLayout) -> Result<Vec<Range<usize>>, ModelError> {
    let mut ranges = Vec::with_capacity(layout.tensors.len());
    let mut problems = Vec::new();
    for entry in &layout.tensors {
        let name = entry.name.clone();
        match weights.tensors().get(&name) {
            None => problems.push(TensorProblem::Missing { name }),
            Some(stored) if stored.shape != entry.shape => problems.push(TensorProblem::Shape {
                name,
                found: stored.shape.clone(),
                expected: entry.shape.clone(),
            }),
            Some(stored) => match &stored.range {
                Some(range) => {
                    problems.extend(weights.not_finite(&name));
                    ranges.push(range.clone());
                }
                None => problems.push(TensorProblem::Format {
                    name,
                    found: stored.dtype.clone(),
                }),
            },
        }
    }
    let is_of_model = |name: &str| layout.tensors.iter().any(|entry| entry.name == name);
    let unknown = weights.tensors().keys().filter(|name| !is_of_model(name));
    problems.extend(unknown.map(|name| TensorProblem::Unknown { name: name.clone() }));
    if problems.is_empty() {
        Ok(ranges)
    } else {
        Err(ModelError::Tensors {
            path: weights.path().to_owned(),
            problems,
        })
    }
}

#[cfg(test)]
mod tests;
