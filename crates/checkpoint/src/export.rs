//! Exports a vector's tensors as a safetensors file.

use ronde_core::DType;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::checkpoint::{Checkpoint, ReadRequest};
use crate::error::CheckpointError;

/// Returns the bytes of a safetensors file with all tensors of a vector. The same state gives the same bytes, whatever
/// the number of ranks that saved it. Memory: twice the vector.
///
/// # Errors
/// As [`Checkpoint::read_into`]; [`CheckpointError::Invalid`] when the format does not support a tensor.
pub fn to_safetensors(
    checkpoint: &Checkpoint,
    vector: &str,
    threads: usize,
) -> Result<Vec<u8>, CheckpointError> {
    let vector = checkpoint.manifest().vector(vector)?;
    let size = vector.dtype.size();
    let mut values = vec![0; vector.elements as usize * size];
    let mut request = [ReadRequest {
        vector: &vector.name,
        start: 0,
        into: &mut values,
    }];
    checkpoint.read_into(&mut request, threads)?;
    let refused = |tensor: &str, problem: String| {
        CheckpointError::invalid(format!("tensor {tensor} of {}", vector.name), problem)
    };
    let mut views = Vec::with_capacity(vector.tensors.len());
    for tensor in &vector.tensors {
        let from = tensor.start as usize * size;
        let bytes = tensor.elements().unwrap_or(0) as usize * size;
        let shape = tensor.shape.iter().map(|&length| length as usize).collect();
        let view = TensorView::new(dtype(vector.dtype), shape, &values[from..from + bytes])
            .map_err(|error| refused(&tensor.name, error.to_string()))?;
        views.push((tensor.name.as_str(), view));
    }
    safetensors::serialize(views, None).map_err(|error| refused("all", error.to_string()))
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
    }
}
