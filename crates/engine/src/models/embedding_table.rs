//! [`EmbeddingTable`]: an embedding's vectors, which the output layer of the same model may use as well.
//!
//! A tied table is one parameter with two uses. It belongs to the embedding: there it is loaded, saved and
//! has its gradient. Backward comes to the output layer first; what it finds for a shard waits here until
//! the embedding adds its own to it. So a shard's gradient is a sum of two in one order, whoever computes
//! the shard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Tensor;
use ronde_core::Shard;
use ronde_kernels::{Matrix, multiply};

use crate::EngineError;
use crate::ops::memory::{give, take};
use crate::ops::{HostTensor, OperationInput, SavedForBackward, record};

/// Vectors of tokens and of places.
#[derive(Debug, Clone, Default)]
pub(super) struct EmbeddingVectors {
    pub(super) token: Vec<f32>,
    pub(super) position: Vec<f32>,
    pub(super) width: usize,
}

/// The vectors that count now, and gradients that wait. Shards in flight keep the vectors of their
/// forward.
#[derive(Debug)]
pub(super) struct EmbeddingTable {
    tables: Mutex<Arc<EmbeddingVectors>>,
    /// Of the token vectors, by the output layer.
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

    /// The vectors as they are.
    pub(super) fn now(&self) -> Arc<EmbeddingVectors> {
        locked(&self.tables).clone()
    }

    /// Changes the vectors; copies them first where a shard in flight holds them.
    pub(super) fn change(&self, change: impl FnOnce(&mut EmbeddingVectors)) {
        change(Arc::make_mut(&mut locked(&self.tables)));
    }

    /// Adds what the output layer found for a shard: `gradient = found + gradient`.
    ///
    /// # Errors
    /// When the output layer's backward of the shard did not come before.
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

    /// Forgets what the output layer found, as after a step that was given up.
    pub(super) fn forget(&self) {
        locked(&self.found).clear();
    }

    /// A score for each token at each place: `x` (`[N, T, E]`) times the vectors of all tokens. What
    /// backward finds for the vectors waits under the shard's number.
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
            let saved = TiedScoresBackward {
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
    /// Rows of an input, and tokens.
    fn lengths(&self, x: &HostTensor) -> [usize; 2] {
        [x.values().len(), self.token.len()].map(|elements| elements / self.width.max(1))
    }

    /// The rows of an input, and the vectors of all tokens.
    fn matrices<'a>(&'a self, x: &'a HostTensor) -> [Matrix<'a>; 2] {
        let [rows, tokens] = self.lengths(x);
        let left = Matrix::new(x.values(), rows, self.width);
        [left, Matrix::new(&self.token, tokens, self.width)]
    }
}

#[derive(Debug)]
struct TiedScoresBackward {
    x: HostTensor,
    tables: Arc<EmbeddingVectors>,
    table: Arc<EmbeddingTable>,
    shard: Shard,
}

impl SavedForBackward<1> for TiedScoresBackward {
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
