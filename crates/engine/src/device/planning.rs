//! [`PlanningDevice`]: a device that computes nothing and counts memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ronde_kernels::{
    ActivationFunction, Attention, BatchNorm, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::{
    AffineSlices, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, ElementKernels, ForeignMemory,
    ImageKernels, MatrixKernels, MatrixSlice, NormKernels, PlaneMap, PrecisionKernels, RowCopy,
    SequenceKernels, TableKernels,
};

/// Plans memory: runs the code of layers without values, and counts the memory that they allocate. A pass costs
/// microseconds, whatever the model's size. Values read from it are zeros.
#[derive(Debug, Default)]
pub struct PlanningDevice {
    used: Arc<MemoryCounter>,
}

#[derive(Debug, Default)]
struct MemoryCounter {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// The memory of a device in use, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// At present.
    pub now: usize,
    /// The most at any time.
    pub peak: usize,
}

impl PlanningDevice {
    /// Creates a device without memory in use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the memory in use.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            now: self.used.now.load(Ordering::Relaxed),
            peak: self.used.peak.load(Ordering::Relaxed),
        }
    }
}

/// The length of memory that does not exist.
struct PlannedMemory {
    length: usize,
    used: Arc<MemoryCounter>,
}

impl Drop for PlannedMemory {
    fn drop(&mut self) {
        self.used.now.fetch_sub(self.length, Ordering::Relaxed);
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
        let now = self.used.now.fetch_add(length, Ordering::Relaxed) + length;
        self.used.peak.fetch_max(now, Ordering::Relaxed);
        DeviceBuffer::Foreign(Box::new(PlannedMemory {
            length,
            used: self.used.clone(),
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
        _samples: usize,
        _x: DeviceSlice<'_>,
        _w: DeviceSlice<'_>,
        _y: DeviceSliceMut<'_>,
    ) {
    }

    fn convolve_input_gradient(
        &self,
        _shape: &GroupedConvolution,
        _samples: usize,
        _w: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
        _dx: DeviceSliceMut<'_>,
    ) {
    }

    fn convolve_weight_gradient(
        &self,
        _shape: &GroupedConvolution,
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
        _weights: DeviceSliceMut<'_>,
    ) {
    }

    fn attend_gradient(
        &self,
        _shape: &Attention,
        _inputs: [DeviceSlice<'_>; 2],
        _lengths: &[usize],
        _weights: DeviceSlice<'_>,
        _dy: DeviceSlice<'_>,
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
