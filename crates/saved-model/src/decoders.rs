//! The readers of the files of models, one by one, for fuzzing; not a stable interface.

use std::path::Path;

use ronde_core::layout::{Arena, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{DataSignature, FormatHeader};
use ronde_engine::{EngineError, LayerExt, ModelConfig};

use crate::converted::convert;
use crate::error::ModelError;
use crate::initial_weights::{InitialWeights, TensorExclusions};
use crate::manifest::ModelManifest;
use crate::names::Naming;
use crate::saved_model::SavedModel;
use crate::weight_file::WeightFile;
use crate::write::{NamedTensor, write_safetensors};

/// The path in messages.
const PATH: &str = "model";
/// The shape of a sample and the number of classes of the model in the samples.
const SHAPE: [usize; 1] = [3];
const CLASSES: u32 = 5;

/// A file of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFile {
    /// The manifest, and the layers that it describes.
    Manifest,
    /// Weights from which a small GPT is trained, with the names of any library.
    InitialWeights,
}

impl ModelFile {
    /// Returns valid contents, to start with.
    ///
    /// # Errors
    /// Never.
    pub fn samples(self) -> Result<Vec<Vec<u8>>, ModelError> {
        let config = small_model();
        let layout = layout(&config).map_err(|source| ModelError::Engine {
            path: PATH.into(),
            source,
        })?;
        let manifest = manifest(config);
        if self == Self::Manifest {
            let text = serde_json::to_vec(&manifest);
            return Ok(vec![text.map_err(|error| ModelError::Write(error.into()))?]);
        }
        let arena = Arena::new(layout.tensors.iter().map(TensorEntry::elements));
        let values = vec![0.5; arena.len()];
        let tensors = layout.tensors.iter().zip(arena.ranges());
        let named = tensors.map(|(entry, range)| NamedTensor {
            name: &entry.name,
            shape: &entry.shape,
            values: &values[range.clone()],
        });
        let own = file(named)?;
        let weights = WeightFile::read_from(&*own, own.len() as u64, PATH.as_ref())?;
        let saved = SavedModel::new(PATH.into(), manifest, weights);
        let foreign = convert(&saved, Naming::HuggingFace)?;
        let foreign = file(foreign.iter().map(|tensor| tensor.named()))?;
        Ok(vec![own, foreign])
    }

    /// Reads contents as ronde does, or returns why they are refused.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn read(self, bytes: &[u8]) -> Result<(), ModelError> {
        let path = Path::new(PATH);
        let failed = |source: EngineError| ModelError::Engine {
            path: path.to_owned(),
            source,
        };
        match self {
            Self::Manifest => {
                let manifest = ModelManifest::parse(bytes, path)?;
                if let Some(model) = &manifest.model {
                    let outline = model.outline(&manifest.input_shape, manifest.classes);
                    outline.map_err(failed)?;
                }
                let _card = crate::render_card(&manifest);
                Ok(())
            }
            Self::InitialWeights => {
                let file = WeightFile::read_from(bytes, bytes.len() as u64, path)?;
                let config = small_model();
                let layout = layout(&config).map_err(failed)?;
                let head = || vec!["head.*".to_owned()];
                let read = |drawn, ignored| {
                    let exclusions = TensorExclusions { drawn, ignored };
                    let found =
                        InitialWeights::new(file.clone(), Some(&config), &layout, &exclusions);
                    found.map(|found| drop(found.summary()))
                };
                // Files with other names have no tensor of this one.
                let _ignored = read(head(), head());
                read(head(), vec![])?;
                read(vec![], vec![])
            }
        }
    }
}

fn small_model() -> ModelConfig {
    ModelConfig::Gpt {
        layers: 1,
        width: 2,
        heads: 1,
        dropout: 0.0,
        tied: false,
        tensor_parts: 1,
    }
}

fn layout(config: &ModelConfig) -> Result<StateLayout, EngineError> {
    let chain = config.build(&SHAPE, CLASSES, &SeedTree::new(0))?;
    Ok(chain.layout().clone())
}

fn manifest(config: ModelConfig) -> ModelManifest {
    ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: "run".to_owned(),
        model: Some(config),
        input_shape: SHAPE.to_vec(),
        classes: CLASSES,
        images: None,
        targets: None,
        signature: DataSignature::default(),
        vocabulary: None,
        steps: 1,
        plan: "0".repeat(64),
        identity: vec![("train.precision".to_owned(), "\"bf16\"".to_owned())],
        unrepeatable: None,
        blake3: "0".repeat(64),
        evaluation: None,
        best: None,
    }
}

fn file<'a>(tensors: impl IntoIterator<Item = NamedTensor<'a>>) -> Result<Vec<u8>, ModelError> {
    let mut bytes = Vec::new();
    write_safetensors(tensors, &mut bytes).map_err(ModelError::Write)?;
    Ok(bytes)
}
