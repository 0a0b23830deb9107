//! Saved models: the manifest and the weights of a trained model, without the run that made them.
//!
//! A saved model is a folder with `model.safetensors` and `model.json`. Read [`SavedModel`] first: it checks and loads
//! one. [`save`] writes one, and [`WeightFile`] reads the weights of any safetensors file.
//!
//! ```no_run
//! use ronde_engine::Activation;
//! use ronde_saved_model::SavedModel;
//!
//! let saved = SavedModel::open("runs/digits")?;
//! let mut chain = saved.chain()?;
//! let logits = chain.evaluate(Activation::from_host(&[1, 1, 8, 8], vec![0.0; 64]))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod card;
mod converted;
pub mod decoders;
mod error;
mod export;
mod image_input;
mod initial_weights;
mod manifest;
mod metadata;
mod names;
mod onnx;
mod publish;
mod saved_model;
#[cfg(test)]
mod testing;
mod torch;
mod weight_file;
mod write;

pub use card::{CARD_FILE, is_card, render_card, write_card};
pub use error::{ModelError, TensorProblem};
pub use export::{ExportFormat, export};
pub use image_input::ImageInput;
pub use initial_weights::{InitialWeights, TensorExclusions};
pub use manifest::{
    BestEvaluation, MANIFEST_FILE, ModelEvaluation, ModelManifest, TOKENIZER_FILE, TargetKind,
    WEIGHTS_FILE,
};
pub use names::Naming;
pub use onnx::{ONNX_OPSET, write_onnx};
pub use publish::{check_target, publish, temporary};
pub use saved_model::SavedModel;
pub use torch::write_torch;
pub use weight_file::{StoredTensor, WeightFile};
pub use write::{
    NamedTensor, PublishedModel, TensorSource, file_order, save, save_from, write_safetensors,
};
