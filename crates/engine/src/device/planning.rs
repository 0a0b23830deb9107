//! [`PlanningDevice`]: a device that computes nothing and counts memory.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_kernels::{
    ActivationFunction, Attention, BatchNorm, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use crate::ForwardContext;
use crate::memory::{Block, FreeLists};

use super::{
    AffineSlices, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, DrawnRows, ElementKernels,
    ForeignMemory, ImageKernels, MatrixKernels, MatrixSlice, NormKernels, PlaneMap,
    PrecisionKernels, RowCopy, SequenceKernels, TableKernels, TableRows,
};

/// Plans memory: runs the code of layers without values, and counts the memory that they take on the host, by the same
/// reuse of free memory. A pass costs microseconds per operation, whatever the model's size. Values read from it are zeros.
#[derive(Debug, Default)]
pub struct PlanningDevice {
    planned: Arc<Mutex<PlannedUse>>,
}

#[derive(Debug, Default)]
struct PlannedUse {
    free: FreeLists<PlannedBlock>,
    in_use: usize,
    taken: Arc<AtomicUsize>,
    peak: usize,
}

/// The length of memory that does not exist, which counts as taken until it is dropped.
#[derive(Debug)]
struct PlannedBlock {
    length: usize,
    taken: Arc<AtomicUsize>,
}

impl Drop for PlannedBlock {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.length, Ordering::Relaxed);
    }
}

impl Block for PlannedBlock {
    fn length(&self) -> usize {
        self.length
    }
}

/// The memory that a device has taken, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// In use.
    pub in_use: usize,
    /// In use or kept for reuse.
    pub taken: usize,
    /// The most that was taken at any time.
    pub peak: usize,
}

impl PlanningDevice {
    /// Creates a device without memory in use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the memory taken so far.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let planned = locked(&self.planned);
        MemoryUse {
            in_use: planned.in_use,
            taken: planned.taken.load(Ordering::Relaxed),
            peak: planned.peak,
        }
    }
}

fn locked(planned: &Mutex<PlannedUse>) -> MutexGuard<'_, PlannedUse> {
    planned.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PlannedMemory {
    /// `None` once it is dropped.
    block: Option<PlannedBlock>,
    length: usize,
    planned: Arc<Mutex<PlannedUse>>,
}

impl Drop for PlannedMemory {
    fn drop(&mut self) {
        let mut planned = locked(&self.planned);
        planned.in_use -= self.length;
        if let Some(block) = self.block.take() {
            drop(planned.free.give(block));
        }
    }
}

impl ForeignMemory for PlannedMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, to: &mut [f32]) {
        to.fill(0.0);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Device for PlanningDevice {
    fn name(&self) -> String {
        "planning".to_owned()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        let mut planned = locked(&self.planned);
        planned.in_use += length;
        let block = planned.free.take(length).unwrap_or_else(|| {
            let taken = planned.taken.clone();
            let now = taken.fetch_add(length, Ordering::Relaxed) + length;
            planned.peak = planned.peak.max(now);
            PlannedBlock { length, taken }
        });
        drop(planned);
        DeviceBuffer::Foreign(Box::new(PlannedMemory {
            block: Some(block),
            length,
            planned: self.planned.clone(),
        }))
    }

    fn is_host(&self) -> bool {
        false
    }

    fn write(&self, _from: &[f32], _to: DeviceSliceMut<'_>) {}

    fn copy(&self, _from: DeviceSlice<'_>, _to: DeviceSliceMut<'_>) {}

    fn fill(&self, _to: DeviceSliceMut<'_>, _value: f32) {}
}

impl MatrixKernels for PlanningDevice {
    fn multiply(
        &self,
        _left: MatrixSlice<'_>,
        _right: MatrixSlice<'_>,
        _to: DeviceSliceMut<'_>,
        _adds: bool,
    ) {
    }

    fn repeat_row(&self, _row: DeviceSlice<'_>, _to: DeviceSliceMut<'_>) {}

    fn sum_rows(&self, _rows: DeviceSlice<'_>, _to: DeviceSliceMut<'_>) {}
}

impl ImageKernels for PlanningDevice {
    fn convolve(
        &self,
        _shape: &GroupedConvolution,
        _format: Option<ShortFormat>,
        _samples: usize,
        _x: DeviceSlice<'_>,
        _w: DeviceSlice<'_>,
        _y: DeviceSliceMut<'_>,
    ) {
    }

    fn convolve_input_gradient(
        &self,
        _shape: &GroupedConvolution,
        _format: Option<ShortFormat>,
        _samples: usize,
        _w: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _dx: DeviceSliceMut<'_>,
    ) {
    }

    fn convolve_weight_gradient(
        &self,
        _shape: &GroupedConvolution,
        _format: Option<ShortFormat>,
        _samples: usize,
        _x: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _dw: DeviceSliceMut<'_>,
    ) {
    }

    fn add_to_channels(&self, _y: DeviceSliceMut<'_>, _places: usize, _added: DeviceSlice<'_>) {}

    fn sum_channels(&self, _x: DeviceSlice<'_>, _places: usize, _to: DeviceSliceMut<'_>) {}

    fn max_pool(
        &self,
        _size: [usize; 2],
        _window: SlidingWindow,
        _x: DeviceSlice<'_>,
        _y: DeviceSliceMut<'_>,
        _from: DeviceSliceMut<'_>,
    ) {
    }

    fn max_pool_gradient(
        &self,
        _size: [usize; 2],
        _window: SlidingWindow,
        _dy: DeviceSlice<'_>,
        _from: DeviceSlice<'_>,
        _dx: DeviceSliceMut<'_>,
    ) {
    }

    fn map_planes(&self, _map: PlaneMap, _x: DeviceSlice<'_>, _y: DeviceSliceMut<'_>) {}

    fn map_planes_gradient(&self, _map: PlaneMap, _dy: DeviceSlice<'_>, _dx: DeviceSliceMut<'_>) {}
}

impl NormKernels for PlanningDevice {
    fn batch_norm(
        &self,
        _shape: &BatchNorm,
        _x: DeviceSlice<'_>,
        _affine: AffineSlices<'_>,
        _added: Option<DeviceSlice<'_>>,
        _y: DeviceSliceMut<'_>,
        _statistics: DeviceSliceMut<'_>,
    ) {
    }

    fn batch_norm_by(
        &self,
        _shape: &BatchNorm,
        _x: DeviceSlice<'_>,
        _affine: AffineSlices<'_>,
        _added: Option<DeviceSlice<'_>>,
        _y: DeviceSliceMut<'_>,
        _statistics: DeviceSlice<'_>,
    ) {
    }

    fn batch_norm_gradient(
        &self,
        _shape: &BatchNorm,
        _inputs: [DeviceSlice<'_>; 4],
        _statistics: DeviceSlice<'_>,
        _gradients: [DeviceSliceMut<'_>; 3],
        _of_added: Option<DeviceSliceMut<'_>>,
    ) {
    }

    fn known_statistics(
        &self,
        _running: [DeviceSlice<'_>; 2],
        _epsilon: f64,
        _statistics: DeviceSliceMut<'_>,
    ) {
    }

    fn move_statistics(
        &self,
        _running: [DeviceSlice<'_>; 2],
        _statistics: DeviceSlice<'_>,
        _momentum: f64,
        _to: [DeviceSliceMut<'_>; 2],
    ) {
    }

    fn batch_moments(&self, shape: &BatchNorm, _x: DeviceSlice<'_>) -> Vec<f64> {
        vec![0.0; shape.sums_len()]
    }

    fn batch_gradient_sums(
        &self,
        shape: &BatchNorm,
        _x: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _statistics: DeviceSlice<'_>,
    ) -> Vec<f64> {
        vec![0.0; shape.sums_len()]
    }

    fn batch_input_gradient(
        &self,
        _shape: &BatchNorm,
        _x: DeviceSlice<'_>,
        _gamma: DeviceSlice<'_>,
        _statistics: DeviceSlice<'_>,
        _summed: &[f64],
        _dy: DeviceSliceMut<'_>,
    ) {
    }

    fn batch_affine_gradients(
        &self,
        _shape: &BatchNorm,
        _own: &[f64],
        _statistics: DeviceSlice<'_>,
        _to: [DeviceSliceMut<'_>; 2],
    ) {
    }

    fn group_norm(
        &self,
        _shape: &GroupNorm,
        _x: DeviceSlice<'_>,
        _affine: AffineSlices<'_>,
        _y: DeviceSliceMut<'_>,
        _statistics: DeviceSliceMut<'_>,
    ) {
    }

    fn group_norm_gradient(
        &self,
        _shape: &GroupNorm,
        _inputs: [DeviceSlice<'_>; 3],
        _statistics: DeviceSlice<'_>,
        _gradients: [DeviceSliceMut<'_>; 3],
    ) {
    }

    fn layer_norm(
        &self,
        _x: DeviceSlice<'_>,
        _affine: AffineSlices<'_>,
        _epsilon: f64,
        _y: DeviceSliceMut<'_>,
        _statistics: DeviceSliceMut<'_>,
    ) {
    }

    fn layer_norm_gradient(
        &self,
        _inputs: [DeviceSlice<'_>; 3],
        _statistics: DeviceSlice<'_>,
        _gradients: [DeviceSliceMut<'_>; 3],
    ) {
    }
}

impl SequenceKernels for PlanningDevice {
    fn attend(
        &self,
        _shape: &Attention,
        _inputs: [DeviceSlice<'_>; 2],
        _lengths: &[usize],
        _y: DeviceSliceMut<'_>,
        _statistics: DeviceSliceMut<'_>,
    ) {
    }

    fn attend_gradient(
        &self,
        _shape: &Attention,
        _format: Option<ShortFormat>,
        _inputs: [DeviceSlice<'_>; 4],
        _lengths: &[usize],
        _gradients: [DeviceSliceMut<'_>; 2],
    ) {
    }

    fn embed(
        &self,
        _width: usize,
        _tokens: DeviceSlice<'_>,
        _tables: [DeviceSlice<'_>; 2],
        _y: DeviceSliceMut<'_>,
    ) {
    }

    fn embed_rows(
        &self,
        _rows: TableRows,
        _tokens: DeviceSlice<'_>,
        _table: DeviceSlice<'_>,
        _y: DeviceSliceMut<'_>,
    ) {
    }

    fn embed_rows_gradient(
        &self,
        _rows: TableRows,
        _tokens: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _gradient: DeviceSliceMut<'_>,
    ) {
    }

    fn embed_gradient(
        &self,
        _width: usize,
        _tokens: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _gradients: [DeviceSliceMut<'_>; 2],
    ) {
    }
}

impl TableKernels for PlanningDevice {
    fn squared_distances(
        &self,
        _width: usize,
        _inputs: [DeviceSlice<'_>; 2],
        _to: DeviceSliceMut<'_>,
    ) {
    }

    fn point_gradients(
        &self,
        _width: usize,
        _inputs: [DeviceSlice<'_>; 2],
        _dy: DeviceSlice<'_>,
        _to: DeviceSliceMut<'_>,
    ) {
    }

    fn centre_gradients(
        &self,
        _width: usize,
        _inputs: [DeviceSlice<'_>; 2],
        _dy: DeviceSlice<'_>,
        _scales: &[f32],
        _to: DeviceSliceMut<'_>,
    ) {
    }

    fn factor_scores(
        &self,
        _factors: usize,
        _pairs: DeviceSlice<'_>,
        _tables: [DeviceSlice<'_>; 5],
        _y: DeviceSliceMut<'_>,
    ) {
    }

    fn factor_gradients(
        &self,
        _factors: usize,
        _pairs: DeviceSlice<'_>,
        _rows: [DeviceSlice<'_>; 2],
        _dy: DeviceSlice<'_>,
        _gradients: [DeviceSliceMut<'_>; 5],
    ) {
    }
}

impl ElementKernels for PlanningDevice {
    fn add(&self, _y: DeviceSliceMut<'_>, _x: DeviceSlice<'_>) {}

    fn multiply_by(&self, _y: DeviceSliceMut<'_>, _factors: DeviceSlice<'_>) {}

    fn rectify(&self, _y: DeviceSliceMut<'_>) {}

    fn rectify_gradient(&self, _y: DeviceSlice<'_>, _dy: DeviceSlice<'_>, _dx: DeviceSliceMut<'_>) {
    }

    fn activate(
        &self,
        _function: ActivationFunction,
        _x: DeviceSlice<'_>,
        _y: DeviceSliceMut<'_>,
        _slope: Option<DeviceSliceMut<'_>>,
    ) {
    }

    fn draw_dropout(
        &self,
        _context: &ForwardContext,
        _probability: f64,
        _index: u64,
        _drawn: DrawnRows,
        _to: DeviceSliceMut<'_>,
    ) {
    }

    fn copy_rows(&self, _copy: RowCopy, _from: DeviceSlice<'_>, _to: DeviceSliceMut<'_>) {}
}

impl PrecisionKernels for PlanningDevice {
    fn round(
        &self,
        _format: ShortFormat,
        _values: DeviceSliceMut<'_>,
        _packed: Option<DeviceSliceMut<'_>>,
    ) {
    }

    fn pack(&self, _format: ShortFormat, _values: DeviceSlice<'_>, _packed: DeviceSliceMut<'_>) {}

    fn unpack(&self, _format: ShortFormat, _packed: DeviceSlice<'_>, _values: DeviceSliceMut<'_>) {}
}
