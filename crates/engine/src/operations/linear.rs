//! [`Linear`]: a matrix product over the last dimension.

use std::ops::Range;

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::DeviceSlice;
use crate::device::kernel::{MultiplyKernel, MultiplyShardsKernel, RepeatRowKernel, SumRowsKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};

/// `x * weight + bias` for each row of `[.., inputs]`; `weight` is `[inputs, outputs]`.
pub(crate) struct Linear {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) has_bias: bool,
}

impl Linear {
    fn rows(&self, x: &Activation) -> usize {
        x.elements() / self.inputs.max(1)
    }

    /// Computes the gradients of joined shards, added in the order of the exact sum.
    fn add_shards(
        &self,
        x: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) {
        let (device, joined) = (tensors.device(), tensors.joined());
        let each = self.rows(x) / x.samples().max(1);
        let rows_of = |samples: &Range<usize>| samples.start * each..samples.end * each;
        let rows: Vec<Range<usize>> = joined.iter().map(|of| rows_of(&of.samples)).collect();
        let all = rows[0].start..rows[rows.len() - 1].end;
        let left = x.matrix(of_rows(x, &all, self.inputs), all.len(), self.inputs);
        let right = of_rows(gradient, &all, self.outputs);
        MultiplyShardsKernel {
            left: left.transposed(),
            right: gradient.matrix(right, all.len(), self.outputs),
            to: to.get(0),
            shards: rows.iter().map(ExactSizeIterator::len).collect(),
        }
        .run_on(device);
        if self.has_bias {
            to.add_shards(1..2, tensors, x.samples(), |_, samples, to| {
                SumRowsKernel {
                    rows: of_rows(gradient, &rows_of(&samples), self.outputs),
                    to: to.get(1),
                }
                .run_on(device);
            });
        }
    }
}

/// Returns the values of some rows of a width.
fn of_rows<'a>(of: &'a Activation, rows: &Range<usize>, width: usize) -> DeviceSlice<'a> {
    of.values().range(rows.start * width..rows.end * width)
}

impl GraphOperation for Linear {
    /// The input.
    type Saved = Activation;

    fn computation(&self) -> Computation {
        Computation::Linear {
            has_bias: self.has_bias,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&self, x: &mut Activation, visit: &mut dyn FnMut(&mut Activation)) {
        visit(x);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn joins_shards(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.outputs;
        }
        let device = tensors.device();
        let mut y = tensors.result(&shape);
        let blocks = tensors.blocks_of_products(self.rows(&x));
        blocks.run([&x], [&mut y], |rows, [of_x], [mut to]| {
            if self.has_bias {
                RepeatRowKernel {
                    row: tensors.get(1),
                    to: to.reborrow(),
                }
                .run_on(device);
            }
            let left = x.matrix(of_x, rows.len(), self.inputs);
            let right = tensors.matrix(0, self.inputs, self.outputs);
            MultiplyKernel {
                left,
                right,
                to,
                adds: self.has_bias,
            }
            .run_on(device);
        });
        Ok((y, x))
    }

    fn backward_input(
        &self,
        x: &mut Activation,
        gradient: Activation,
        tensors: Tensors<'_>,
        wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if !wanted[0] {
            return vec![None];
        }
        let device = tensors.device();
        let weight = tensors.matrix(0, self.inputs, self.outputs);
        let mut found = tensors.result(x.shape());
        let blocks = tensors.blocks_of_products(self.rows(x));
        blocks.run([&gradient], [&mut found], |rows, [given], [to]| {
            let given = gradient.matrix(given, rows.len(), self.outputs);
            MultiplyKernel {
                left: given,
                right: weight.transposed(),
                to,
                adds: false,
            }
            .run_on(device);
        });
        vec![Some(found)]
    }

    fn backward_weights(
        &self,
        x: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        if !tensors.joined().is_empty() {
            self.add_shards(x, gradient, tensors, to);
            return Ok(());
        }
        let blocks = tensors.blocks_of_products(self.rows(x));
        blocks.run([x, gradient], [], |rows, [of_x, given], []| {
            let input = x.matrix(of_x, rows.len(), self.inputs);
            let matrix = gradient.matrix(given, rows.len(), self.outputs);
            let adds = rows.start > 0;
            MultiplyKernel {
                left: input.transposed(),
                right: matrix,
                to: to.get(0),
                adds,
            }
            .run_on(device);
            if self.has_bias {
                tensors.write_or_add(adds, to.get(1), |to| {
                    SumRowsKernel { rows: given, to }.run_on(device)
                });
            }
        });
        Ok(())
    }
}
