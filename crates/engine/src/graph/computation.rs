//! [`Computation`]: the computation of an operation as data, for translations of a graph.

use std::ops::Range;

use ronde_core::layout::TensorEntry;
use ronde_kernels::{ActivationFunction, Attention, GroupedConvolution, SlidingWindow};

use super::GraphOutline;
use crate::device::kernel::PlaneMap;
use crate::operations::{AfterNorm, SourcePadding};

/// The computation of an operation in evaluation. N is the number of samples, which the shapes below do not include.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Computation {
    /// `x * weight + bias` over the last dimension. Tensors: weight `[inputs, outputs]`, and bias if there is one.
    Linear {
        /// Whether there is a bias.
        has_bias: bool,
    },
    /// A convolution of `[channels, height, width]`. Tensors: weight `[outputs, channels / groups, height, width]`, and
    /// bias if there is one.
    Convolution {
        /// The lengths, the stride and the padding.
        shape: GroupedConvolution,
        /// Whether there is a bias.
        has_bias: bool,
    },
    /// A normalisation of channels by running statistics; then the sum with a second input if there is one. Tensors:
    /// gamma, beta, running mean, running variance.
    BatchNorm {
        /// The number that is added to the variance.
        epsilon: f64,
        /// Whether a rectifier follows.
        after: AfterNorm,
    },
    /// A normalisation of groups of channels of each sample. Tensors: gamma, beta.
    GroupNorm {
        /// The number of groups.
        groups: usize,
        /// The number that is added to the variance.
        epsilon: f64,
    },
    /// A normalisation of the last dimension. Tensors: gamma, beta.
    LayerNorm {
        /// The number that is added to the variance.
        epsilon: f64,
    },
    /// `max(x, 0)`.
    Relu,
    /// A function of each element.
    Activation(ActivationFunction),
    /// Dropout, which does nothing in evaluation.
    Identity,
    /// The sum of two values.
    Add,
    /// The greatest value of each window of `[channels, height, width]`.
    MaxPool(SlidingWindow),
    /// A map of each plane of `[channels, height, width]` to one of another size.
    Planes(PlaneMap),
    /// Another shape of as many elements.
    Reshape,
    /// A part of one dimension.
    Slice {
        /// The dimension of a sample.
        dim: usize,
        /// The elements along the dimension.
        part: Range<usize>,
    },
    /// Values one after the other along a dimension.
    Concatenate {
        /// The dimension of a sample.
        dim: usize,
    },
    /// The sum of a vector for each token number and one for each position. Tensors: token `[tokens, width]`, position
    /// `[positions, width]`.
    Embedding,
    /// The number of tokens of a source text before its padding, at least 0, encoded as a row of the output: its rest by
    /// 256, its quotient by 256, then zeros.
    SourceLengths(SourcePadding),
    /// The attention of several heads: queries `[positions, width]`, keys and values side by side `[positions, 2 *
    /// width]`, and optionally the lengths of [`Computation::SourceLengths`]: only these first keys are attended to,
    /// at least one.
    Attention(Attention),
    /// The product with the transposed token vectors of the model's [`Computation::Embedding`].
    TiedScores,
    /// The squared distances from centres. Tensor: `[centres, elements of a sample]`.
    SquaredDistances,
    /// The sum of the inputs, one from each part of the layer.
    SumParts,
    /// The inputs, one from each part of the layer, one after the other along the last dimension.
    JoinParts,
    /// The sum of a value and a tensor of its last dimensions.
    AddTensor,
    /// A vector for each token number in the part's rows of a table, and zeros for others. Tensor: these rows.
    EmbedRows,
    /// `bias + user_bias[u] + item_bias[i] + user[u] . item[i]` for the numbers `[u, i]`. Tensors: user `[users,
    /// factors]`, item `[items, factors]`, user bias, item bias, bias `[1]`.
    FactorScores,
}

/// An operation of a [`GraphOutline`].
#[derive(Debug, Clone)]
pub struct OperationOutline<'a> {
    /// Its computation.
    pub computation: Computation,
    /// The number of each input value: 0 for the input of the layer, `i + 1` for the output of operation `i`.
    pub inputs: &'a [usize],
    /// Its tensors.
    pub tensors: &'a [TensorEntry],
    /// The shape of the output of one sample.
    pub output: &'a [usize],
}

impl GraphOutline {
    /// Returns the name of the layer.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shape of a value of one sample: 0 for the input of the layer, `i + 1` for the output of operation `i`.
    ///
    /// # Panics
    /// Without such a value.
    #[must_use]
    pub fn value_shape(&self, value: usize) -> &[usize] {
        &self.shapes[value]
    }

    /// Returns the operations in the order of their computation; the last one computes the output of the layer.
    pub fn operations(&self) -> impl Iterator<Item = OperationOutline<'_>> {
        let nodes = self.nodes.iter().zip(&self.shapes[1..]);
        nodes.map(|(node, output)| OperationOutline {
            computation: node.node.computation(),
            inputs: &node.inputs,
            tensors: &self.layout.tensors[node.tensors.clone()],
            output,
        })
    }
}
