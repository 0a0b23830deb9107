//! A synthetic state that is a function of its step, and functions to save it as N ranks.

use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::{
    Checkpoint, CheckpointError, Fence, PublishOutcome, PublishRequest, SaveRequest, SavedPart,
    Saver, Slice, StateVector, publish, share,
};
use ronde_core::layout::{Arena, Role, StateLayout, TensorEntry};
use ronde_core::{DType, DataSignature, Epoch, PlanIdentity, Rank, Step, WorldSize};
use ronde_store::{LocalStore, Store};

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A store in a folder.
pub(crate) fn local(folder: &std::path::Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::new(folder))
}

pub(crate) fn plan() -> PlanIdentity {
    let mut plan = PlanIdentity::default();
    plan.set("model", "made up");
    plan.set("run.seed", "7");
    plan
}

/// The state after `step` steps of a model whose tensors have these lengths.
pub(crate) struct State {
    pub(crate) step: Step,
    pub(crate) vectors: Vec<StateVector>,
    pub(crate) values: Vec<Vec<u8>>,
}

impl State {
    pub(crate) fn new(step: u64, tensors: &[usize]) -> Self {
        let layout = StateLayout {
            tensors: tensors
                .iter()
                .enumerate()
                .map(|(index, &elements)| {
                    TensorEntry::f32(format!("t{index}"), &[elements], Role::Parameter)
                })
                .collect(),
        };
        let arena = Arena::new(tensors.iter().copied());
        let mut vectors: Vec<StateVector> = ["weights", "adam.m"]
            .iter()
            .map(|name| StateVector::of_layout(*name, &layout, &arena).unwrap())
            .collect();
        vectors.push(StateVector {
            name: "counts".into(),
            dtype: DType::I64,
            elements: 13,
            tensors: Vec::new(),
        });
        let values = vectors
            .iter()
            .enumerate()
            .map(|(index, vector)| bytes_of(step, index, vector.bytes().unwrap()))
            .collect();
        Self {
            step: Step(step),
            vectors,
            values,
        }
    }

    /// The small state of most tests.
    pub(crate) fn small(step: u64) -> Self {
        Self::new(step, &[5, 64, 0, 70])
    }

    pub(crate) fn cursor(&self) -> Vec<u8> {
        format!("next step {}", self.step).into_bytes()
    }

    /// Writes the files of `count` ranks, each in its own thread.
    pub(crate) fn write(
        &self,
        store: &Arc<dyn Store>,
        fence: Fence,
        count: u32,
    ) -> Result<Vec<SavedPart>, CheckpointError> {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..count)
                .map(|rank| scope.spawn(move || self.write_rank(store, fence, rank, count)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn write_rank(
        &self,
        store: &Arc<dyn Store>,
        fence: Fence,
        rank: u32,
        count: u32,
    ) -> Result<SavedPart, CheckpointError> {
        let mut saver = Saver::start(Arc::clone(store), 100)?;
        let slices: Vec<Slice<'_>> = self
            .vectors
            .iter()
            .zip(&self.values)
            .map(|(vector, bytes)| {
                let size = vector.dtype.size();
                let range = share(vector.elements, rank, count);
                Slice {
                    vector: &vector.name,
                    start: range.start,
                    bytes: &bytes[range.start as usize * size..range.end as usize * size],
                }
            })
            .collect();
        saver.begin(&SaveRequest {
            step: self.step,
            fence,
            rank: Rank(rank),
            world_size: WorldSize::new(count).unwrap(),
            vectors: &self.vectors,
            slices: &slices,
        })?;
        let part = saver.wait(LIMIT)?;
        // Encoded and decoded, as between ranks.
        SavedPart::from_bytes(&part.to_bytes()?)
    }

    pub(crate) fn publish(
        &self,
        store: &Arc<dyn Store>,
        fence: Fence,
        plan: &PlanIdentity,
        parts: &[SavedPart],
    ) -> Result<PublishOutcome, CheckpointError> {
        let cursor = self.cursor();
        let what = PublishRequest {
            run: "test",
            step: self.step,
            epoch: Epoch(0),
            fence,
            world_size: WorldSize::new(parts.len() as u32).unwrap(),
            identity: plan,
            signature: &DataSignature::default(),
            vectors: &self.vectors,
            cursor: &cursor,
            saved_unix_ms: 1_700_000_000_000,
        };
        publish(&**store, &what, parts)
    }

    /// Writes and publishes.
    pub(crate) fn save(
        &self,
        store: &Arc<dyn Store>,
        fence: Fence,
        count: u32,
    ) -> Result<PublishOutcome, CheckpointError> {
        let parts = self.write(store, fence, count)?;
        self.publish(store, fence, &plan(), &parts)
    }

    /// Compares every bit of a checkpoint with this state.
    pub(crate) fn assert_is(&self, checkpoint: &Checkpoint) {
        assert_eq!(checkpoint.step(), self.step);
        assert_eq!(checkpoint.cursor().unwrap(), self.cursor());
        let loaded = checkpoint.load(2).unwrap();
        assert_eq!(loaded.len(), self.values.len());
        for (loaded, values) in loaded.iter().zip(&self.values) {
            assert!(
                loaded.values.bytes() == values,
                "{} of {}",
                loaded.name,
                self.step
            );
        }
    }
}

fn bytes_of(step: u64, vector: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|at| {
            let mixed = (at / 4) ^ (step << 24) ^ ((vector as u64) << 56) ^ (at % 4) << 48;
            (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
        })
        .collect()
}
