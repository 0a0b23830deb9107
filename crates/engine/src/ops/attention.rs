//! [`attention`]: every head of an attention layer as one operation.

use std::sync::Arc;

use burn::tensor::Tensor;
use ronde_kernels::Attention;

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::{give, take};

/// Returns `softmax(q k' / sqrt(width)) v` of each head: queries `[batch, queries, heads * width]`,
/// keys and values `[batch, keys, heads * width]`, output as the queries. With `causal` a token
/// attends only to itself and earlier ones. Keeps a weight per head, query and key for backward.
///
/// # Panics
/// When shapes do not match or `heads` does not divide the last dimension.
#[must_use]
pub fn attention(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    heads: usize,
    causal: bool,
) -> Tensor<3> {
    let both = Tensor::cat(vec![keys, values], 2);
    attention_over(queries, both, heads, AttentionMask::of(causal))
}

/// The tokens to which the queries of an attention attend.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttentionMask {
    /// Whether a token attends only to itself and earlier ones.
    pub(crate) causal: bool,
    /// The number of attended tokens of each sequence, counted from the first one; empty: all.
    pub(crate) lengths: Arc<[usize]>,
}

impl AttentionMask {
    /// Attends to all tokens, or to the earlier ones.
    pub(crate) fn of(causal: bool) -> Self {
        Self {
            causal,
            lengths: Arc::default(),
        }
    }
}

/// Does the same on keys and values side by side, `[batch, keys, 2 * heads * width]`, as one matrix
/// product computes them, without a copy.
pub(crate) fn attention_over(
    queries: Tensor<3>,
    both: Tensor<3>,
    heads: usize,
    seen: AttentionMask,
) -> Tensor<3> {
    let ([batch, asking, row], [_, keys, twice]) = (queries.dims(), both.dims());
    assert!(
        heads > 0 && row.is_multiple_of(heads) && twice == 2 * row,
        "{heads} heads of {row}, keys and values of {twice}"
    );
    let shape = Attention {
        batch,
        queries: asking,
        keys,
        heads,
        width: row / heads,
        causal: seen.causal,
    };
    record(
        [OperationInput::of(queries), OperationInput::of(both)],
        |inputs| {
            let [output, _, weights] = shape.elements();
            let (mut y, mut weights) = (take(output), take(weights));
            let [q, kv] = inputs.each_ref().map(HostTensor::values);
            shape.forward(q, kv, &seen.lengths, &mut y, &mut weights);
            let output = HostTensor::new(y, inputs[0].shape());
            let saved = SavedAttention {
                shape,
                lengths: seen.lengths,
                inputs,
                weights,
            };
            (output, saved)
        },
    )
}

#[derive(Debug)]
struct SavedAttention {
    shape: Attention,
    lengths: Arc<[usize]>,
    inputs: [HostTensor; 2],
    weights: Vec<f32>,
}

impl Drop for SavedAttention {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.weights));
    }
}

impl SavedForBackward<2> for SavedAttention {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 2]) -> [Option<HostTensor>; 2] {
        let inputs = self.inputs.each_ref().map(HostTensor::values);
        let mut found = inputs.map(|input| take(input.len()));
        self.shape.backward(
            inputs,
            &self.lengths,
            &self.weights,
            gradient,
            found.each_mut().map(Vec::as_mut_slice),
        );
        let mut shapes = self.inputs.iter().map(HostTensor::shape);
        found.map(|found| Some(HostTensor::new(found, shapes.next().unwrap_or_default())))
    }
}
