//! [`CompiledConvolution`]: a pass of a convolution in the order of elements that oneDNN chose for it.
#![expect(unsafe_code, reason = "functions of a C library")]

use ronde_kernels::GroupedConvolution;

use super::library::{ChosenTensor, ConvolutionPass, OneDnnLibrary, OwnedHandle, TensorDescriptor};

/// The memory of reordered tensors, reused by all convolutions.
#[derive(Default)]
pub(super) struct ReorderMemory([Vec<Line>; 3]);

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory of the library")] [f32; 16]);

/// A tensor of a pass.
struct PassTensor {
    kind: ChosenTensor,
    /// The number of floats in row-major order.
    length: usize,
    /// The values of the caller, row-major.
    plain: OwnedHandle,
    /// The same values in the order of the pass, if it is another one: the tensor, its bytes, and the primitive that
    /// reorders.
    reordered: Option<(OwnedHandle, usize, OwnedHandle)>,
}

impl PassTensor {
    /// Returns the tensor that the pass reads or writes.
    fn of_pass(&self) -> &OwnedHandle {
        let reordered = self.reordered.as_ref();
        reordered.map_or(&self.plain, |(tensor, _, _)| tensor)
    }
}

/// A pass of a convolution for a number of samples.
pub(super) struct CompiledConvolution {
    library: &'static OneDnnLibrary,
    primitive: OwnedHandle,
    /// Two inputs and the output.
    tensors: [PassTensor; 3],
}

impl CompiledConvolution {
    /// Compiles a pass for the number of threads that is set. Cost: milliseconds.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn new(
        library: &'static OneDnnLibrary,
        pass: ConvolutionPass,
        shape: &GroupedConvolution,
        samples: usize,
    ) -> Result<Self, String> {
        let lengths = lengths(shape, samples);
        let describe = |is_plain: bool| -> Result<[TensorDescriptor; 3], String> {
            let [input, weights, output] = &lengths;
            Ok([
                library.describe(input, is_plain)?,
                library.describe(weights, is_plain)?,
                library.describe(output, is_plain)?,
            ])
        };
        let (plain, free) = (describe(true)?, describe(false)?);
        let free = free.each_ref();
        let steps = [shape.each.stride, shape.each.padding];
        let forward = library.describe_convolution(ConvolutionPass::Forward, free, steps, None)?;
        let description = match pass {
            ConvolutionPass::Forward => forward,
            pass => library.describe_convolution(pass, free, steps, Some(&forward))?,
        };
        let kinds = kinds(pass);
        let tensor = |position: usize| -> Result<PassTensor, String> {
            let (index, kind) = kinds[position];
            let own: *const _ = plain[index].pointer();
            let chosen = library.chosen(&description, kind);
            let reordered = if library.is_same_order(own, chosen) {
                None
            } else {
                let is_output = position == 2;
                let [from, to] = if is_output {
                    [chosen, own]
                } else {
                    [own, chosen]
                };
                let reorder = library.reorder(from, to)?;
                Some((library.tensor(chosen)?, library.bytes(chosen), reorder))
            };
            Ok(PassTensor {
                kind,
                length: lengths[index].iter().product(),
                plain: library.tensor(own)?,
                reordered,
            })
        };
        let tensors = [tensor(0)?, tensor(1)?, tensor(2)?];
        let primitive = library.primitive(&description)?;
        Ok(Self {
            library,
            primitive,
            tensors,
        })
    }

    /// Computes the pass from two inputs, in the order of input, weights and output.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If a length does not match.
    pub(super) fn run(
        &self,
        inputs: [&[f32]; 2],
        to: &mut [f32],
        memory: &mut ReorderMemory,
    ) -> Result<(), String> {
        let library = self.library;
        let pointers = [
            (inputs[0].as_ptr().cast_mut(), inputs[0].len()),
            (inputs[1].as_ptr().cast_mut(), inputs[1].len()),
            (to.as_mut_ptr(), to.len()),
        ];
        let each = self.tensors.iter().zip(pointers).zip(&mut memory.0);
        for (position, ((tensor, (pointer, length)), memory)) in each.enumerate() {
            assert_eq!(length, tensor.length, "elements of {:?}", tensor.kind);
            // SAFETY: the values are borrowed until the end of this function, and have the length of the tensor.
            unsafe { library.point(&tensor.plain, pointer)? };
            let Some((inner, bytes, reorder)) = &tensor.reordered else {
                continue;
            };
            let lines = bytes.div_ceil(size_of::<Line>());
            if memory.len() < lines {
                *memory = Vec::new();
                memory.resize(lines, Line([0.0; 16]));
            }
            // SAFETY: the memory has the bytes of the tensor, and stays until the end of this function.
            unsafe { library.point(inner, memory.as_mut_ptr().cast())? };
            if position < 2 {
                // SAFETY: both tensors point to memory; the plain one is only read.
                unsafe { library.execute(reorder, &[(FROM, &tensor.plain), (TO, inner)])? };
            }
        }
        let [a, b, output] = self.tensors.each_ref();
        let arguments = [a, b, output].map(|tensor| (tensor.kind.argument(), tensor.of_pass()));
        // SAFETY: all tensors point to memory; inputs are only read.
        unsafe { library.execute(&self.primitive, &arguments)? };
        if let Some((inner, _, reorder)) = &output.reordered {
            // SAFETY: both tensors point to memory.
            unsafe { library.execute(reorder, &[(FROM, inner), (TO, &output.plain)])? };
        }
        Ok(())
    }
}

/// Returns the tensors of a pass, two inputs and the output, with their positions among input, weights and output.
fn kinds(pass: ConvolutionPass) -> [(usize, ChosenTensor); 3] {
    let [input, weights, output] = [0, 1, 2];
    match pass {
        ConvolutionPass::Forward => [
            (input, ChosenTensor::Input),
            (weights, ChosenTensor::Weights),
            (output, ChosenTensor::Output),
        ],
        ConvolutionPass::InputGradient => [
            (weights, ChosenTensor::Weights),
            (output, ChosenTensor::OutputGradient),
            (input, ChosenTensor::InputGradient),
        ],
        ConvolutionPass::WeightGradient => [
            (input, ChosenTensor::Input),
            (output, ChosenTensor::OutputGradient),
            (weights, ChosenTensor::WeightGradient),
        ],
    }
}

/// `DNNL_ARG_FROM`.
const FROM: i32 = 1;
/// `DNNL_ARG_TO`.
const TO: i32 = 17;

/// Returns the lengths of the input, the weights and the output.
fn lengths(shape: &GroupedConvolution, samples: usize) -> [Vec<usize>; 3] {
    let (each, groups) = (&shape.each, shape.groups);
    let image = |channels: usize, [height, width]: [usize; 2]| {
        vec![samples, channels * groups, height, width]
    };
    let [height, width] = each.kernel;
    let mut weights = vec![each.outputs, each.channels, height, width];
    if groups > 1 {
        weights.insert(0, groups);
    }
    let output = image(each.outputs, each.output_size());
    [image(each.channels, each.size), weights, output]
}
