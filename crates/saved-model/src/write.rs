//! [`save`]: writes weights and manifest of a model, each file atomically.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::View;

use crate::card::write_card;
use crate::error::ModelError;
use crate::manifest::{MANIFEST_FILE, ModelManifest, WEIGHTS_FILE};
use crate::publish;
use crate::publish::publish_by;

/// A tensor of a model by name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedTensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The length of each dimension.
    pub shape: &'a [usize],
    /// The values, row-major.
    pub values: &'a [f32],
}

/// The files of a model that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedModel {
    /// The path of the weights.
    pub weights: PathBuf,
    /// The path of the manifest.
    pub manifest: PathBuf,
    /// The BLAKE3 hash of the weights file, 64 hexadecimal digits.
    pub blake3: String,
}

/// The tensors of a model whose values are read one after the other while it is written.
pub trait TensorSource {
    /// Returns the name and the shape of each tensor.
    fn tensors(&self) -> Vec<(&str, &[usize])>;

    /// Passes the values of a tensor, by its position in [`TensorSource::tensors`], to `write`, in parts in order. Called once
    /// for each tensor, in the order of [`file_order`].
    ///
    /// # Errors
    /// `write` failed, or the values cannot be read.
    fn read(
        &mut self,
        index: usize,
        write: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// Returns the positions of tensors in the order in which a model file has them: by name.
#[must_use]
pub fn file_order(names: &[&str]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..names.len()).collect();
    // The format sorts tensors of one type by name.
    order.sort_by_key(|index| names[*index]);
    order
}

/// Tensors that are in memory.
struct TensorsInMemory<'a>(Vec<NamedTensor<'a>>);

impl TensorSource for TensorsInMemory<'_> {
    fn tensors(&self) -> Vec<(&str, &[usize])> {
        let each = self.0.iter();
        each.map(|tensor| (tensor.name, tensor.shape)).collect()
    }

    fn read(
        &mut self,
        index: usize,
        write: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        write(self.0[index].values)
    }
}

/// Writes weights, manifest and model card into an existing folder; an earlier model is replaced, a README.md of the user is
/// not. The hash in the manifest is
/// replaced by that of the weights.
///
/// # Errors
/// A file cannot be written. No incomplete file remains under the final names.
pub fn save<'a>(
    folder: &Path,
    tensors: impl IntoIterator<Item = NamedTensor<'a>>,
    manifest: &ModelManifest,
) -> Result<PublishedModel, ModelError> {
    let mut source = TensorsInMemory(tensors.into_iter().collect());
    save_from(folder, &mut source, manifest)
}

/// Does the same with tensors that are read one after the other, so that the model need not be in memory.
///
/// # Errors
/// As [`save`], and those of the source.
pub fn save_from(
    folder: &Path,
    source: &mut dyn TensorSource,
    manifest: &ModelManifest,
) -> Result<PublishedModel, ModelError> {
    let weights = folder.join(WEIGHTS_FILE);
    let blake3 = publish_by(&weights, |file| {
        write_hashed(source, file).map_err(ModelError::Write)
    })?;
    let manifest = ModelManifest {
        blake3: blake3.clone(),
        ..manifest.clone()
    };
    let path = folder.join(MANIFEST_FILE);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| ModelError::File {
        action: "write",
        path: path.clone(),
        source: error.into(),
    })?;
    publish(&path, &text)?;
    write_card(folder, &manifest)?;
    Ok(PublishedModel {
        weights,
        manifest: path,
        blake3,
    })
}

fn write_hashed(source: &mut dyn TensorSource, file: &mut File) -> io::Result<String> {
    let hasher = blake3::Hasher::new();
    let mut to = HashingWriter { file, hasher };
    write_source(source, None, &mut to)?;
    Ok(to.hasher.finalize().to_hex().to_string())
}

/// Writes tensors by name as a safetensors file, without a copy of the values. Equal tensors give equal bytes, in
/// whichever order they are passed.
///
/// # Errors
/// The writer fails, or the format rejects a tensor.
pub fn write_safetensors<'a>(
    tensors: impl IntoIterator<Item = NamedTensor<'a>>,
    to: &mut dyn Write,
) -> io::Result<()> {
    write_with_metadata(tensors, None, to)
}

/// Does the same with texts in the header of the file.
pub(crate) fn write_with_metadata<'a>(
    tensors: impl IntoIterator<Item = NamedTensor<'a>>,
    metadata: Option<HashMap<String, String>>,
    to: &mut dyn Write,
) -> io::Result<()> {
    let mut source = TensorsInMemory(tensors.into_iter().collect());
    write_source(&mut source, metadata, to)
}

fn write_source(
    source: &mut dyn TensorSource,
    metadata: Option<HashMap<String, String>>,
    to: &mut dyn Write,
) -> io::Result<()> {
    let tensors = source.tensors();
    let names: Vec<&str> = tensors.iter().map(|(name, _)| *name).collect();
    let order = file_order(&names);
    let headers = order.iter().map(|index| {
        let (name, shape) = tensors[*index];
        (name, TensorHeader { shape })
    });
    let header = safetensors::serialize(headers, metadata).map_err(io::Error::other)?;
    to.write_all(&header)?;
    for index in order {
        source.read(index, &mut |values| {
            to.write_all(bytemuck::cast_slice(values))
        })?;
    }
    Ok(())
}

/// The shape and length of a tensor for the file header, without its values.
struct TensorHeader<'a> {
    shape: &'a [usize],
}

impl View for TensorHeader<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        size_of::<f32>() * self.shape.iter().product::<usize>()
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

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn the_streamed_file_equals_the_formats_own_output() {
        let values: Vec<f32> = (0..24).map(|number| number as f32 / 7.0).collect();
        let shapes: [(&str, &[usize]); 3] = [("b.weight", &[2, 3]), ("a", &[]), ("c.bias", &[5])];
        let tensors = shapes.map(|(name, shape)| NamedTensor {
            name,
            shape,
            values: &values[..shape.iter().product()],
        });
        let views = tensors.map(|tensor| {
            let bytes = bytemuck::cast_slice(tensor.values);
            let view = TensorView::new(Dtype::F32, tensor.shape.to_vec(), bytes);
            (tensor.name, view.unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        let mut written = Vec::new();
        write_safetensors(tensors, &mut written).unwrap();
        assert!(written == expected);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let hash = publish_by(&path, |file| {
            let mut source = TensorsInMemory(tensors.to_vec());
            write_hashed(&mut source, file).map_err(ModelError::Write)
        })
        .unwrap();
        assert_eq!(hash, blake3::hash(&expected).to_hex().as_str());
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}
