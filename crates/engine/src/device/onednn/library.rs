//! [`OneDnnLibrary`]: the C interface of oneDNN, loaded at run time.
//!
//! Versions 2 and 3 differ in how descriptors are created; all other functions are the same.
#![expect(unsafe_code, reason = "functions of a C library")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// An object of the library, or a pointer to one.
type Handle = *mut c_void;

/// Lengths of a tensor, or numbers for its dimensions, as the library reads them.
type Dimensions = [i64; 12];

/// The file names of the versions that have the functions below, newest first.
const FILES: [&str; 2] = ["libdnnl.so.3", "libdnnl.so.2"];

/// `dnnl_f32`.
const F32: c_int = 3;
/// `dnnl_format_tag_any`: the library chooses the order of the elements.
const ANY_FORMAT: c_int = 1;
/// `dnnl_cpu`.
const CPU: c_int = 1;
/// `dnnl_stream_in_order`.
const IN_ORDER: c_uint = 1;
/// `dnnl_forward_training`.
const FORWARD: c_int = 64;
/// `dnnl_convolution_direct`.
const DIRECT: c_int = 1;

/// The start of `dnnl_version_t`.
#[repr(C)]
struct LibraryVersion {
    major: c_int,
    minor: c_int,
    patch: c_int,
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExecutionArgument {
    number: c_int,
    memory: Handle,
}

impl ExecutionArgument {
    const NONE: Self = Self {
        number: 0,
        memory: std::ptr::null_mut(),
    };
}

/// Declares functions of the library, by the name of the field and of the symbol.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal: fn($($argument:ty),*) -> $output:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name {
            $($field: unsafe extern "C" fn($($argument),*) -> $output,)*
        }

        impl $name {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the library's header.
                unsafe { Ok(Self { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    /// Functions of all supported versions.
    CommonFunctions {
        version = b"dnnl_version\0": fn() -> *const LibraryVersion,
        instructions = b"dnnl_get_effective_cpu_isa\0": fn() -> c_int,
        set_threads = b"omp_set_num_threads\0": fn(c_int) -> (),
        create_engine = b"dnnl_engine_create\0": fn(*mut Handle, c_int, usize) -> c_int,
        create_stream = b"dnnl_stream_create\0": fn(*mut Handle, Handle, c_uint) -> c_int,
        create_memory = b"dnnl_memory_create\0": fn(*mut Handle, *const c_void, Handle, Handle) -> c_int,
        destroy_memory = b"dnnl_memory_destroy\0": fn(Handle) -> c_int,
        point_memory = b"dnnl_memory_set_data_handle\0": fn(Handle, Handle) -> c_int,
        memory_bytes = b"dnnl_memory_desc_get_size\0": fn(*const c_void) -> usize,
        is_equal = b"dnnl_memory_desc_equal\0": fn(*const c_void, *const c_void) -> c_int,
        query_memory = b"dnnl_primitive_desc_query_md\0": fn(Handle, c_int, c_int) -> *const c_void,
        create_reorder = b"dnnl_reorder_primitive_desc_create\0":
            fn(*mut Handle, *const c_void, Handle, *const c_void, Handle, Handle) -> c_int,
        destroy_description = b"dnnl_primitive_desc_destroy\0": fn(Handle) -> c_int,
        create_primitive = b"dnnl_primitive_create\0": fn(*mut Handle, Handle) -> c_int,
        destroy_primitive = b"dnnl_primitive_destroy\0": fn(Handle) -> c_int,
        execute = b"dnnl_primitive_execute\0": fn(Handle, Handle, c_int, *const ExecutionArgument) -> c_int,
        multiply = b"dnnl_sgemm\0":
            fn(c_char, c_char, i64, i64, i64, f32, *const f32, i64, *const f32, i64, f32, *mut f32, i64) -> c_int,
    }
}

functions! {
    /// How version 2 creates descriptors: in memory of the caller.
    Version2 {
        with_strides = b"dnnl_memory_desc_init_by_strides\0":
            fn(Handle, c_int, *const i64, c_int, *const i64) -> c_int,
        with_tag = b"dnnl_memory_desc_init_by_tag\0": fn(Handle, c_int, *const i64, c_int, c_int) -> c_int,
        forward = b"dnnl_convolution_forward_desc_init\0":
            fn(Handle, c_int, c_int, Handle, Handle, Handle, Handle, *const i64, *const i64, *const i64) -> c_int,
        input_gradient = b"dnnl_convolution_backward_data_desc_init\0":
            fn(Handle, c_int, Handle, Handle, Handle, *const i64, *const i64, *const i64) -> c_int,
        weight_gradient = b"dnnl_convolution_backward_weights_desc_init\0":
            fn(Handle, c_int, Handle, Handle, Handle, Handle, *const i64, *const i64, *const i64) -> c_int,
        create = b"dnnl_primitive_desc_create\0": fn(*mut Handle, Handle, Handle, Handle, Handle) -> c_int,
    }
}

functions! {
    /// How version 3 creates descriptors: as objects.
    Version3 {
        with_strides = b"dnnl_memory_desc_create_with_strides\0":
            fn(*mut Handle, c_int, *const i64, c_int, *const i64) -> c_int,
        with_tag = b"dnnl_memory_desc_create_with_tag\0":
            fn(*mut Handle, c_int, *const i64, c_int, c_int) -> c_int,
        destroy = b"dnnl_memory_desc_destroy\0": fn(Handle) -> c_int,
        forward = b"dnnl_convolution_forward_primitive_desc_create\0":
            fn(*mut Handle, Handle, c_int, c_int, Handle, Handle, Handle, Handle,
               *const i64, *const i64, *const i64, *const i64, Handle) -> c_int,
        input_gradient = b"dnnl_convolution_backward_data_primitive_desc_create\0":
            fn(*mut Handle, Handle, c_int, Handle, Handle, Handle,
               *const i64, *const i64, *const i64, *const i64, Handle, Handle) -> c_int,
        weight_gradient = b"dnnl_convolution_backward_weights_primitive_desc_create\0":
            fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, Handle,
               *const i64, *const i64, *const i64, *const i64, Handle, Handle) -> c_int,
    }
}

enum VersionFunctions {
    Two(Version2),
    Three(Version3),
}

/// The loaded library, with an engine and a stream for the processor.
pub(super) struct OneDnnLibrary {
    common: CommonFunctions,
    by_version: VersionFunctions,
    engine: Handle,
    stream: Handle,
    version: String,
}

// SAFETY: the engine and the stream are only passed to the library, whose functions may be called by any thread; the
// stream of the processor runs a primitive on the calling thread and its team.
unsafe impl Send for OneDnnLibrary {}
// SAFETY: as above.
unsafe impl Sync for OneDnnLibrary {}

/// Returns a message for a status that is not success.
fn checked(status: c_int, action: &str) -> Result<(), String> {
    match status {
        0 => Ok(()),
        1 => Err(format!("oneDNN cannot {action}: out of memory")),
        3 => Err(format!("oneDNN cannot {action}: not implemented")),
        status => Err(format!("oneDNN cannot {action}: status {status}")),
    }
}

impl OneDnnLibrary {
    /// Returns the library, which is loaded by the first call and then kept.
    ///
    /// # Errors
    /// If it is not installed, or has not the needed functions.
    pub(super) fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<OneDnnLibrary, String>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| Self::load(FILES))
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load(files: [&str; 2]) -> Result<Self, String> {
        // SAFETY: loading runs the initialisers of oneDNN and of its OpenMP, which have no conditions.
        let open = |file: &&str| unsafe { Library::new(*file) }.ok();
        let Some(library) = files.iter().find_map(open) else {
            let [newest, oldest] = files;
            return Err(format!("neither `{newest}` nor `{oldest}` is installed"));
        };
        // The functions are used until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        let lacks = |source: libloading::Error| {
            format!("the installed oneDNN is too old, or was built without OpenMP: {source}")
        };
        let common = CommonFunctions::load(library).map_err(lacks)?;
        // SAFETY: the library returns a pointer to a constant.
        let LibraryVersion {
            major,
            minor,
            patch,
        } = unsafe { &*(common.version)() };
        let by_version = if *major >= 3 {
            VersionFunctions::Three(Version3::load(library).map_err(lacks)?)
        } else {
            VersionFunctions::Two(Version2::load(library).map_err(lacks)?)
        };
        let (mut engine, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both write a handle to the given variable.
        unsafe {
            checked(
                (common.create_engine)(&raw mut engine, CPU, 0),
                "create an engine",
            )?;
            let status = (common.create_stream)(&raw mut stream, engine, IN_ORDER);
            checked(status, "create a stream")?;
        }
        // SAFETY: without conditions.
        let instructions = unsafe { (common.instructions)() };
        Ok(Self {
            common,
            by_version,
            engine,
            stream,
            version: format!("{major}.{minor}.{patch} (instruction set {instructions:#x})"),
        })
    }

    /// Returns the version and the instruction sets in use.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Sets the number of threads of the calling thread's next calls. Cost: a store.
    pub(super) fn set_threads(&self, threads: usize) {
        // SAFETY: without conditions.
        unsafe { (self.common.set_threads)(c_int::try_from(threads).unwrap_or(c_int::MAX)) };
    }

    /// Computes `to = left * right`, or `to += ..` if `adds`, of row-major matrices `[rows, depth]` and `[depth, columns]`;
    /// each operand has the distance of its stored rows, and whether the stored matrix is the transposed one.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If an operand has another number of elements.
    pub(super) fn multiply(
        &self,
        [rows, depth, columns]: [usize; 3],
        [left, right]: [(&[f32], usize, bool); 2],
        to: &mut [f32],
        adds: bool,
    ) -> Result<(), String> {
        assert_eq!(left.0.len(), rows * depth, "elements of the left matrix");
        assert_eq!(
            right.0.len(),
            depth * columns,
            "elements of the right matrix"
        );
        assert_eq!(to.len(), rows * columns, "elements of the product");
        let letter = |is_transposed| if is_transposed { b'T' } else { b'N' } as c_char;
        let [m, n, k] = [rows, columns, depth].map(|length| length as i64);
        let distance = |length: usize| length.max(1) as i64;
        // SAFETY: the operands have as many elements as their lengths.
        let status = unsafe {
            (self.common.multiply)(
                letter(left.2),
                letter(right.2),
                m,
                n,
                k,
                1.0,
                left.0.as_ptr(),
                distance(left.1),
                right.0.as_ptr(),
                distance(right.1),
                if adds { 1.0 } else { 0.0 },
                to.as_mut_ptr(),
                distance(columns),
            )
        };
        checked(status, "multiply matrices")
    }

    /// Describes a tensor of plain row-major order, or of an order that the library chooses.
    pub(super) fn describe(
        &self,
        lengths: &[usize],
        is_plain: bool,
    ) -> Result<TensorDescriptor, String> {
        let (mut dimensions, mut strides) = (Dimensions::default(), Dimensions::default());
        let mut stride = 1;
        for (axis, &length) in lengths.iter().enumerate().rev() {
            (dimensions[axis], strides[axis]) = (length as i64, stride);
            stride *= length as i64;
        }
        let (count, lengths) = (lengths.len() as c_int, dimensions.as_ptr());
        let strides = strides.as_ptr();
        let descriptor;
        // SAFETY: the arrays have the library's greatest number of dimensions; a descriptor of version 2 has less than
        // the bytes of `DescriptorMemory`.
        let status = unsafe {
            match &self.by_version {
                VersionFunctions::Two(version) => {
                    let memory = DescriptorMemory::new();
                    let to = memory.pointer();
                    descriptor = TensorDescriptor::InPlace(memory);
                    if is_plain {
                        (version.with_strides)(to, count, lengths, F32, strides)
                    } else {
                        (version.with_tag)(to, count, lengths, F32, ANY_FORMAT)
                    }
                }
                VersionFunctions::Three(version) => {
                    let mut handle = std::ptr::null_mut();
                    let status = if is_plain {
                        (version.with_strides)(&raw mut handle, count, lengths, F32, strides)
                    } else {
                        (version.with_tag)(&raw mut handle, count, lengths, F32, ANY_FORMAT)
                    };
                    let destroy = version.destroy;
                    descriptor = TensorDescriptor::Object(OwnedHandle { handle, destroy });
                    status
                }
            }
        };
        checked(status, "describe a tensor")?;
        Ok(descriptor)
    }

    /// Describes a pass of a convolution of `[input, weights, output]`, or of their gradients. `forward` is the description of
    /// the forward pass, for the other passes.
    pub(super) fn describe_convolution(
        &self,
        pass: ConvolutionPass,
        [input, weights, output]: [&TensorDescriptor; 3],
        [stride, padding]: [[usize; 2]; 2],
        forward: Option<&OwnedHandle>,
    ) -> Result<OwnedHandle, String> {
        let numbers = |of: [usize; 2]| {
            let mut numbers = Dimensions::default();
            (numbers[0], numbers[1]) = (of[0] as i64, of[1] as i64);
            numbers
        };
        let (stride, padding, dilation) = (numbers(stride), numbers(padding), numbers([0, 0]));
        let (stride, padding) = (stride.as_ptr(), padding.as_ptr());
        let [input, weights, output] = [input, weights, output].map(TensorDescriptor::pointer);
        let none: Handle = std::ptr::null_mut();
        let forward = forward.map_or(none, |forward| forward.handle);
        let (mut handle, engine) = (none, self.engine);
        // SAFETY: all pointers are to live objects or arrays of the library's greatest number of dimensions, or null where
        // the library takes null: no bias, no attributes, no forward pass. An operation of version 2 has less than the
        // bytes of `DescriptorMemory`.
        let status = unsafe {
            match &self.by_version {
                VersionFunctions::Two(version) => {
                    let memory = DescriptorMemory::new();
                    let to = memory.pointer();
                    let status = match pass {
                        ConvolutionPass::Forward => (version.forward)(
                            to, FORWARD, DIRECT, input, weights, none, output, stride, padding,
                            padding,
                        ),
                        ConvolutionPass::InputGradient => (version.input_gradient)(
                            to, DIRECT, input, weights, output, stride, padding, padding,
                        ),
                        ConvolutionPass::WeightGradient => (version.weight_gradient)(
                            to, DIRECT, input, weights, none, output, stride, padding, padding,
                        ),
                    };
                    match status {
                        0 => (version.create)(&raw mut handle, to, none, engine, forward),
                        status => status,
                    }
                }
                VersionFunctions::Three(version) => {
                    let (to, dilation) = (&raw mut handle, dilation.as_ptr());
                    match pass {
                        ConvolutionPass::Forward => (version.forward)(
                            to, engine, FORWARD, DIRECT, input, weights, none, output, stride,
                            dilation, padding, padding, none,
                        ),
                        ConvolutionPass::InputGradient => (version.input_gradient)(
                            to, engine, DIRECT, input, weights, output, stride, dilation, padding,
                            padding, forward, none,
                        ),
                        ConvolutionPass::WeightGradient => (version.weight_gradient)(
                            to, engine, DIRECT, input, weights, none, output, stride, dilation,
                            padding, padding, forward, none,
                        ),
                    }
                }
            }
        };
        checked(status, "describe a convolution")?;
        let destroy = self.common.destroy_description;
        Ok(OwnedHandle { handle, destroy })
    }

    /// Returns the order of elements that a described primitive chose for a tensor; valid as long as the description.
    pub(super) fn chosen(&self, description: &OwnedHandle, tensor: ChosenTensor) -> *const c_void {
        // SAFETY: the handle is alive.
        unsafe { (self.common.query_memory)(description.handle, tensor as c_int, 0) }
    }

    /// Returns whether two orders of elements are equal.
    pub(super) fn is_same_order(&self, one: *const c_void, other: *const c_void) -> bool {
        // SAFETY: both are descriptors that the caller has from this library.
        unsafe { (self.common.is_equal)(one, other) != 0 }
    }

    /// Returns the bytes of a tensor.
    pub(super) fn bytes(&self, descriptor: *const c_void) -> usize {
        // SAFETY: the caller has the descriptor from this library.
        unsafe { (self.common.memory_bytes)(descriptor) }
    }

    /// Creates a tensor without memory.
    pub(super) fn tensor(&self, descriptor: *const c_void) -> Result<OwnedHandle, String> {
        let none: Handle = std::ptr::null_mut();
        let mut handle = none;
        // SAFETY: the caller has the descriptor from this library.
        let status =
            unsafe { (self.common.create_memory)(&raw mut handle, descriptor, self.engine, none) };
        checked(status, "create a tensor")?;
        let destroy = self.common.destroy_memory;
        Ok(OwnedHandle { handle, destroy })
    }

    /// Creates a primitive from its description.
    pub(super) fn primitive(&self, description: &OwnedHandle) -> Result<OwnedHandle, String> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the description is alive.
        let status = unsafe { (self.common.create_primitive)(&raw mut handle, description.handle) };
        checked(status, "create a primitive")?;
        let destroy = self.common.destroy_primitive;
        Ok(OwnedHandle { handle, destroy })
    }

    /// Creates a primitive that copies a tensor to another order of elements.
    pub(super) fn reorder(
        &self,
        from: *const c_void,
        to: *const c_void,
    ) -> Result<OwnedHandle, String> {
        let mut handle = std::ptr::null_mut();
        let (engine, none) = (self.engine, std::ptr::null_mut());
        let create = self.common.create_reorder;
        // SAFETY: the caller has both descriptors from this library.
        let status = unsafe { create(&raw mut handle, from, engine, to, engine, none) };
        checked(status, "describe a change of order")?;
        let destroy = self.common.destroy_description;
        self.primitive(&OwnedHandle { handle, destroy })
    }

    /// Sets the memory of a tensor.
    ///
    /// # Safety
    /// The memory has the bytes of the tensor, and outlives the next execution with it, or is set again before.
    pub(super) unsafe fn point(&self, tensor: &OwnedHandle, to: *mut f32) -> Result<(), String> {
        // SAFETY: the handle is alive; the rest is guaranteed by the caller.
        let status = unsafe { (self.common.point_memory)(tensor.handle, to.cast()) };
        checked(status, "use memory")
    }

    /// Runs a primitive on the calling thread.
    ///
    /// # Safety
    /// All tensors of the arguments point to memory, which is written only for outputs.
    pub(super) unsafe fn execute(
        &self,
        primitive: &OwnedHandle,
        arguments: &[(c_int, &OwnedHandle)],
    ) -> Result<(), String> {
        let mut all = [ExecutionArgument::NONE; 3];
        for (to, &(number, tensor)) in all.iter_mut().zip(arguments) {
            let memory = tensor.handle;
            *to = ExecutionArgument { number, memory };
        }
        let count = arguments.len() as c_int;
        // SAFETY: all handles are alive; the rest is guaranteed by the caller.
        let status =
            unsafe { (self.common.execute)(primitive.handle, self.stream, count, all.as_ptr()) };
        checked(status, "run a primitive")
    }
}

/// The tensor that a pass of a convolution computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConvolutionPass {
    /// The output.
    Forward,
    /// The gradient of the input.
    InputGradient,
    /// The gradient of the weights.
    WeightGradient,
}

/// A tensor of a convolution: the values of `dnnl_query_t`.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChosenTensor {
    Input = 129,
    InputGradient = 130,
    Weights = 131,
    WeightGradient = 132,
    Output = 133,
    OutputGradient = 134,
}

impl ChosenTensor {
    /// Returns the number of the tensor as an argument: `DNNL_ARG_*`.
    pub(super) fn argument(self) -> c_int {
        match self {
            Self::Input => 1,
            Self::Output => 17,
            Self::Weights => 33,
            Self::InputGradient => 129,
            Self::OutputGradient => 145,
            Self::WeightGradient => 161,
        }
    }
}

/// An object of the library, which is destroyed when this is dropped.
pub(super) struct OwnedHandle {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

// SAFETY: objects of the library are not bound to a thread.
unsafe impl Send for OwnedHandle {}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // SAFETY: the handle was created by the library and is not used again.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// Memory for a descriptor or an operation of version 2, which are at most some 8 KiB.
pub(super) struct DescriptorMemory(Box<[std::cell::UnsafeCell<u64>]>);

impl DescriptorMemory {
    fn new() -> Self {
        Self((0..2048).map(|_| 0.into()).collect())
    }

    fn pointer(&self) -> Handle {
        self.0.as_ptr().cast_mut().cast()
    }
}

/// The lengths of a tensor and the order of its elements.
pub(super) enum TensorDescriptor {
    /// Of version 2.
    InPlace(DescriptorMemory),
    /// Of version 3.
    Object(OwnedHandle),
}

impl TensorDescriptor {
    /// Returns the descriptor as functions of the library take it.
    pub(super) fn pointer(&self) -> *mut c_void {
        match self {
            Self::InPlace(memory) => memory.pointer(),
            Self::Object(object) => object.handle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_or_another_one_is_an_error() {
        let missing = OneDnnLibrary::load(["libabsent.so.3", "libabsent.so.2"]).err();
        let expected = "neither `libabsent.so.3` nor `libabsent.so.2` is installed";
        assert_eq!(missing.as_deref(), Some(expected));
        if cfg!(target_os = "linux") && OneDnnLibrary::get().is_ok() {
            let other = OneDnnLibrary::load(["libabsent.so.3", "libm.so.6"]).err();
            assert!(
                other
                    .unwrap()
                    .contains("too old, or was built without OpenMP")
            );
        }
    }
}
