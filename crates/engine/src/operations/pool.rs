//! Pooling and enlargement of images.

use ronde_kernels::SlidingWindow;

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{
    MapPlanesGradientKernel, MapPlanesKernel, MaxPoolGradientKernel, MaxPoolKernel, PlaneMap,
};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, Tensors};

/// Returns the shape of images with planes of another size.
fn resized(x: &Activation, [height, width]: [usize; 2]) -> Vec<usize> {
    [&x.shape()[..2], &[height, width]].concat()
}

/// The greatest value of each window of `[N, C, H, W]`.
pub(crate) struct MaxPool {
    pub(crate) size: [usize; 2],
    pub(crate) window: SlidingWindow,
    /// The number of outputs of one sample.
    pub(crate) outputs: usize,
}

/// The shape of the input, and the position of each output in its plane as the bits of a u32.
pub(crate) struct SavedMaxPool {
    shape: Vec<usize>,
    from: Activation,
}

impl GraphOperation for MaxPool {
    type Saved = SavedMaxPool;

    fn computation(&self) -> Computation {
        Computation::MaxPool(self.window)
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            always_f32: self.outputs,
            ..KeptValues::default()
        }
    }

    fn joins_shards(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedMaxPool), EngineError> {
        let x = only(inputs);
        let device = tensors.device();
        let shape = resized(&x, self.window.count(self.size));
        let (mut y, mut from) = (tensors.result(&shape), tensors.unwritten(&shape));
        let blocks = tensors.blocks(x.samples());
        blocks.run([&x], [&mut y, &mut from], |_, [x], [y, from]| {
            MaxPoolKernel {
                size: self.size,
                window: self.window,
                x,
                y,
                from,
            }
            .run_on(device);
        });
        let shape = x.shape().to_vec();
        Ok((y, SavedMaxPool { shape, from }))
    }

    fn backward_input(
        &self,
        saved: &mut SavedMaxPool,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let device = tensors.device();
        let mut found = tensors.result(&saved.shape);
        let blocks = tensors.blocks(gradient.samples());
        let inputs = [&gradient, &saved.from];
        blocks.run(inputs, [&mut found], |_, [given, from], [to]| {
            MaxPoolGradientKernel {
                size: self.size,
                window: self.window,
                dy: given,
                from,
                dx: to,
            }
            .run_on(device);
        });
        vec![Some(found)]
    }
}

/// A map of each plane of `[N, C, H, W]` to one of another size.
pub(crate) struct MapPlanes {
    pub(crate) map: PlaneMap,
    /// Height and width of the output.
    pub(crate) output: [usize; 2],
}

impl GraphOperation for MapPlanes {
    /// The shape of the input.
    type Saved = Vec<usize>;

    fn computation(&self) -> Computation {
        Computation::Planes(self.map)
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
    ) -> Result<(Activation, Vec<usize>), EngineError> {
        let x = only(inputs);
        let device = tensors.device();
        let mut y = tensors.result(&resized(&x, self.output));
        let blocks = tensors.blocks(x.samples());
        blocks.run([&x], [&mut y], |_, [x], [y]| {
            MapPlanesKernel {
                map: self.map,
                x,
                y,
            }
            .run_on(device)
        });
        Ok((y, x.shape().to_vec()))
    }

    fn backward_input(
        &self,
        shape: &mut Vec<usize>,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let device = tensors.device();
        let mut found = tensors.result(shape);
        let blocks = tensors.blocks(gradient.samples());
        blocks.run([&gradient], [&mut found], |_, [given], [to]| {
            MapPlanesGradientKernel {
                map: self.map,
                dy: given,
                dx: to,
            }
            .run_on(device);
        });
        vec![Some(found)]
    }
}
