//! [`EmbeddingTable`]: the vectors of an embedding, which the output layer of the same model may
//! share.
//!
//! A tied table is one parameter with two uses. It belongs to the embedding, which loads and saves
//! it and writes its gradient. Backward runs the output layer first; its part of a shard's gradient
//! is kept here until the embedding adds its own. So the two parts are always added in the same
//! order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;
use ronde_core::Shard;
use ronde_kernels::{Matrix, multiply};

use crate::EngineError;
use crate::ops::memory::{give, take};
use crate::ops::{HostTensor, OperationInput, SavedForBackward, record};

/// The vectors of tokens and of positions.
#[derive(Debug, Clone, Default)]
pub(super) struct EmbeddingVectors {
    pub(super) token: Vec<f32>,
    pub(super) position: Vec<f32>,
    pub(super) width: usize,
}

/// The current vectors, and the gradients of the output layer. Pending shards keep the vectors of
/// their forward.
#[derive(Debug)]
pub(super) struct EmbeddingTable {
    tables: Mutex<Arc<EmbeddingVectors>>,
    /// The output layer's gradients of the token vectors.
    found: Mutex<BTreeMap<Shard, Vec<f32>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmbeddingTable {
    pub(super) fn new(tables: EmbeddingVectors) -> Self {
        Self {
            tables: Mutex::new(Arc::new(tables)),
            found: Mutex::default(),
        }
    }

    /// Returns the current vectors.
    pub(super) fn now(&self) -> Arc<EmbeddingVectors> {
        locked(&self.tables).clone()
    }

    /// Changes the vectors; copies them first when a pending shard holds them.
    pub(super) fn change(&self, change: impl FnOnce(&mut EmbeddingVectors)) {
        change(Arc::make_mut(&mut locked(&self.tables)));
    }

    /// Adds the output layer's part to a shard's gradient: `gradient = found + gradient`.
    ///
    /// # Errors
    /// When the output layer's backward of the shard did not run before.
    pub(super) fn add_found(&self, shard: Shard, gradient: &mut [f32]) -> Result<(), EngineError> {
        let found = locked(&self.found).remove(&shard);
        let found = found.ok_or_else(|| EngineError::NotInFlight {
            layer: "head".to_owned(),
            shard,
        })?;
        let elements = gradient.iter_mut().zip(&found);
        elements.for_each(|(gradient, found)| *gradient += found);
        give(found);
        Ok(())
    }

    /// Drops the output layer's gradients, as after an aborted step.
    pub(super) fn forget(&self) {
        locked(&self.found).clear();
    }

    /// Returns a score for each token at each position: `x` (`[N, T, E]`) times the vectors of all
    /// tokens. Backward stores the gradient of the vectors under the shard's number.
    pub(super) fn scores(self: &Arc<Self>, x: Tensor<3>, shard: Shard) -> Tensor<3> {
        let (table, tables) = (self.clone(), self.now());
        record([OperationInput::of(x)], |[x]| {
            let [rows, tokens] = tables.lengths(&x);
            let mut y = take(rows * tokens);
            let [left, right] = tables.matrices(&x);
            multiply(left, right.transposed(), &mut y, false);
            let mut shape = x.shape().to_vec();
            if let Some(last) = shape.last_mut() {
                *last = tokens;
            }
            let saved = SavedTiedScores {
                x,
                tables,
                table,
                shard,
            };
            (HostTensor::new(y, &shape), saved)
        })
    }
}

impl EmbeddingVectors {
    /// The numbers of rows of an input and of tokens.
    fn lengths(&self, x: &HostTensor) -> [usize; 2] {
        [x.values().len(), self.token.len()].map(|elements| elements / self.width.max(1))
    }

    /// Returns the rows of an input and the vectors of all tokens.
    fn matrices<'a>(&'a self, x: &'a HostTensor) -> [Matrix<'a>; 2] {
        let [rows, tokens] = self.lengths(x);
        let left = Matrix::new(x.values(), rows, self.width);
        [left, Matrix::new(&self.token, tokens, self.width)]
    }
}

#[derive(Debug)]
struct SavedTiedScores {
    x: HostTensor,
    tables: Arc<EmbeddingVectors>,
    table: Arc<EmbeddingTable>,
    shard: Shard,
}

impl SavedForBackward<1> for SavedTiedScores {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 1]) -> [Option<HostTensor>; 1] {
        let [rows, tokens] = self.tables.lengths(&self.x);
        let [x, vectors] = self.tables.matrices(&self.x);
        let dy = Matrix::new(gradient, rows, tokens);
        let mut found = take(self.tables.token.len());
        multiply(dy.transposed(), x, &mut found, false);
        locked(&self.table.found).insert(self.shard, found);
        let mut dx = take(self.x.values().len());
        multiply(dy, vectors, &mut dx, false);
        [Some(HostTensor::new(dx, self.x.shape()))]
    }
}
