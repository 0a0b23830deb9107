//! Layers made of explicit operations: [`GraphBuilder`] describes one, [`GraphLayer`] runs it.

mod batch_norms;
mod builder;
mod computation;
mod layer;
mod node;
mod operation;
mod part_transfers;
mod parts;
mod tensors;
mod text;
mod tokens;

pub use batch_norms::BatchNormValues;
pub use builder::{Attended, GraphBuilder, GraphOutline, GraphValue};
pub use computation::{Computation, OperationOutline};
pub use layer::GraphLayer;
pub(crate) use node::{GraphNode, NodeGradient, PerShard};
pub(crate) use operation::{GraphOperation, KeptValues, OwnTensor};
pub use part_transfers::PassEnds;
pub use parts::{PartExchange, PartPlace};
pub(crate) use tensors::{LoadedState, SharedTensor, TensorAccess, TensorGradients, Tensors};
pub(crate) use text::KeptPositions;
pub use text::KeptText;
pub use tokens::TokenShares;
pub(crate) use tokens::{OwnTokens, TokenDivision, copy_run, taken_run};
