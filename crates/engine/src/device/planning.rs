//! [`PlanningDevice`]: a device that computes nothing and counts memory.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_kernels::{
    ActivationFunction, Attention, BatchNorm, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::{
    AffineSlices, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, DrawnRows, ElementKernels,
    ForeignMemory, ImageKernels, MatrixKernels, MatrixSlice, NormKernels, PlaneMap,
    PrecisionKernels, RowCopy, SequenceKernels, TableKernels, TableRows,
};
use crate::context::ForwardContext;
use crate::memory::{LENGTH_MIN, MemoryUse, Placement, Placements};

/// Plans memory: runs the code of layers without values, and counts the memory that they take on the host, at the offsets
/// of the host. A pass costs microseconds per operation, whatever the model's size. Values read from it are zeros.
#[derive(Debug, Default)]
pub struct PlanningDevice {
    planned: Arc<Mutex<PlannedUse>>,
}

#[derive(Debug, Default)]
struct PlannedUse {
    /// Blocks in slabs; new blocks belong to the last one.
    placements: Vec<Placements>,
    /// The floats on the heap, now and at most.
    heap: usize,
    heap_most: usize,
}

impl PlanningDevice {
    /// Creates a device without memory in use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans further blocks in slabs of their own: the host does not need memory like the earlier ones.
    pub(crate) fn start_slabs(&self) {
        locked(&self.planned).placements.push(Placements::default());
    }

    /// Returns values that the host has on its heap, such as samples.
    pub(crate) fn on_heap(&self, length: usize) -> DeviceBuffer {
        let mut planned = locked(&self.planned);
        planned.heap += length;
        planned.heap_most = planned.heap_most.max(planned.heap);
        drop(planned);
        self.buffer(None, length)
    }

    fn buffer(&self, placement: Option<(usize, Placement)>, length: usize) -> DeviceBuffer {
        DeviceBuffer::Foreign(Box::new(PlannedMemory {
            placement,
            length,
            planned: self.planned.clone(),
        }))
    }

    /// Returns the memory taken so far.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let planned = locked(&self.planned);
        let mut all = MemoryUse {
            in_use: planned.heap,
            taken: planned.heap_most,
        };
        for slabs in planned.placements.iter().map(Placements::memory) {
            all.in_use += slabs.in_use;
            all.taken += slabs.taken;
        }
        all
    }
}

fn locked(planned: &Mutex<PlannedUse>) -> MutexGuard<'_, PlannedUse> {
    planned.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PlannedMemory {
    /// The number of the slabs and the place in them; `None` on the heap.
    placement: Option<(usize, Placement)>,
    length: usize,
    planned: Arc<Mutex<PlannedUse>>,
}

impl Drop for PlannedMemory {
    fn drop(&mut self) {
        let mut planned = locked(&self.planned);
        match self.placement {
            Some((slabs, placement)) => planned.placements[slabs].give(placement),
            None => planned.heap -= self.length,
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
        if length < LENGTH_MIN {
            return self.on_heap(length);
        }
        let mut planned = locked(&self.planned);
        if planned.placements.is_empty() {
            planned.placements.push(Placements::default());
        }
        let slabs = planned.placements.len() - 1;
        let placement = planned.placements[slabs].take(length);
        drop(planned);
        self.buffer(Some((slabs, placement)), length)
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
    fn round(&self, _format: ShortFormat, _values: DeviceSliceMut<'_>) {}

    fn pack(&self, _format: ShortFormat, _values: DeviceSlice<'_>, _packed: DeviceSliceMut<'_>) {}

    fn unpack(&self, _format: ShortFormat, _packed: DeviceSlice<'_>, _values: DeviceSliceMut<'_>) {}
}
