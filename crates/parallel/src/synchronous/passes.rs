//! [`Passes`]: the passes of a rank's shards through its layers, in a step or an evaluation.

use super::SynchronousConfig;
use super::mesh::MeshPosition;
use super::model::PlacedModel;
use super::program::Program;
use super::reducer::Reducer;
use super::state_slices::StateSlices;
use super::timer::StepTimer;

/// The parts of a strategy that passes need. Passes change no weight.
pub(super) struct Passes<'a> {
    pub(super) config: &'a SynchronousConfig,
    pub(super) mesh: &'a MeshPosition,
    pub(super) slices: &'a StateSlices,
    pub(super) model: &'a mut PlacedModel,
    pub(super) reducer: &'a mut Reducer,
    pub(super) program: &'a mut Program,
    pub(super) timer: &'a mut StepTimer,
}
