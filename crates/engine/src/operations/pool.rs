//! Pooling of images.

use ronde_kernels::{
    AverageAreas, SlidingWindow, average_pool, average_pool_backward, max_pool, max_pool_backward,
    upsample, upsample_backward,
};

use super::only;
use crate::graph::{GraphOperation, KeptValues, Tensors};
use crate::{Activation, EngineError, ForwardContext};

/// The greatest value of each window of `[N, C, H, W]`.
pub(crate) struct MaxPool {
    pub(crate) size: [usize; 2],
    pub(crate) window: SlidingWindow,
    /// The number of outputs of one sample.
    pub(crate) outputs: usize,
}

/// The shape of the input, and the position of each output in its plane.
pub(crate) struct SavedMaxPool {
    shape: Vec<usize>,
    from: Vec<u32>,
}

impl GraphOperation for MaxPool {
    type Saved = SavedMaxPool;

    fn kept(&self) -> KeptValues {
        KeptValues::floats(self.outputs)
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedMaxPool), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        shape[2..].copy_from_slice(&self.window.count(self.size));
        let mut y = Activation::unwritten(&shape);
        let mut from = vec![0; y.as_slice().len()];
        max_pool(
            x.as_slice(),
            self.size,
            self.window,
            y.as_mut_slice(),
            &mut from,
        );
        let saved = SavedMaxPool {
            shape: x.shape().to_vec(),
            from,
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedMaxPool,
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let mut found = Activation::unwritten(&saved.shape);
        let (given, to) = (gradient.as_slice(), found.as_mut_slice());
        max_pool_backward(given, &saved.from, self.size, self.window, to);
        vec![Some(found)]
    }
}

/// The mean of each window of `[N, C, H, W]`; padding counts as zeros.
pub(crate) struct AveragePool {
    pub(crate) size: [usize; 2],
    pub(crate) window: SlidingWindow,
}

impl GraphOperation for AveragePool {
    /// The shape of the input.
    type Saved = Vec<usize>;

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Vec<usize>), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        shape[2..].copy_from_slice(&self.window.count(self.size));
        let mut y = Activation::unwritten(&shape);
        average_pool(x.as_slice(), self.size, self.window, y.as_mut_slice());
        Ok((y, x.shape().to_vec()))
    }

    fn backward_input(
        &self,
        shape: &mut Vec<usize>,
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let mut found = Activation::unwritten(shape);
        let (given, to) = (gradient.as_slice(), found.as_mut_slice());
        average_pool_backward(given, self.size, self.window, to);
        vec![Some(found)]
    }
}

/// `[N, C, H, W]` enlarged by a factor: each element becomes a square.
pub(crate) struct Upsample {
    pub(crate) width: usize,
    pub(crate) factor: usize,
}

impl GraphOperation for Upsample {
    /// The shape of the input.
    type Saved = Vec<usize>;

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Vec<usize>), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        shape[2..]
            .iter_mut()
            .for_each(|length| *length *= self.factor);
        let mut y = Activation::unwritten(&shape);
        upsample(x.as_slice(), self.width, self.factor, y.as_mut_slice());
        Ok((y, x.shape().to_vec()))
    }

    fn backward_input(
        &self,
        shape: &mut Vec<usize>,
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let mut found = Activation::unwritten(shape);
        upsample_backward(
            gradient.as_slice(),
            self.width,
            self.factor,
            found.as_mut_slice(),
        );
        vec![Some(found)]
    }
}

/// The means of areas that cover `[N, C, H, W]` evenly.
pub(crate) struct AverageTo {
    pub(crate) areas: AverageAreas,
}

impl GraphOperation for AverageTo {
    /// The shape of the input.
    type Saved = Vec<usize>;

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Vec<usize>), EngineError> {
        let x = only(inputs);
        let mut shape = x.shape().to_vec();
        shape[2..].copy_from_slice(&self.areas.areas);
        let mut y = Activation::unwritten(&shape);
        self.areas.forward(x.as_slice(), y.as_mut_slice());
        Ok((y, x.shape().to_vec()))
    }

    fn backward_input(
        &self,
        shape: &mut Vec<usize>,
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let mut found = Activation::unwritten(shape);
        self.areas
            .backward(gradient.as_slice(), found.as_mut_slice());
        vec![Some(found)]
    }
}
