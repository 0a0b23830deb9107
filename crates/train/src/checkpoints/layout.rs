//! [`ReplicaLayout`]: the vectors of a replica in a checkpoint, and each rank's share of them.

use std::sync::Arc;

use ronde_checkpoint::{Slice, StateVector, VectorTensor, share};
use ronde_core::DType;
use ronde_engine::Precision;
use ronde_parallel::{HeldVector, LossScaling, ModelState, VectorKind};
use ronde_protocol::holdings::HeldRanges;

use crate::config::{CompressionSection, RunConfig, SyncSection};
use crate::model_copies::ModelCopies;

/// The name of the vector of weights and buffers.
const WEIGHTS: &str = "weights";
/// The name of the vector of the loss scale.
const LOSS_SCALE: &str = "loss_scale";
/// The name of the vector of the factors from which compressed gradients begin.
const FACTORS: &str = "compression.factors";
/// The name of the vector that has for each replica what it keeps: its weights, if replicas never have the same ones, and the states
/// of its optimizer.
const REPLICAS: &str = "replicas";
/// The name of the vector of the residuals of compressed gradients.
const RESIDUALS: &str = "compression.residuals";

/// The names of the vectors of the predictors of gradients: their weights, and the states of their optimizer.
const PREDICTORS: [&str; 3] = ["predictors", "predictors.mean", "predictors.mean_square"];

/// Returns the names of the vectors besides those with a value for each weight and the loss scale: what replicas keep, those of
/// compression, and those of predictors.
pub(crate) fn other_names(config: &RunConfig) -> Vec<&'static str> {
    let kept = config.sync.kept_vectors(&config.optimizer) > 0;
    let compression: &[&str] = match config.compression {
        CompressionSection::None => &[],
        CompressionSection::PowerSgd { .. } => &[FACTORS, RESIDUALS],
        _ => &[RESIDUALS],
    };
    let predictors: &[&str] = match config.sync {
        SyncSection::SyntheticGradients { .. } => &PREDICTORS,
        SyncSection::EveryStep
        | SyncSection::LocalSgd { .. }
        | SyncSection::ParameterServer { .. }
        | SyncSection::Gossip { .. } => &[],
    };
    let kept = kept.then_some(REPLICAS).into_iter();
    kept.chain(compression.iter().copied())
        .chain(predictors.iter().copied())
        .collect()
}

/// Returns the names of the vectors in a checkpoint of a run, in their order.
pub(crate) fn vector_names(config: &RunConfig) -> Vec<String> {
    let copies = ModelCopies::names(&config.train);
    let has_scale = config.train.precision == Precision::F16;
    names_of_values(&config.state_names())
        .chain(has_scale.then(|| LOSS_SCALE.to_owned()))
        .chain(other_names(config).into_iter().map(str::to_owned))
        .chain(copies.into_iter().map(str::to_owned))
        .collect()
}

/// Returns the names of the vectors that have a value for each weight.
fn names_of_values(optimizer_states: &[&str]) -> impl Iterator<Item = String> {
    let optimizer = optimizer_states
        .iter()
        .map(|name| format!("optimizer.{name}"));
    std::iter::once(WEIGHTS.to_owned()).chain(optimizer)
}

/// The vectors of a run's state, in the order of [`ronde_parallel::StateView::vectors`].
#[derive(Debug, Clone)]
pub(crate) struct ReplicaLayout {
    pub(crate) vectors: Arc<Vec<StateVector>>,
}

impl ReplicaLayout {
    /// Describes weights and buffers, one vector for each optimizer state, the loss scale if there is one, the vectors of
    /// [`other_names`] by name and number of elements, and the copies of weights and buffers.
    pub(crate) fn of(
        state: &ModelState,
        optimizer_states: &[&str],
        scale: Option<LossScaling>,
        others: &[(&str, u64)],
        copies: &[&str],
    ) -> Self {
        let tensors: Vec<VectorTensor> = state
            .tensors()
            .iter()
            .map(|tensor| VectorTensor {
                name: tensor.entry.name.clone(),
                shape: tensor
                    .entry
                    .shape
                    .iter()
                    .map(|&length| length as u64)
                    .collect(),
                role: tensor.entry.role,
                start: tensor.range.start as u64,
            })
            .collect();
        let of_tensors = |name: String| StateVector {
            name,
            dtype: DType::F32,
            elements: state.len() as u64,
            tensors: tensors.clone(),
        };
        let copies = copies.iter().map(|name| of_tensors((*name).to_owned()));
        let vectors = names_of_values(optimizer_states)
            .map(of_tensors)
            .chain(scale.map(|_| StateVector {
                name: LOSS_SCALE.to_owned(),
                dtype: DType::F32,
                elements: LossScaling::STATE_LEN,
                tensors: Vec::new(),
            }))
            .chain(others.iter().map(|(name, elements)| StateVector {
                name: (*name).to_owned(),
                dtype: DType::F32,
                elements: *elements,
                tensors: Vec::new(),
            }))
            .chain(copies)
            .collect();
        Self {
            vectors: Arc::new(vectors),
        }
    }

    /// Returns the slices that rank `index` of `count` saves: the elements `owned` of the vectors with an element for each one
    /// of the flat state, its share of those that every rank holds, and its parts of the others.
    pub(crate) fn share<'a>(
        &'a self,
        state: &[HeldVector<'a>],
        owned: &HeldRanges,
        (index, count): (u32, u32),
    ) -> Vec<Slice<'a>> {
        let mut slices = Vec::new();
        for (vector, state) in self.vectors.iter().zip(state) {
            let share = share(vector.elements, index, count);
            let share = HeldRanges::new(std::iter::once(share.start as usize..share.end as usize));
            let saved = match state.kind {
                VectorKind::Flat => owned,
                VectorKind::Whole => &share,
                VectorKind::Distributed => &*state.held,
            };
            for range in saved.ranges() {
                let values = &state.values[state.held.locate(range).unwrap_or_default()];
                slices.push(Slice::f32(&vector.name, range.start as u64, values));
            }
        }
        slices
    }
}
