//! Operations that move values without computing.

use std::ops::Range;

use ronde_kernels::ShortFormat;

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{CopyRowsKernel, FillKernel, RowCopy};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, Tensors};

/// Returns a batch's shape for samples of a shape.
fn batch(samples: usize, sample: &[usize]) -> Vec<usize> {
    [&[samples], sample].concat()
}

/// Another shape of as many elements per sample.
pub(crate) struct Reshape {
    from: Vec<usize>,
    to: Vec<usize>,
}

impl Reshape {
    pub(crate) fn new(from: &[usize], to: &[usize]) -> Self {
        Self {
            from: from.to_vec(),
            to: to.to_vec(),
        }
    }
}

impl GraphOperation for Reshape {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::Reshape
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn joins_shards(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let x = only(inputs);
        let shape = batch(x.samples(), &self.to);
        Ok((x.reshaped(&shape), ()))
    }

    fn backward_input(
        &self,
        (): &mut (),
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let shape = batch(gradient.samples(), &self.from);
        vec![Some(gradient.reshaped(&shape))]
    }
}

/// The rows in which the elements of one dimension of a sample are stored together.
struct StridedRows {
    /// The shape of a whole sample.
    sample: Vec<usize>,
    dim: usize,
}

impl StridedRows {
    /// Returns the number of floats of one element of the dimension.
    fn element(&self) -> usize {
        self.sample[self.dim + 1..].iter().product()
    }

    /// Returns the number of floats of a row of the whole dimension.
    fn row(&self) -> usize {
        self.sample[self.dim] * self.element()
    }

    /// Returns the batch's shape with another length of the dimension.
    fn shape(&self, samples: usize, length: usize) -> Vec<usize> {
        let mut shape = batch(samples, &self.sample);
        shape[1 + self.dim] = length;
        shape
    }

    /// Returns memory for copies of parts of values: packed if the values are, and parts are whole groups.
    fn unwritten<'v>(
        &self,
        tensors: Tensors<'_>,
        shape: &[usize],
        values: impl IntoIterator<Item = &'v Activation>,
        parts: &[Range<usize>],
    ) -> Activation {
        let element = self.element();
        let is_whole = |place: usize| (place * element).is_multiple_of(ShortFormat::GROUP);
        let ends = parts.iter().flat_map(|part| [part.start, part.end]);
        let in_groups = ends.chain([self.sample[self.dim]]).all(is_whole);
        let mut values = values.into_iter();
        if in_groups && values.all(|value| value.packed_format().is_some()) {
            tensors.result(shape)
        } else {
            tensors.unwritten(shape)
        }
    }

    /// Copies a part of the dimension out of whole rows.
    fn take(&self, tensors: Tensors<'_>, whole: &Activation, part: &Range<usize>) -> Activation {
        let element = self.element();
        let shape = self.shape(whole.samples(), part.len());
        let mut found = self.unwritten(tensors, &shape, [whole], std::slice::from_ref(part));
        let length = part.len() * element;
        let copy = RowCopy {
            from: [self.row(), part.start * element],
            to: [length, 0],
            length,
        };
        copy_values(copy, whole, &mut found, tensors);
        found
    }

    /// Copies a part of the dimension into whole rows.
    fn put(
        &self,
        tensors: Tensors<'_>,
        from: &Activation,
        part: &Range<usize>,
        whole: &mut Activation,
    ) {
        let element = self.element();
        let length = part.len() * element;
        let copy = RowCopy {
            from: [length, 0],
            to: [self.row(), part.start * element],
            length,
        };
        copy_values(copy, from, whole, tensors);
    }
}

/// Copies a part of rows. If the copy is packed, so are the values, and the part is whole groups.
fn copy_values(copy: RowCopy, from: &Activation, to: &mut Activation, tensors: Tensors<'_>) {
    let device = tensors.device();
    if to.packed_format().is_none() {
        let from = from.unpacked(device);
        CopyRowsKernel {
            copy,
            from: from.values(),
            to: to.values_mut(device),
        }
        .run_on(device);
        return;
    }
    let half = |[row, start]: [usize; 2]| [row / 2, start / 2];
    let copy = RowCopy {
        from: half(copy.from),
        to: half(copy.to),
        length: copy.length / 2,
    };
    CopyRowsKernel {
        copy,
        from: from.packed_values(),
        to: to.packed_values_mut(),
    }
    .run_on(device);
}

/// A part of one dimension.
pub(crate) struct TakeSlice {
    rows: StridedRows,
    part: Range<usize>,
}

impl TakeSlice {
    pub(crate) fn new(sample: &[usize], dim: usize, part: Range<usize>) -> Self {
        let sample = sample.to_vec();
        Self {
            rows: StridedRows { sample, dim },
            part,
        }
    }
}

impl GraphOperation for TakeSlice {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::Slice {
            dim: self.rows.dim,
            part: self.part.clone(),
        }
    }

    fn takes_packed(&self) -> bool {
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
    ) -> Result<(Activation, ()), EngineError> {
        Ok((self.rows.take(tensors, &only(inputs), &self.part), ()))
    }

    fn backward_input(
        &self,
        (): &mut (),
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let length = self.rows.sample[self.rows.dim];
        let device = tensors.device();
        let shape = self.rows.shape(gradient.samples(), length);
        let part = std::slice::from_ref(&self.part);
        let mut found = self.rows.unwritten(tensors, &shape, [&gradient], part);
        let blocks = tensors.blocks(found.elements());
        blocks.run([], [&mut found], |_, [], [to]| {
            FillKernel { to, value: 0.0 }.run_on(device)
        });
        self.rows.put(tensors, &gradient, &self.part, &mut found);
        vec![Some(found)]
    }
}

/// Values one after the other along one dimension.
pub(crate) struct Concatenate {
    rows: StridedRows,
    parts: Vec<Range<usize>>,
}

impl Concatenate {
    /// `shapes` are equal but for dimension `dim`; there is at least one.
    pub(crate) fn new(shapes: &[Vec<usize>], dim: usize) -> Self {
        let mut parts = Vec::new();
        let mut end = 0;
        for shape in shapes {
            parts.push(end..end + shape[dim]);
            end += shape[dim];
        }
        let mut sample = shapes[0].clone();
        sample[dim] = end;
        Self {
            rows: StridedRows { sample, dim },
            parts,
        }
    }
}

impl GraphOperation for Concatenate {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::Concatenate { dim: self.rows.dim }
    }

    fn takes_packed(&self) -> bool {
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
    ) -> Result<(Activation, ()), EngineError> {
        let samples = inputs.first().map_or(0, Activation::samples);
        let length = self.rows.sample[self.rows.dim];
        let shape = self.rows.shape(samples, length);
        let mut whole = self.rows.unwritten(tensors, &shape, &inputs, &self.parts);
        for (input, part) in inputs.iter().zip(&self.parts) {
            self.rows.put(tensors, input, part, &mut whole);
        }
        Ok((whole, ()))
    }

    fn backward_input(
        &self,
        (): &mut (),
        gradient: Activation,
        tensors: Tensors<'_>,
        wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let parts = self.parts.iter().zip(wanted);
        parts
            .map(|(part, wanted)| wanted.then(|| self.rows.take(tensors, &gradient, part)))
            .collect()
    }
}
