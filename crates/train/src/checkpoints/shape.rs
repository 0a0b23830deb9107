//! [`Shape`]: a replica's runs of numbers as the vectors of a checkpoint, and each rank's share of them.

use std::sync::Arc;

use ronde_checkpoint::{Slice, TensorPlace, Vector, share};
use ronde_core::DType;
use ronde_parallel::{LossScaling, ModelState};

/// Name of the vector of weights and buffers.
const WEIGHTS: &str = "weights";
/// Name of the vector of the loss scale.
const LOSS_SCALE: &str = "loss_scale";

/// The vectors of a run's state, in the order of [`ronde_parallel::Strategy::replica`].
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) vectors: Arc<Vec<Vector>>,
}

impl Shape {
    /// Weights and buffers, a vector for each state of the optimizer, and the loss scale when it has one.
    pub(crate) fn of(
        state: &ModelState,
        optimizer_states: &[&str],
        scale: Option<LossScaling>,
    ) -> Self {
        let tensors: Vec<TensorPlace> = state
            .places()
            .iter()
            .map(|place| TensorPlace {
                name: place.entry.name.clone(),
                shape: place
                    .entry
                    .shape
                    .iter()
                    .map(|&length| length as u64)
                    .collect(),
                role: place.entry.role,
                start: place.range.start as u64,
            })
            .collect();
        let optimizer = optimizer_states
            .iter()
            .map(|name| format!("optimizer.{name}"));
        let vectors = std::iter::once(WEIGHTS.to_owned())
            .chain(optimizer)
            .map(|name| Vector {
                name,
                dtype: DType::F32,
                elements: state.values().len() as u64,
                tensors: tensors.clone(),
            })
            .chain(scale.map(|_| Vector {
                name: LOSS_SCALE.to_owned(),
                dtype: DType::F32,
                elements: LossScaling::STATE_LEN,
                tensors: Vec::new(),
            }))
            .collect();
        Self {
            vectors: Arc::new(vectors),
        }
    }

    /// What one of `count` ranks saves of a replica.
    pub(crate) fn share<'a>(
        &'a self,
        replica: &[&'a [f32]],
        index: u32,
        count: u32,
    ) -> Vec<Slice<'a>> {
        self.vectors
            .iter()
            .zip(replica)
            .map(|(vector, values)| {
                let range = share(vector.elements, index, count);
                let values = &values[range.start as usize..range.end as usize];
                Slice::f32(&vector.name, range.start, values)
            })
            .collect()
    }

    /// About the bytes of the largest share.
    pub(crate) fn share_bytes(&self, count: u32) -> usize {
        let bytes = |vector: &Vector| 4 * share(vector.elements, 0, count).end as usize;
        self.vectors.iter().map(bytes).sum()
    }
}
