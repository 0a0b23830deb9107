//! The last layer of text models: the scores of the next token.

use burn::module::Module;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Tensor};

use crate::ops::linear;

use super::modules::{linear_module, normalise, row_norm};

/// A normalisation and a score for each token.
#[derive(Module, Debug)]
pub(super) struct Scores {
    norm: LayerNorm,
    output: Linear,
}

impl Scores {
    pub(super) fn new(width: usize, tokens: usize, device: &Device) -> Self {
        Self {
            norm: row_norm(width, device),
            output: linear_module(width, tokens, false, device),
        }
    }

    /// Maps `[N, T, E]` to `[N, T, tokens]`.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.output, normalise(&self.norm, x))
    }
}

/// A normalisation before the scores, which are computed with the embedding's table.
#[derive(Module, Debug)]
pub(super) struct TiedHead {
    norm: LayerNorm,
}

impl TiedHead {
    pub(super) fn new(width: usize, device: &Device) -> Self {
        Self {
            norm: row_norm(width, device),
        }
    }

    /// Normalises `[N, T, E]`.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        normalise(&self.norm, x)
    }
}
