//! [`KernelWork`]: the multiply-adds of a kernel, the floats that it moves, and the lengths on which they depend.

use ronde_kernels::{Attention, GroupedConvolution};

use super::{
    ElementKernels, ImageKernels, Kernel, KernelMemory, MatrixKernels, MatrixOf, NormKernels,
    OperandLength, RowCopy, SequenceKernels, TableKernels,
};

/// The work of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelWork {
    /// The lengths that determine the cost, such as `256x784 784x1024`.
    pub shape: String,
    /// The multiply-adds of the matrix product that the kernel is equivalent to; 0 for one that moves data.
    pub multiply_adds: f64,
    /// The number of floats of all operands that the kernel reads or writes.
    pub floats: usize,
}

impl<M: KernelMemory> Kernel<M> {
    /// Returns the work of the kernel. Cost: a short text.
    #[must_use]
    pub fn work(&self) -> KernelWork {
        let (mut floats, mut longest) = (0, 0);
        self.each_operand(&mut |operand| {
            floats += operand.floats();
            longest = longest.max(operand.floats());
        });
        let moved = |shape: String| (shape, 0.0);
        let (shape, multiply_adds) = match self {
            Self::Matrix(MatrixKernels::Multiply(kernel)) => product(&kernel.left, &kernel.right),
            Self::Matrix(MatrixKernels::MultiplyShards(kernel)) => {
                product(&kernel.left, &kernel.right)
            }
            Self::Image(ImageKernels::Convolve(kernel)) => {
                convolution(&kernel.shape, kernel.samples)
            }
            Self::Image(ImageKernels::ConvolveInputGradient(kernel)) => {
                convolution(&kernel.shape, kernel.samples)
            }
            Self::Image(ImageKernels::ConvolveWeightGradient(kernel)) => {
                convolution(&kernel.shape, kernel.samples)
            }
            Self::Image(ImageKernels::ConvolveShardsWeightGradient(kernel)) => {
                let shape = GroupedConvolution {
                    each: kernel.shape,
                    groups: 1,
                };
                convolution(&shape, kernel.shards.iter().sum())
            }
            Self::Norm(kernel) => moved(norm_shape(kernel).unwrap_or_else(|| longest.to_string())),
            Self::Sequence(SequenceKernels::Attend(kernel)) => attention(&kernel.shape, 2.0),
            Self::Sequence(SequenceKernels::AttendGradient(kernel)) => {
                attention(&kernel.shape, 5.0)
            }
            Self::Table(kernel) => table(kernel),
            Self::Element(ElementKernels::CopyRows(kernel)) => {
                let RowCopy { to, length, .. } = kernel.copy;
                let copied = kernel.to.floats() / to[0].max(1) * length;
                floats = 2 * copied;
                moved(copied.to_string())
            }
            Self::Matrix(_)
            | Self::Image(_)
            | Self::Sequence(_)
            | Self::Element(_)
            | Self::Format(_) => moved(longest.to_string()),
        };
        KernelWork {
            shape,
            multiply_adds,
            floats,
        }
    }
}

/// Returns the shapes of the operands of a product, and its multiplications with additions.
fn product<R>(left: &MatrixOf<R>, right: &MatrixOf<R>) -> (String, f64) {
    let [left_shape, right_shape] = [left, right].map(|matrix| {
        let transposed = if matrix.is_transposed { "T" } else { "" };
        let [rows, columns] = matrix.size();
        format!("{rows}x{columns}{transposed}")
    });
    let ([rows, depth], [_, columns]) = (left.size(), right.size());
    let products = rows as f64 * depth as f64 * columns as f64;
    (format!("{left_shape} {right_shape}"), products)
}

fn convolution(shape: &GroupedConvolution, samples: usize) -> (String, f64) {
    let (each, groups) = (shape.each, shape.groups);
    let [height, width] = each.size;
    let [down, across] = each.kernel;
    let window = each.channels * down * across;
    let of_groups = match groups {
        1 => String::new(),
        groups => format!(" in {groups} groups"),
    };
    let text = format!(
        "{samples}x{}x{height}x{width} to {}, {down}x{across} / {}{of_groups}",
        groups * each.channels,
        groups * each.outputs,
        each.stride[0],
    );
    let products = (samples * groups) as f64 * each.elements()[1] as f64 * window as f64;
    (text, products)
}

/// Returns the lengths of a normalisation of channels; `None` for other kernels.
fn norm_shape<M: KernelMemory>(kernel: &NormKernels<M>) -> Option<String> {
    let batch = match kernel {
        NormKernels::Batch(kernel) => kernel.shape,
        NormKernels::BatchBy(kernel) => kernel.shape,
        NormKernels::BatchGradient(kernel) => kernel.shape,
        NormKernels::BatchMoments(kernel) => kernel.shape,
        NormKernels::BatchGradientSums(kernel) => kernel.shape,
        NormKernels::BatchInputGradient(kernel) => kernel.shape,
        NormKernels::BatchAffineGradients(kernel) => kernel.shape,
        NormKernels::Group(_) | NormKernels::GroupGradient(_) => {
            let shape = match kernel {
                NormKernels::Group(kernel) => kernel.shape,
                NormKernels::GroupGradient(kernel) => kernel.shape,
                _ => return None,
            };
            return Some(format!(
                "{}x{}x{} in {} groups",
                shape.samples, shape.channels, shape.places, shape.groups
            ));
        }
        NormKernels::KnownStatistics(_)
        | NormKernels::MoveStatistics(_)
        | NormKernels::Layer(_)
        | NormKernels::LayerGradient(_) => return None,
    };
    Some(format!(
        "{}x{}x{}",
        batch.samples, batch.channels, batch.places
    ))
}

/// Returns the work of attention, as `products` products of queries by keys.
fn attention(shape: &Attention, products: f64) -> (String, f64) {
    let Attention {
        batch,
        queries,
        keys,
        heads,
        width,
        causal,
    } = *shape;
    let pairs = (batch * heads) as f64 * queries as f64 * keys as f64;
    let text = format!("{batch}x{heads} heads, {queries}x{keys}x{width}");
    let share = if causal { 0.5 } else { 1.0 };
    (text, products * pairs * width as f64 * share)
}

/// Returns the work of distances, scores or their gradients, with a multiply-add for each float of a row.
fn table<M: KernelMemory>(kernel: &TableKernels<M>) -> (String, f64) {
    let (count, width) = match kernel {
        TableKernels::SquaredDistances(kernel) => (kernel.to.floats(), kernel.width),
        TableKernels::PointGradients(kernel) => (kernel.dy.floats(), kernel.width),
        TableKernels::CentreGradients(kernel) => (kernel.dy.floats(), kernel.width),
        TableKernels::FactorScores(kernel) => (kernel.y.floats(), kernel.factors),
        TableKernels::FactorGradients(kernel) => (kernel.dy.floats(), kernel.factors),
    };
    (format!("{count} of {width}"), count as f64 * width as f64)
}
