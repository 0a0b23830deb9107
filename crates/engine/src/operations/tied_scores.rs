//! [`TiedTable`]: the vectors of an embedding, which the output layer of the same model shares.
//!
//! A tied table is one parameter with two uses. It belongs to the embedding, whose layer holds it
//! and writes its gradient. Forward runs the embedding first, which offers its vectors; backward
//! runs the output layer first, whose part of a shard's gradient is kept until the embedding adds
//! its own. So the two parts are always added in the same order.
//!
//! Both layers are on the same rank, and the chain is not cut between them. The alternative, two sums of the table that are added
//! once per step, would send it twice in plain data parallelism.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::Shard;

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{AddKernel, MultiplyKernel};
use crate::device::{Device, DeviceSliceMut};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphBuilder, GraphOperation, GraphValue, KeptValues, SharedTensor, Tensors};
use crate::shard_map::ShardMap;

/// The connection between an embedding and the output layer that shares its vectors.
#[derive(Debug, Clone, Default)]
pub struct TiedTable {
    shared: Arc<Mutex<TiedValues>>,
}

#[derive(Debug, Default)]
struct TiedValues {
    /// The number of tokens and the width of the embedding's vectors.
    size: [usize; 2],
    /// The vectors that the embedding used, until the output layer takes them.
    offered: ShardMap<SharedTensor>,
    /// The output layer's gradients of the vectors, until the embedding adds its own.
    gradients: ShardMap<Activation>,
}

impl TiedTable {
    fn values(&self) -> MutexGuard<'_, TiedValues> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.values().size[0]
    }

    /// Sets the number of tokens and the width of the vectors.
    pub(crate) fn set_size(&self, size: [usize; 2]) {
        self.values().size = size;
    }

    /// Offers the vectors of a shard's forward pass to the output layer.
    pub(super) fn offer(&self, shard: Shard, vectors: SharedTensor) {
        self.values().offered.insert(shard, vectors);
    }

    /// Adds the output layer's part to a shard's gradient: `gradient = part + gradient`.
    pub(super) fn add_gradient(
        &self,
        shard: Shard,
        device: &dyn Device,
        gradient: DeviceSliceMut<'_>,
    ) -> Result<(), EngineError> {
        let mut values = self.values();
        // Vectors that were offered again, because the embedding was recomputed.
        values.offered.remove(&shard);
        let part = values
            .gradients
            .remove(&shard)
            .ok_or_else(|| EngineError::NotInFlight {
                layer: "head".to_owned(),
                shard,
            })?;
        AddKernel {
            y: gradient,
            x: part.values(),
        }
        .run_on(device);
        Ok(())
    }
}

/// A score for each token at each position: the input `[N, T, E]` times the vectors of all tokens.
pub(crate) struct TiedScores {
    table: TiedTable,
    tokens: usize,
    width: usize,
}

/// The values kept of one shard.
pub(crate) struct SavedTiedScores {
    x: Activation,
    vectors: SharedTensor,
    shard: Shard,
}

impl TiedScores {
    fn rows(&self, x: &Activation) -> usize {
        x.elements() / self.width.max(1)
    }
}

impl GraphOperation for TiedScores {
    type Saved = SavedTiedScores;

    fn computation(&self) -> Computation {
        Computation::TiedScores
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&self, saved: &mut SavedTiedScores, visit: &mut dyn FnMut(&mut Activation)) {
        visit(&mut saved.x);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedTiedScores), EngineError> {
        let x = only(inputs);
        let shard = context.shard;
        let vectors = self.table.values().offered.remove(&shard);
        let vectors = vectors.ok_or_else(|| EngineError::NotInFlight {
            layer: "embedding".to_owned(),
            shard,
        })?;
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.tokens;
        }
        let device = tensors.device();
        let mut y = tensors.result(&shape);
        let right = vectors.matrix(self.tokens, self.width).transposed();
        let blocks = tensors.blocks_of_products(self.rows(&x));
        blocks.run([&x], [&mut y], |rows, [of_x], [to]| {
            let left = x.matrix(of_x, rows.len(), self.width);
            MultiplyKernel {
                left,
                right,
                to,
                adds: false,
            }
            .run_on(device);
        });
        Ok((y, SavedTiedScores { x, vectors, shard }))
    }

    /// Leaves the gradient of the vectors to the embedding.
    fn backward_input(
        &self,
        saved: &mut SavedTiedScores,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let x = &saved.x;
        let device = tensors.device();
        let vectors = saved.vectors.matrix(self.tokens, self.width);
        let mut part = tensors.unwritten(&[self.tokens, self.width]);
        let mut found = tensors.result(x.shape());
        let blocks = tensors.blocks_of_products(self.rows(x));
        blocks.run([x, &gradient], [&mut found], |rows, [of_x, given], [to]| {
            let x = x.matrix(of_x, rows.len(), self.width);
            let given = gradient.matrix(given, rows.len(), self.tokens);
            let of_vectors = part.values_mut(device);
            MultiplyKernel {
                left: given.transposed(),
                right: x,
                to: of_vectors,
                adds: rows.start > 0,
            }
            .run_on(device);
            MultiplyKernel {
                left: given,
                right: vectors,
                to,
                adds: false,
            }
            .run_on(device);
        });
        self.table.values().gradients.insert(saved.shard, part);
        vec![Some(found)]
    }

    fn discard(&self) {
        let mut values = self.table.values();
        values.offered.clear();
        values.gradients.clear();
    }
}

impl GraphBuilder {
    /// Adds a score for each token: the product of `[positions, width]` with the vectors of the
    /// embedding that has the same table and is described before. The two layers stay in one process: see
    /// [`Chain::tied`](crate::Chain::tied).
    pub fn tied_scores(&mut self, x: GraphValue, tokens: usize, table: &TiedTable) -> GraphValue {
        let mut shape = self.shape(x).to_vec();
        let Some(last) = shape.last_mut() else {
            return x;
        };
        let width = std::mem::replace(last, tokens);
        let size = table.values().size;
        if size != [tokens, width] {
            self.fail(format!(
                "tied_scores: {tokens} tokens of width {width}, but the embedding with this table has {} of width {}",
                size[0], size[1]
            ));
            return x;
        }
        let operation = TiedScores {
            table: table.clone(),
            tokens,
            width,
        };
        self.add_operation(operation, &[x], shape, Vec::new())
    }
}
