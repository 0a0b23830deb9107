//! [`Kernel`]: a kernel of a device with its operands, as data.
//!
//! Shapes: N samples, C channels, P positions of a channel (height times width), T and S positions of a sequence, E width.
//! All values are row-major, the first dimension outermost. A kernel writes all of its outputs, except where it updates them.
//! Without samples, rows or terms it writes zeros to sums and gradients, and nothing else.
//!
//! NaN and infinite values are not hidden: NaN in an input makes each output NaN that depends on it, unless the kernel
//! states another result, and infinite values give what arithmetic in f32 gives, `0 * infinity` being NaN. Samples do not
//! affect each other, except through statistics of a batch. [`check_device`](crate::check_device) checks all of this.
//!
//! Each kernel is a struct of its operands and settings. A table per family ([`MatrixKernels`] and so on) names the operands with
//! their access; it defines the struct, [`Kernel::map`], which changes the form of all operands (to those of another device, of
//! a queue or of the host), and [`Kernel::each_operand`].

mod element;
mod format;
mod image;
mod matrix;
mod norm;
mod operands;
mod sequence;
mod table;
mod work;

pub use element::{
    ActivateKernel, AddExactKernel, AddKernel, CopyKernel, CopyRowsKernel, DrawDropoutKernel,
    DrawnRows, ElementKernels, FillKernel, MultiplyByKernel, RectifyGradientKernel, RectifyKernel,
    RowCopy,
};
pub use format::{FormatKernels, PackKernel, RoundKernel, UnpackKernel};
pub use image::{
    AddToChannelsKernel, ConvolveInputGradientKernel, ConvolveKernel,
    ConvolveShardsWeightGradientKernel, ConvolveWeightGradientKernel, ImageKernels,
    MapPlanesGradientKernel, MapPlanesKernel, MaxPoolGradientKernel, MaxPoolKernel, PlaneMap,
    SumChannelsKernel,
};
pub use matrix::{
    MatrixKernels, MatrixOf, MatrixSlice, MultiplyKernel, MultiplyShardsKernel, RepeatRowKernel,
    SumRowsKernel,
};
pub use norm::{
    BatchAffineGradientsKernel, BatchGradientSumsKernel, BatchInputGradientKernel,
    BatchMomentsKernel, BatchNormByKernel, BatchNormGradientKernel, BatchNormKernel,
    GroupNormGradientKernel, GroupNormKernel, KnownStatisticsKernel, LayerNormGradientKernel,
    LayerNormKernel, MoveStatisticsKernel, NormKernels,
};
pub use operands::{
    KernelMemory, KernelOperand, MapOperands, OnDevice, OnHost, OperandLength, WriteAccess,
};
pub use sequence::{
    AttendGradientKernel, AttendKernel, EmbedGradientKernel, EmbedKernel, EmbedRowsGradientKernel,
    EmbedRowsKernel, SequenceKernels, TableRows,
};
pub use table::{
    CentreGradientsKernel, FactorGradientsKernel, FactorScoresKernel, PointGradientsKernel,
    SquaredDistancesKernel, TableKernels,
};
pub use work::KernelWork;

use super::buffer::{DeviceSlice, DeviceSliceMut};

/// Views operands in ordinary memory.
struct ViewOnHost;

impl<'a> MapOperands<OnDevice<'a>, OnHost<'a>> for ViewOnHost {
    fn read(&mut self, operand: DeviceSlice<'a>) -> &'a [f32] {
        operand.host()
    }

    fn write(&mut self, operand: DeviceSliceMut<'a>, _access: WriteAccess) -> &'a mut [f32] {
        operand.host()
    }
}

macro_rules! families {
    ($($(#[$doc:meta])* $variant:ident($family:ident),)*) => {
        /// A kernel with its operands and settings.
        pub enum Kernel<M: KernelMemory> {
            $($(#[$doc])* $variant($family<M>),)*
        }

        impl<M: KernelMemory> Kernel<M> {
            /// Returns the names of all kernels.
            #[must_use]
            pub fn names() -> Vec<&'static str> {
                [$($family::<M>::NAMES),*].concat()
            }

            /// Returns the name, such as `convolve_input_gradient`.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(kernel) => kernel.name(),)*
                }
            }

            /// Changes the form of all operands, in the order of [`Kernel::each_operand`].
            pub fn map<N: KernelMemory>(self, change: &mut impl MapOperands<M, N>) -> Kernel<N> {
                match self {
                    $(Self::$variant(kernel) => Kernel::$variant(kernel.map(change)),)*
                }
            }

            /// Calls a function with each operand.
            pub fn each_operand(&self, see: &mut dyn FnMut(KernelOperand<'_, M>)) {
                match self {
                    $(Self::$variant(kernel) => kernel.each_operand(see),)*
                }
            }
        }

        $(
            impl<M: KernelMemory> From<$family<M>> for Kernel<M> {
                fn from(kernel: $family<M>) -> Self {
                    Self::$variant(kernel)
                }
            }
        )*
    };
}

families! {
    /// Matrix products and sums over rows.
    Matrix(MatrixKernels),
    /// Convolution and pooling.
    Image(ImageKernels),
    /// Normalisations.
    Norm(NormKernels),
    /// Attention and embeddings.
    Sequence(SequenceKernels),
    /// Distances from rows of tables, and products of chosen rows.
    Table(TableKernels),
    /// Functions of single elements, and copies.
    Element(ElementKernels),
    /// Rounding to short formats, and storage in 2 bytes.
    Format(FormatKernels),
}

impl<'a> Kernel<OnDevice<'a>> {
    /// Returns the kernel with its operands in ordinary memory.
    ///
    /// # Panics
    /// When an operand is in memory that only its device can address.
    #[must_use]
    pub fn on_host(self) -> Kernel<OnHost<'a>> {
        self.map(&mut ViewOnHost)
    }
}

/// A kernel for a device to run.
pub type DeviceKernel<'a> = Kernel<OnDevice<'a>>;
