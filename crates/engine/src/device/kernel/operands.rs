//! [`KernelMemory`]: the form of the operands of kernels, and the table from which kernels are defined.

use std::marker::PhantomData;

use crate::device::buffer::{DeviceSlice, DeviceSliceMut};

/// The form in which a kernel has its operands.
pub trait KernelMemory {
    /// An operand that is read.
    type Read: OperandLength;
    /// An operand that is written.
    type Write: OperandLength;
}

/// Floats of a known number.
pub trait OperandLength {
    /// Returns the number of floats.
    fn floats(&self) -> usize;
}

/// Operands in the memory of a device.
pub struct OnDevice<'a>(PhantomData<&'a ()>);

impl<'a> KernelMemory for OnDevice<'a> {
    type Read = DeviceSlice<'a>;
    type Write = DeviceSliceMut<'a>;
}

impl OperandLength for DeviceSlice<'_> {
    fn floats(&self) -> usize {
        self.length()
    }
}

impl OperandLength for DeviceSliceMut<'_> {
    fn floats(&self) -> usize {
        self.length()
    }
}

/// Operands in ordinary memory.
pub struct OnHost<'a>(PhantomData<&'a ()>);

impl<'a> KernelMemory for OnHost<'a> {
    type Read = &'a [f32];
    type Write = &'a mut [f32];
}

impl OperandLength for &[f32] {
    fn floats(&self) -> usize {
        self.len()
    }
}

impl OperandLength for &mut [f32] {
    fn floats(&self) -> usize {
        self.len()
    }
}

/// How a kernel uses an operand that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAccess {
    /// All values are replaced, whatever they were.
    Write,
    /// Values depend on the values before, or some remain.
    Update,
}

/// An operand of a kernel.
pub enum KernelOperand<'k, M: KernelMemory> {
    /// Values that are read.
    Read(&'k M::Read),
    /// Values that are written.
    Write(&'k M::Write, WriteAccess),
}

impl<M: KernelMemory> KernelOperand<'_, M> {
    /// Returns the number of floats.
    #[must_use]
    pub fn floats(&self) -> usize {
        match self {
            Self::Read(values) => values.floats(),
            Self::Write(values, _) => values.floats(),
        }
    }
}

/// A change of the form of operands.
pub trait MapOperands<M: KernelMemory, N: KernelMemory> {
    /// Returns the new form of an operand that is read.
    fn read(&mut self, operand: M::Read) -> N::Read;

    /// Returns the new form of an operand that is written.
    fn write(&mut self, operand: M::Write, access: WriteAccess) -> N::Write;
}

/// Defines the kernels of a family from a table of their operands and settings. The access of an operand is `read`, `write` or
/// `update`; `read_optional` and `write_optional` for one that may be absent; `read_matrix` for a [`MatrixOf`]; and
/// `write_or_update`, which updates if the setting `adds` is true.
macro_rules! kernels {
    (
        $(#[$family_doc:meta])*
        $family:ident {
            $(
                $(#[$doc:meta])*
                $name:ident as $variant:ident, $label:literal {
                    $($access:ident $operand:ident,)*
                    $(; $($(#[$setting_doc:meta])* $setting:ident: $kind:ty,)*)?
                }
            )*
        }
    ) => {
        $(#[$family_doc])*
        pub enum $family<M: $crate::device::kernel::KernelMemory> {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $variant($name<M>),
            )*
        }

        impl<M: $crate::device::kernel::KernelMemory> $family<M> {
            pub(super) const NAMES: &'static [&'static str] = &[$($label),*];

            pub(super) fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $label,)*
                }
            }

            pub(super) fn map<N: $crate::device::kernel::KernelMemory>(
                self,
                change: &mut impl $crate::device::kernel::MapOperands<M, N>,
            ) -> $family<N> {
                match self {
                    $(Self::$variant(kernel) => $family::$variant(kernel.map(change)),)*
                }
            }

            pub(super) fn each_operand(
                &self,
                see: &mut dyn FnMut($crate::device::kernel::KernelOperand<'_, M>),
            ) {
                match self {
                    $(Self::$variant(kernel) => kernel.each_operand(see),)*
                }
            }
        }

        $(
            $(#[$doc])*
            pub struct $name<M: $crate::device::kernel::KernelMemory> {
                $(
                    #[doc = $crate::device::kernel::operands::operand_doc!($access)]
                    pub $operand: $crate::device::kernel::operands::operand_type!($access, M),
                )*
                $($($(#[$setting_doc])* pub $setting: $kind,)*)?
            }

            impl<M: $crate::device::kernel::KernelMemory> $name<M> {
                fn map<N: $crate::device::kernel::KernelMemory>(
                    self,
                    change: &mut impl $crate::device::kernel::MapOperands<M, N>,
                ) -> $name<N> {
                    let kernel = self;
                    $name {
                        $(
                            $operand: $crate::device::kernel::operands::mapped_operand!(
                                $access, kernel, $operand, change
                            ),
                        )*
                        $($($setting: kernel.$setting,)*)?
                    }
                }

                fn each_operand(&self, see: &mut dyn FnMut($crate::device::kernel::KernelOperand<'_, M>)) {
                    let kernel = self;
                    $($crate::device::kernel::operands::seen_operand!($access, kernel, $operand, see);)*
                }
            }

            impl $name<$crate::device::kernel::OnDevice<'_>> {
                /// Runs the kernel on a device.
                pub fn run_on(self, device: &dyn $crate::device::Device) {
                    device.run(self.into());
                }
            }

            impl<M: $crate::device::kernel::KernelMemory> From<$name<M>> for $crate::device::Kernel<M> {
                fn from(kernel: $name<M>) -> Self {
                    $family::$variant(kernel).into()
                }
            }
        )*
    };
}
pub(super) use kernels;

macro_rules! operand_doc {
    (read) => {
        "Values that the kernel reads."
    };
    (write) => {
        "Values that the kernel writes."
    };
    (update) => {
        "Values that the kernel changes."
    };
    (read_optional) => {
        "Values that the kernel reads, if there are any."
    };
    (write_optional) => {
        "Values that the kernel writes, if they are wanted."
    };
    (read_matrix) => {
        "A matrix that the kernel reads."
    };
    (write_or_update) => {
        "Values that the kernel writes, or adds to."
    };
}
pub(super) use operand_doc;

macro_rules! operand_type {
    (read, $m:ident) => { $m::Read };
    (write, $m:ident) => { $m::Write };
    (update, $m:ident) => { $m::Write };
    (read_optional, $m:ident) => { Option<$m::Read> };
    (write_optional, $m:ident) => { Option<$m::Write> };
    (read_matrix, $m:ident) => { $crate::device::kernel::MatrixOf<$m::Read> };
    (write_or_update, $m:ident) => { $m::Write };
}
pub(super) use operand_type;

macro_rules! mapped_operand {
    (read, $kernel:ident, $operand:ident, $change:ident) => {
        $change.read($kernel.$operand)
    };
    (write, $kernel:ident, $operand:ident, $change:ident) => {
        $change.write($kernel.$operand, $crate::device::kernel::WriteAccess::Write)
    };
    (update, $kernel:ident, $operand:ident, $change:ident) => {
        $change.write(
            $kernel.$operand,
            $crate::device::kernel::WriteAccess::Update,
        )
    };
    (read_optional, $kernel:ident, $operand:ident, $change:ident) => {
        $kernel.$operand.map(|operand| $change.read(operand))
    };
    (write_optional, $kernel:ident, $operand:ident, $change:ident) => {
        $kernel
            .$operand
            .map(|operand| $change.write(operand, $crate::device::kernel::WriteAccess::Write))
    };
    (read_matrix, $kernel:ident, $operand:ident, $change:ident) => {
        $kernel.$operand.map(|values| $change.read(values))
    };
    (write_or_update, $kernel:ident, $operand:ident, $change:ident) => {
        $change.write(
            $kernel.$operand,
            $crate::device::kernel::operands::adding_access($kernel.adds),
        )
    };
}
pub(super) use mapped_operand;

macro_rules! seen_operand {
    (read, $kernel:ident, $operand:ident, $see:ident) => {
        $see($crate::device::kernel::KernelOperand::Read(
            &$kernel.$operand,
        ))
    };
    (write, $kernel:ident, $operand:ident, $see:ident) => {
        $see($crate::device::kernel::KernelOperand::Write(
            &$kernel.$operand,
            $crate::device::kernel::WriteAccess::Write,
        ))
    };
    (update, $kernel:ident, $operand:ident, $see:ident) => {
        $see($crate::device::kernel::KernelOperand::Write(
            &$kernel.$operand,
            $crate::device::kernel::WriteAccess::Update,
        ))
    };
    (read_optional, $kernel:ident, $operand:ident, $see:ident) => {
        if let Some(operand) = &$kernel.$operand {
            $see($crate::device::kernel::KernelOperand::Read(operand))
        }
    };
    (write_optional, $kernel:ident, $operand:ident, $see:ident) => {
        if let Some(operand) = &$kernel.$operand {
            $see($crate::device::kernel::KernelOperand::Write(
                operand,
                $crate::device::kernel::WriteAccess::Write,
            ))
        }
    };
    (read_matrix, $kernel:ident, $operand:ident, $see:ident) => {
        $see($crate::device::kernel::KernelOperand::Read(
            &$kernel.$operand.values,
        ))
    };
    (write_or_update, $kernel:ident, $operand:ident, $see:ident) => {
        $see($crate::device::kernel::KernelOperand::Write(
            &$kernel.$operand,
            $crate::device::kernel::operands::adding_access($kernel.adds),
        ))
    };
}
pub(super) use seen_operand;

/// Returns the access to an output to which a kernel may add.
pub(super) fn adding_access(adds: bool) -> WriteAccess {
    if adds {
        WriteAccess::Update
    } else {
        WriteAccess::Write
    }
}
