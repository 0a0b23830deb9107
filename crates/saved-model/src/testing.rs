//! Saved models for tests.

use std::path::Path;

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{DataSignature, FormatHeader};
use ronde_engine::{Chain, LayerExt, ModelConfig};
use serde::Deserialize;

use crate::manifest::ModelManifest;
use crate::saved_model::SavedModel;
use crate::write::{NamedTensor, save};

/// A model, the shape of a sample and the number of classes.
#[derive(Deserialize)]
pub(crate) struct SmallModel {
    pub(crate) model: ModelConfig,
    pub(crate) shape: Vec<usize>,
    pub(crate) classes: u32,
}

/// Returns every built-in model at a small size.
pub(crate) fn every_model() -> Vec<SmallModel> {
    serde_json::from_str(include_str!("../tests/models.json")).unwrap()
}

/// Builds a model with initial weights and its manifest.
pub(crate) fn built(model: &ModelConfig, shape: &[usize], classes: u32) -> (Chain, ModelManifest) {
    let chain = model.build(shape, classes, &SeedTree::new(11)).unwrap();
    let manifest = ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: "test".to_owned(),
        model: Some(model.clone()),
        input_shape: shape.to_vec(),
        classes,
        images: None,
        targets: None,
        signature: DataSignature::default(),
        vocabulary: None,
        steps: 5,
        plan: "0".repeat(64),
        identity: vec![("run.seed".to_owned(), "11".to_owned())],
        unrepeatable: None,
        blake3: String::new(),
        evaluation: None,
        best: None,
    };
    (chain, manifest)
}

/// Saves a model to a folder.
pub(crate) fn save_to(folder: &Path, chain: &Chain, manifest: &ModelManifest) {
    let tensors = &chain.layout().tensors;
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save_state(&mut values, arena.ranges());
    let named = tensors
        .iter()
        .zip(arena.ranges())
        .map(|(entry, range)| NamedTensor {
            name: &entry.name,
            shape: &entry.shape,
            values: &values[range.clone()],
        });
    save(folder, named, manifest).unwrap();
}

/// Builds, saves and opens a model.
pub(crate) fn saved(
    folder: &Path,
    model: &ModelConfig,
    shape: &[usize],
    classes: u32,
) -> SavedModel {
    let (chain, manifest) = built(model, shape, classes);
    save_to(folder, &chain, &manifest);
    SavedModel::open(folder).unwrap()
}
