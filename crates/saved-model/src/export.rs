//! [`export`]: writes a saved model in a format of other programs.

use std::io::BufWriter;
use std::path::Path;

use crate::converted::convert;
use crate::error::ModelError;
use crate::metadata::weight_metadata;
use crate::names::Naming;
use crate::onnx::write_onnx;
use crate::publish::publish_by;
use crate::saved_model::SavedModel;
use crate::torch::write_torch;
use crate::write::write_with_metadata;

/// A file format for other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// The model with its operations: see [`write_onnx`].
    Onnx,
    /// The weights, as safetensors.
    Safetensors,
    /// The weights, for `torch.load`: see [`write_torch`].
    Torch,
}

impl ExportFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Onnx, Self::Safetensors, Self::Torch];

    /// Returns the name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Safetensors => "safetensors",
            Self::Torch => "torch",
        }
    }

    /// Returns the usual extension of a file of this format, without a dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Safetensors => "safetensors",
            Self::Torch => "pt",
        }
    }
}

/// Writes a saved model to a file in a format, atomically. `naming` does not affect ONNX, whose constants have our names.
/// Equal models give equal files.
///
/// # Errors
/// As [`write_onnx`] and [`write_torch`]; the file cannot be written.
pub fn export(
    saved: &SavedModel,
    format: ExportFormat,
    naming: Naming,
    path: &Path,
) -> Result<(), ModelError> {
    publish_by(path, |file| {
        let mut to = BufWriter::new(file);
        match format {
            ExportFormat::Onnx => write_onnx(saved, &mut to)?,
            ExportFormat::Torch => write_torch(saved, naming, &mut to)?,
            ExportFormat::Safetensors => {
                let tensors = convert(saved, naming)?;
                let named = tensors.iter().map(|tensor| tensor.named());
                let metadata = weight_metadata(saved.manifest());
                write_with_metadata(named, metadata, &mut to).map_err(ModelError::Write)?;
            }
        }
        std::io::Write::flush(&mut to).map_err(ModelError::Write)
    })
}
