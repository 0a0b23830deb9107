//! [`WeightFile`]: the tensors of a safetensors file, as f32.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use ronde_core::layout::Arena;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::error::{ModelError, TensorProblem};

/// The largest header that is read, in bytes: about 100,000 tensors.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// The bytes that are read and converted at once: a multiple of every element size.
const CHUNK_BYTES: usize = 1 << 20;

/// The position of a tensor of a [`WeightFile`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The length of each dimension.
    pub shape: Vec<usize>,
    /// The elements in [`WeightFile::values`]; `None` if the type is not a floating-point format.
    pub range: Option<Range<usize>>,
    /// The type in the file: `F32`, `BF16`, `I64`.
    pub dtype: String,
}

/// The tensors of a safetensors file, as f32. F16 and BF16 are converted without a change of value, F64 to the nearest
/// f32; other types are listed without values.
#[derive(Debug, Clone)]
pub struct WeightFile {
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
    values: Arc<Vec<f32>>,
    blake3: String,
}

impl WeightFile {
    /// Reads a file. Memory: the values as f32, and 16 MiB at most.
    ///
    /// # Errors
    /// The file cannot be read, is damaged or cut off, or is of another format.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let failed = |source| ModelError::File {
            action: "read",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Self::read_from(file, length, path)
    }

    /// Reads the contents of a file of `length` bytes; `path` is for messages.
    ///
    /// # Errors
    /// As [`WeightFile::read`].
    pub fn read_from(from: impl Read, length: u64, path: &Path) -> Result<Self, ModelError> {
        let mut from = HashingReader {
            from,
            hasher: blake3::Hasher::new(),
        };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                ModelError::damaged(path, "it ends before its last tensor")
            }
            _ => ModelError::File {
                action: "read",
                path: path.to_owned(),
                source,
            },
        };
        let metadata = header(&mut from, length, path)?;
        let mut tensors = BTreeMap::new();
        let mut in_order = Vec::new();
        let names = metadata.offset_keys();
        let infos = names
            .iter()
            .filter_map(|name| Some((name, metadata.info(name)?)));
        for (name, info) in infos {
            let elements: usize = info.shape.iter().product();
            let is_float = matches!(
                info.dtype,
                Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64
            );
            let bytes = info.data_offsets.1 - info.data_offsets.0;
            in_order.push((info.dtype, bytes, if is_float { elements } else { 0 }));
            tensors.insert(name.clone(), (info, is_float));
        }
        let arena = Arena::new(in_order.iter().map(|(_, _, elements)| *elements));
        let mut values = vec![0.0; arena.len()];
        let mut buffer = vec![0; CHUNK_BYTES];
        for ((dtype, bytes, _), range) in in_order.iter().zip(arena.ranges()) {
            let to = &mut values[range.clone()];
            convert(&mut from, (*dtype, *bytes), to, &mut buffer).map_err(failed)?;
        }
        let mut ranges: BTreeMap<&String, Range<usize>> =
            names.iter().zip(arena.ranges().iter().cloned()).collect();
        let stored = tensors.into_iter().map(|(name, (info, is_float))| {
            let range = ranges.remove(&name).filter(|_| is_float);
            let stored = StoredTensor {
                shape: info.shape.clone(),
                range,
                dtype: format!("{:?}", info.dtype),
            };
            (name, stored)
        });
        Ok(Self {
            path: path.to_owned(),
            tensors: stored.collect(),
            values: Arc::new(values),
            blake3: from.hasher.finalize().to_hex().to_string(),
        })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tensors by name.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Forgets the tensors for which `is_removed` returns true. Returns their names.
    pub(crate) fn remove(&mut self, is_removed: impl Fn(&str) -> bool) -> Vec<String> {
        let names = self.tensors.keys();
        let removed: Vec<String> = names.filter(|name| is_removed(name)).cloned().collect();
        self.tensors.retain(|name, _| !is_removed(name));
        removed
    }

    /// Returns whether two tensors have the same shape and the same values.
    pub(crate) fn are_equal(&self, one: &str, other: &str) -> bool {
        let shape = |name| self.tensors.get(name).map(|stored| &stored.shape);
        let values = (self.values_of(one), self.values_of(other));
        shape(one) == shape(other) && matches!(values, (Some(one), Some(other)) if one == other)
    }

    /// Returns the problem of a tensor with values that are infinite or not a number; `None` if all are finite. Cost: one pass
    /// over its values.
    pub(crate) fn not_finite(&self, name: &str) -> Option<TensorProblem> {
        let values = self.values_of(name)?.iter();
        let count = values.filter(|value| !value.is_finite()).count();
        (count > 0).then(|| TensorProblem::NotFinite {
            name: name.to_owned(),
            count,
        })
    }

    /// Returns the values of all tensors.
    #[must_use]
    pub fn values(&self) -> &Arc<Vec<f32>> {
        &self.values
    }

    /// Returns the values of a tensor; `None` if there is none of this name in a floating-point format.
    #[must_use]
    pub fn values_of(&self, name: &str) -> Option<&[f32]> {
        let range = self.tensors.get(name)?.range.clone()?;
        self.values.get(range)
    }

    /// Returns the BLAKE3 hash of the file, 64 hexadecimal digits.
    #[must_use]
    pub fn blake3(&self) -> &str {
        &self.blake3
    }
}

/// Reads and checks the header of a file of `length` bytes.
fn header(from: &mut impl Read, length: u64, path: &Path) -> Result<Metadata, ModelError> {
    let mut prefix = [0; 8];
    let foreign = "it is not a safetensors file";
    from.read_exact(&mut prefix)
        .map_err(|_| ModelError::damaged(path, format!("{foreign}: it has {length} bytes")))?;
    let bytes = u64::from_le_bytes(prefix);
    if bytes > HEADER_BYTES_MAX || bytes > length.saturating_sub(8) {
        let problem = format!(
            "{foreign}, or it is cut off: its header has {bytes} bytes, the file has {length}, and the limit is {HEADER_BYTES_MAX}"
        );
        return Err(ModelError::damaged(path, problem));
    }
    let mut text = vec![0; bytes as usize];
    from.read_exact(&mut text).map_err(|error| {
        ModelError::damaged(path, format!("its header cannot be read: {error}"))
    })?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| {
        ModelError::damaged(path, format!("invalid safetensors header: {error}"))
    })?;
    let expected = metadata.data_len() as u64;
    let found = length - 8 - bytes;
    if expected != found {
        let problem = format!("its tensors need {expected} bytes, and the file has {found}");
        return Err(ModelError::damaged(path, problem));
    }
    Ok(metadata)
}

/// Reads `bytes` bytes of one type, and writes them as f32 if `to` has room for them.
fn convert(
    from: &mut impl Read,
    (dtype, bytes): (Dtype, usize),
    mut to: &mut [f32],
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let chunk = left.min(buffer.len());
        let chunk = &mut buffer[..chunk];
        from.read_exact(chunk)?;
        left -= chunk.len();
        if to.is_empty() {
            continue;
        }
        let elements = chunk.len() / (dtype.bitsize() / 8);
        let (now, rest) = to.split_at_mut(elements);
        decode(dtype, chunk, now);
        to = rest;
    }
    Ok(())
}

fn decode(dtype: Dtype, bytes: &[u8], to: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], to: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
        let (words, _) = bytes.as_chunks::<N>();
        for (to, word) in to.iter_mut().zip(words) {
            *to = decode(*word);
        }
    }
    match dtype {
        Dtype::F64 => each(bytes, to, |word| f64::from_le_bytes(word) as f32),
        Dtype::F16 => each(bytes, to, |word| f16::from_le_bytes(word).to_f32()),
        Dtype::BF16 => each(bytes, to, |word| bf16::from_le_bytes(word).to_f32()),
        _ => each(bytes, to, f32::from_le_bytes),
    }
}

/// A reader that also hashes the bytes it reads.
struct HashingReader<R> {
    from: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
