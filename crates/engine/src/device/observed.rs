//! [`ObservedDevice`]: a device that reports each kernel, for measurements.

mod cost;

use std::sync::Arc;

use cost::KernelCost;
use ronde_kernels::{
    ActivationFunction, Attention, BatchNorm, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::{
    AffineSlices, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, DrawnRows, ElementKernels,
    ImageKernels, MatrixKernels, MatrixSlice, NormKernels, PlaneMap, PrecisionKernels, RowCopy,
    SequenceKernels, TableKernels, TableRows,
};
use crate::context::ForwardContext;

/// One call of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelCall {
    /// The method of the device, such as `convolve_input_gradient`.
    pub kernel: &'static str,
    /// The lengths that determine the cost, such as `256x784 784x1024`.
    pub shape: String,
    /// The multiply-adds of the matrix product that the kernel is equivalent to; 0 for one that moves data.
    pub multiply_adds: f64,
    /// The number of floats of all operands and results that the kernel reads or writes.
    pub floats: usize,
}

/// Receives the kernels of an [`ObservedDevice`], from the thread that runs a layer.
pub trait KernelObserver: Send + Sync {
    /// Called before a kernel.
    fn begin(&self);

    /// Called after the kernel has returned.
    fn end(&self, call: KernelCall);
}

/// Another device, whose kernels are reported to an observer. Bits and buffers are those of the other device.
pub struct ObservedDevice {
    inner: Arc<dyn Device>,
    observer: Arc<dyn KernelObserver>,
}

impl ObservedDevice {
    /// Wraps a device.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, observer: Arc<dyn KernelObserver>) -> Self {
        Self { inner, observer }
    }
}

impl Device for ObservedDevice {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        self.inner.allocate(length)
    }

    fn is_host(&self) -> bool {
        self.inner.is_host()
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        self.inner.write(from, to);
    }

    fn copy(&self, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        self.inner.copy(from, to);
    }

    fn fill(&self, to: DeviceSliceMut<'_>, value: f32) {
        self.inner.fill(to, value);
    }

    fn take_error(&self) -> Option<String> {
        self.inner.take_error()
    }
}

/// An argument of a kernel.
trait KernelArgument {
    /// Returns the number of floats in the device's memory.
    fn floats(&self) -> usize {
        0
    }
}

macro_rules! without_floats {
    ($($kind:ty),* $(,)?) => { $(impl KernelArgument for $kind {})* };
}

without_floats!(
    bool,
    usize,
    u64,
    f64,
    &[usize],
    &[f32],
    &[f64],
    [usize; 2],
    SlidingWindow,
    PlaneMap,
    ShortFormat,
    RowCopy,
    DrawnRows,
    TableRows,
    ActivationFunction,
    &GroupedConvolution,
    &BatchNorm,
    &GroupNorm,
    &Attention,
    &ForwardContext,
);

impl KernelArgument for DeviceSlice<'_> {
    fn floats(&self) -> usize {
        self.length()
    }
}

impl KernelArgument for DeviceSliceMut<'_> {
    fn floats(&self) -> usize {
        self.length()
    }
}

impl KernelArgument for MatrixSlice<'_> {
    fn floats(&self) -> usize {
        self.values.length()
    }
}

impl KernelArgument for AffineSlices<'_> {
    fn floats(&self) -> usize {
        self.gamma.length() + self.beta.length()
    }
}

impl<A: KernelArgument> KernelArgument for Option<A> {
    fn floats(&self) -> usize {
        self.as_ref().map_or(0, A::floats)
    }
}

macro_rules! arrays {
    ($($slice:ident: $count:literal),*) => {
        $(impl KernelArgument for [$slice<'_>; $count] {
            fn floats(&self) -> usize {
                self.iter().map(KernelArgument::floats).sum()
            }
        })*
    };
}

arrays!(DeviceSlice: 2, DeviceSlice: 3, DeviceSlice: 4, DeviceSlice: 5);
arrays!(DeviceSliceMut: 2, DeviceSliceMut: 3, DeviceSliceMut: 5);

/// Implements kernels by those of the other device; the expression is the cost.
macro_rules! kernels {
    ($kernels:ident { $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? = $cost:expr;)* }) => {
        impl $kernels for ObservedDevice {
            $(fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                let cost: KernelCost = $cost;
                let call = KernelCall {
                    kernel: stringify!($name),
                    shape: cost.shape,
                    multiply_adds: cost.multiply_adds,
                    floats: cost.moved.unwrap_or(0 $(+ KernelArgument::floats(&$argument))*),
                };
                self.observer.begin();
                let result = self.inner.$name($($argument),*);
                self.observer.end(call);
                result
            })*
        }
    };
}

kernels!(MatrixKernels {
    fn multiply(
        left: MatrixSlice<'_>,
        right: MatrixSlice<'_>,
        to: DeviceSliceMut<'_>,
        adds: bool,
    ) = KernelCost::product(&left, &right);
    fn repeat_row(row: DeviceSlice<'_>, to: DeviceSliceMut<'_>) = KernelCost::floats(to.floats());
    fn sum_rows(rows: DeviceSlice<'_>, to: DeviceSliceMut<'_>) = KernelCost::floats(rows.length());
});

kernels!(ImageKernels {
    fn convolve(
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        x: DeviceSlice<'_>,
        w: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    ) = KernelCost::convolution(shape, samples);
    fn convolve_input_gradient(
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        w: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) = KernelCost::convolution(shape, samples);
    fn convolve_weight_gradient(
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dw: DeviceSliceMut<'_>,
    ) = KernelCost::convolution(shape, samples);
    fn add_to_channels(
        y: DeviceSliceMut<'_>,
        places: usize,
        added: DeviceSlice<'_>,
    ) = KernelCost::floats(y.floats());
    fn sum_channels(x: DeviceSlice<'_>, places: usize, to: DeviceSliceMut<'_>) = KernelCost::floats(x.length());
    fn max_pool(
        size: [usize; 2],
        window: SlidingWindow,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        from: DeviceSliceMut<'_>,
    ) = KernelCost::floats(x.length());
    fn max_pool_gradient(
        size: [usize; 2],
        window: SlidingWindow,
        dy: DeviceSlice<'_>,
        from: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) = KernelCost::floats(dx.floats());
    fn map_planes(map: PlaneMap, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>) = KernelCost::floats(x.length());
    fn map_planes_gradient(
        map: PlaneMap,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) = KernelCost::floats(dx.floats());
});

kernels!(NormKernels {
    fn batch_norm(
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) = KernelCost::batch_norm(shape);
    fn batch_norm_by(
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSlice<'_>,
    ) = KernelCost::batch_norm(shape);
    fn batch_norm_gradient(
        shape: &BatchNorm,
        inputs: [DeviceSlice<'_>; 4],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
        of_added: Option<DeviceSliceMut<'_>>,
    ) = KernelCost::batch_norm(shape);
    fn known_statistics(
        running: [DeviceSlice<'_>; 2],
        epsilon: f64,
        statistics: DeviceSliceMut<'_>,
    ) = KernelCost::floats(statistics.floats());
    fn move_statistics(
        running: [DeviceSlice<'_>; 2],
        statistics: DeviceSlice<'_>,
        momentum: f64,
        to: [DeviceSliceMut<'_>; 2],
    ) = KernelCost::floats(statistics.length());
    fn batch_moments(shape: &BatchNorm, x: DeviceSlice<'_>) -> Vec<f64> = KernelCost::batch_norm(shape);
    fn batch_gradient_sums(
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
    ) -> Vec<f64> = KernelCost::batch_norm(shape);
    fn batch_input_gradient(
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        gamma: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
        summed: &[f64],
        dy: DeviceSliceMut<'_>,
    ) = KernelCost::batch_norm(shape);
    fn batch_affine_gradients(
        shape: &BatchNorm,
        own: &[f64],
        statistics: DeviceSlice<'_>,
        to: [DeviceSliceMut<'_>; 2],
    ) = KernelCost::batch_norm(shape);
    fn group_norm(
        shape: &GroupNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) = KernelCost::group_norm(shape);
    fn group_norm_gradient(
        shape: &GroupNorm,
        inputs: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
    ) = KernelCost::group_norm(shape);
    fn layer_norm(
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        epsilon: f64,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) = KernelCost::floats(x.length());
    fn layer_norm_gradient(
        inputs: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
    ) = KernelCost::floats(inputs[0].length());
});

kernels!(SequenceKernels {
    fn attend(
        shape: &Attention,
        inputs: [DeviceSlice<'_>; 2],
        lengths: &[usize],
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) = KernelCost::attention(shape, 2.0);
    fn attend_gradient(
        shape: &Attention,
        format: Option<ShortFormat>,
        inputs: [DeviceSlice<'_>; 4],
        lengths: &[usize],
        gradients: [DeviceSliceMut<'_>; 2],
    ) = KernelCost::attention(shape, 5.0);
    fn embed(
        width: usize,
        tokens: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 2],
        y: DeviceSliceMut<'_>,
    ) = KernelCost::floats(y.floats());
    fn embed_rows(
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        table: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    ) = KernelCost::floats(y.floats());
    fn embed_rows_gradient(
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradient: DeviceSliceMut<'_>,
    ) = KernelCost::floats(dy.length());
    fn embed_gradient(
        width: usize,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 2],
    ) = KernelCost::floats(dy.length());
});

kernels!(TableKernels {
    fn squared_distances(
        width: usize,
        inputs: [DeviceSlice<'_>; 2],
        to: DeviceSliceMut<'_>,
    ) = KernelCost::distances(to.floats(), width);
    fn point_gradients(
        width: usize,
        inputs: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        to: DeviceSliceMut<'_>,
    ) = KernelCost::distances(dy.length(), width);
    fn centre_gradients(
        width: usize,
        inputs: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        scales: &[f32],
        to: DeviceSliceMut<'_>,
    ) = KernelCost::distances(dy.length(), width);
    fn factor_scores(
        factors: usize,
        pairs: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 5],
        y: DeviceSliceMut<'_>,
    ) = KernelCost::distances(y.floats(), factors);
    fn factor_gradients(
        factors: usize,
        pairs: DeviceSlice<'_>,
        rows: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 5],
    ) = KernelCost::distances(dy.length(), factors);
});

kernels!(ElementKernels {
    fn draw_dropout(context: &ForwardContext, probability: f64, index: u64, drawn: DrawnRows, to: DeviceSliceMut<'_>) = KernelCost::floats(to.floats());
    fn add(y: DeviceSliceMut<'_>, x: DeviceSlice<'_>) = KernelCost::floats(x.length());
    fn multiply_by(y: DeviceSliceMut<'_>, factors: DeviceSlice<'_>) = KernelCost::floats(factors.length());
    fn rectify(y: DeviceSliceMut<'_>) = KernelCost::floats(y.floats());
    fn rectify_gradient(
        y: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    ) = KernelCost::floats(y.length());
    fn activate(
        function: ActivationFunction,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        slope: Option<DeviceSliceMut<'_>>,
    ) = KernelCost::floats(x.length());
    fn copy_rows(copy: RowCopy, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>) = KernelCost::copy(copy, to.floats());
});

kernels!(PrecisionKernels {
    fn round(
        format: ShortFormat,
        values: DeviceSliceMut<'_>,
    ) = KernelCost::floats(values.floats());
    fn pack(
        format: ShortFormat,
        values: DeviceSlice<'_>,
        packed: DeviceSliceMut<'_>,
    ) = KernelCost::floats(values.length());
    fn unpack(
        format: ShortFormat,
        packed: DeviceSlice<'_>,
        values: DeviceSliceMut<'_>,
    ) = KernelCost::floats(values.floats());
});

#[cfg(test)]
mod tests;
