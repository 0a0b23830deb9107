//! The explicit operations that layers are made of, each with its backward passes.
//!
//! Shapes in the documentation: N samples, C channels, H and W height and width, T and S positions
//! of a sequence, E width.

mod attention;
mod batch_norm;
mod batch_wide_norm;
mod centres;
mod convolution;
mod dropout;
mod elementwise;
mod embedding;
mod factors;
mod group_norm;
mod layer_norm;
mod linear;
mod parts;
mod pool;
#[cfg(test)]
mod reference;
mod shape;
#[cfg(test)]
mod slopes;
mod tied_scores;
mod tokens;

pub(crate) use attention::Attend;
pub use batch_norm::AfterNorm;
pub(crate) use batch_norm::NormaliseBatch;
pub(crate) use batch_wide_norm::NormaliseBatchWide;
pub(crate) use convolution::Convolve;
pub(crate) use dropout::Dropout;
pub(crate) use elementwise::{Activate, Add, Rectify};
pub use embedding::SourcePadding;
pub(crate) use factors::check_pairs;
pub(crate) use group_norm::NormaliseGroups;
pub(crate) use layer_norm::NormaliseRows;
pub(crate) use linear::Linear;
pub(crate) use parts::{AddRow, CombineParts, EmbedRows, PartsForm};
pub(crate) use pool::{MapPlanes, MaxPool};
pub(crate) use shape::{Concatenate, Reshape, TakeSlice};
pub use tied_scores::TiedTable;
pub(crate) use tokens::{ConcatenateTokens, GatherTokens, SliceTokens};

use crate::activation::Activation;

/// Returns the only input of an operation.
fn only(inputs: Vec<Activation>) -> Activation {
    inputs
        .into_iter()
        .next()
        .unwrap_or_else(Activation::nothing)
}

/// Returns the first two inputs of an operation.
fn first_two(inputs: Vec<Activation>) -> [Activation; 2] {
    let mut inputs = inputs.into_iter();
    std::array::from_fn(|_| inputs.next().unwrap_or_else(Activation::nothing))
}
