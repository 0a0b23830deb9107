//! The end of models of text: the scores of the next token.

use burn::module::Module;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Tensor};

use crate::ops::linear;

use super::modules::{linear_module, normalise, row_norm};

/// Normalisation and a score for each token.
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

    /// `[N, T, E]` as `[N, T, tokens]`.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.output, normalise(&self.norm, x))
    }
}

/// Normalisation before scores by a table that the embedding owns.
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

    /// `[N, T, E]` as it is.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        normalise(&self.norm, x)
    }
}
