//! Layers made of explicit operations: [`GraphBuilder`] describes one, [`GraphLayer`] runs it.
//!
//! The description of a layer costs no memory, so the size of a model is known before anything is allocated. Each operation (one
//! file each in `operations`) has a forward pass, a backward pass for its inputs, one for its weights, and a statement of the
//! values that it keeps in between; an autograd graph is not needed. A layer runs its operations in order, moves a value to its
//! last use, drops values that no backward pass needs, and writes gradients directly into the bucket. It reads weights where the
//! state is stored (`SharedState`) until the state is about to change, and draws initial weights when they are used or saved, so no
//! rank ever needs the whole model.

mod batch_norms;
mod builder;
mod computation;
mod joined;
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
pub(crate) use joined::{JoinedShard, JoinedShards};
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
