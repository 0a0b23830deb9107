//! Both ends of models of text: embeddings of tokens and places, and the scores of the next token.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Int, Tensor, module};

use crate::ops::linear;

use super::layers::{linear_layer, normalise, row_norm};

/// A vector for each token and for each place.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    token: Param<Tensor<2>>,
    position: Param<Tensor<2>>,
}

impl Embedding {
    /// Vectors are zero until they are drawn by name.
    pub(super) fn new(tokens: usize, places: usize, width: usize, device: &Device) -> Self {
        let zeros = |rows| Param::from_tensor(Tensor::zeros([rows, width], device));
        Self {
            token: zeros(tokens),
            position: zeros(places),
        }
    }

    /// Token numbers `[N, T]` as vectors `[N, T, E]`. A number beyond the table counts as the last
    /// one: a made-up number must not end the process.
    pub(super) fn forward(&self, tokens: Tensor<2>) -> Tensor<3> {
        let last = self.token.dims()[0] as f32 - 1.0;
        let tokens: Tensor<2, Int> = tokens.clamp(0.0, last).int();
        module::embedding(self.token.val(), tokens) + self.position.val().unsqueeze()
    }
}

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
            output: linear_layer(width, tokens, false, device),
        }
    }

    /// `[N, T, E]` as `[N, T, tokens]`.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.output, normalise(&self.norm, x))
    }
}
