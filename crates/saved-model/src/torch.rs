//! Export for PyTorch: a file that `torch.load(weights_only=True)` reads, a zip archive with a pickle of the names.
//!
//! Source of the format: `torch/serialization.py` of PyTorch 2 and the pickle protocol 2. The archive is not compressed, so
//! `torch.load(mmap=True)` works too.

mod pickle;
mod zip;

use std::io::Write;

use self::pickle::Pickle;
use self::zip::ZipWriter;
use crate::converted::{ConvertedTensor, convert};
use crate::error::ModelError;
use crate::names::Naming;
use crate::saved_model::SavedModel;

/// Writes the tensors of a saved model in a naming as a dictionary for `load_state_dict`. Memory: a copy of the tensors
/// whose layouts differ.
///
/// # Errors
/// The naming has no module like the model, the weights do not fit it, or the writer fails.
pub fn write_torch(
    saved: &SavedModel,
    naming: Naming,
    to: &mut dyn Write,
) -> Result<(), ModelError> {
    let tensors = convert(saved, naming)?;
    write(&tensors, to).map_err(ModelError::Write)
}

fn write(tensors: &[ConvertedTensor<'_>], to: &mut dyn Write) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(to);
    let mut pickle = Pickle::dictionary();
    for (number, tensor) in tensors.iter().enumerate() {
        let names = std::iter::once(&tensor.name).chain(&tensor.alias);
        for name in names {
            pickle.tensor(name, number, &tensor.shape);
        }
    }
    zip.add("archive/data.pkl", &pickle.finish())?;
    zip.add("archive/byteorder", b"little")?;
    for (number, tensor) in tensors.iter().enumerate() {
        let bytes = bytemuck::cast_slice(&tensor.values);
        zip.add(&format!("archive/data/{number}"), bytes)?;
    }
    zip.add("archive/version", b"3\n")?;
    zip.finish()
}
