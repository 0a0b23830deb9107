//! Building blocks of transformers: attention with its projections, and the feed-forward part.
//!
//! Shapes: N samples, T positions, E width.

use burn::module::Module;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Tensor};

use super::modules::{linear_module, normalise, row_norm};
use crate::ForwardContext;
use crate::ops::{self, AttentionMask, linear};

/// The size of a transformer's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransformerShape {
    pub(super) width: usize,
    pub(super) heads: usize,
    /// The inner width of a feed-forward part.
    pub(super) inner: usize,
    pub(super) dropout: f64,
}

impl TransformerShape {
    /// Checks the settings.
    pub(super) fn check(&self, depth: usize) -> Result<(), String> {
        let Self {
            width,
            heads,
            inner,
            dropout,
        } = *self;
        if depth == 0 || width == 0 || inner == 0 || heads == 0 || !width.is_multiple_of(heads) {
            return Err(format!(
                "invalid layers = {depth}, width = {width}, heads = {heads}: expected at least 1 of each, and a width that is a multiple of heads"
            ));
        }
        if depth > 1 << 12 || width > 1 << 20 || inner > 1 << 22 {
            return Err(format!(
                "invalid layers = {depth}, width = {width}: expected at most {} and {}",
                1 << 12,
                1 << 20
            ));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Err(format!(
                "invalid dropout = {dropout}: expected at least 0 and below 1"
            ));
        }
        Ok(())
    }

    /// Returns the number of parameters of an attention with its normalisation.
    pub(super) fn attention_parameters(&self) -> u64 {
        let width = self.width as u64;
        4 * (width * width + width) + 2 * width
    }

    /// Returns the number of parameters of a feed-forward part with its normalisation.
    pub(super) fn feed_forward_parameters(&self) -> u64 {
        let (width, inner) = (self.width as u64, self.inner as u64);
        2 * width * inner + inner + width + 2 * width
    }

    /// Estimates the floats kept by an attention of `places` over `seen` positions, for one sample.
    pub(super) fn attention_kept(&self, places: usize, seen: usize) -> usize {
        (5 * places + 3 * seen) * self.width + 3 * self.heads * places * seen
    }

    /// Estimates the floats kept by a feed-forward part for one sample.
    pub(super) fn feed_forward_kept(&self, places: usize) -> usize {
        places * (4 * self.width + 6 * self.inner)
    }
}

/// Normalisation and attention with a residual connection.
#[derive(Module, Debug)]
pub(super) struct MultiHeadAttention {
    norm: LayerNorm,
    query: Linear,
    key_value: Linear,
    output: Linear,
    heads: usize,
}

impl MultiHeadAttention {
    pub(super) fn new(form: TransformerShape, device: &Device) -> Self {
        Self {
            norm: row_norm(form.width, device),
            query: linear_module(form.width, form.width, true, device),
            key_value: linear_module(form.width, 2 * form.width, true, device),
            output: linear_module(form.width, form.width, true, device),
            heads: form.heads,
        }
    }

    /// Returns `x` (`[N, T, E]`) plus its attention to `memory` (`[N, S, E]`), or to itself without
    /// one.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        memory: Option<Tensor<3>>,
        seen: AttentionMask,
    ) -> Tensor<3> {
        let own = normalise(&self.norm, x.clone());
        let both = linear(&self.key_value, memory.unwrap_or_else(|| own.clone()));
        let queries = linear(&self.query, own);
        let found = ops::attention_over(queries, both, self.heads, seen);
        x + linear(&self.output, found)
    }
}

/// Normalisation and two linear modules with a residual connection.
#[derive(Module, Debug)]
pub(super) struct FeedForward {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    pub(super) fn new(form: TransformerShape, device: &Device) -> Self {
        Self {
            norm: row_norm(form.width, device),
            up: linear_module(form.width, form.inner, true, device),
            down: linear_module(form.inner, form.width, true, device),
        }
    }

    /// Returns `x` plus its transformation; `index` keys the dropout inside.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        dropout: f64,
        index: u64,
        context: &ForwardContext,
    ) -> Tensor<3> {
        let inner = ops::gelu(linear(&self.up, normalise(&self.norm, x.clone())));
        x + context.dropout(linear(&self.down, inner), dropout, index)
    }
}
