//! Operations that move values without computing.

use std::ops::Range;

use ronde_kernels::ShortFormat;

use super::only;
use crate::device::RowCopy;
use crate::graph::{GraphOperation, Tensors};
use crate::{Activation, Computation, EngineError, ForwardContext};

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

    /// Copies a part of the dimension out of whole rows.
    fn take(&self, tensors: Tensors<'_>, whole: &Activation, part: &Range<usize>) -> Activation {
        let element = self.element();
        let mut found = tensors.result(&self.shape(whole.samples(), part.len()));
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

/// Copies a part of rows. Whole groups of packed values are copied as they are.
fn copy_values(copy: RowCopy, from: &Activation, to: &mut Activation, tensors: Tensors<'_>) {
    let device = tensors.device();
    let format = to.packed_format();
    let is_packed = format.is_some() && format == from.packed_format();
    let lengths = [copy.from, copy.to, [copy.length; 2]];
    let mut lengths = lengths.iter().flatten();
    if is_packed && lengths.all(|length| length.is_multiple_of(ShortFormat::GROUP)) {
        let half = |[row, start]: [usize; 2]| [row / 2, start / 2];
        let copy = RowCopy {
            from: half(copy.from),
            to: half(copy.to),
            length: copy.length / 2,
        };
        device.copy_rows(copy, from.packed_values(), to.packed_values_mut());
        return;
    }
    let from = from.unpacked(device);
    to.unpack(device);
    device.copy_rows(copy, from.values(), to.values_mut(device));
    if let Some(format) = format {
        to.pack(device, format);
    }
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
        let mut found = tensors.result(&self.rows.shape(gradient.samples(), length));
        let blocks = tensors.blocks(found.elements());
        blocks.run([], [&mut found], |_, [], [to]| device.fill(to, 0.0));
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

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let samples = inputs.first().map_or(0, Activation::samples);
        let length = self.rows.sample[self.rows.dim];
        let mut whole = tensors.result(&self.rows.shape(samples, length));
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
