//! [`NormaliseRows`]: normalisation of the last dimension.

use super::batch_norm::EPSILON;
use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{AddKernel, CopyKernel, LayerNormGradientKernel, LayerNormKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors, copy_run, taken_run};

/// Normalises the last dimension, then scales it by gamma and shifts it by beta.
pub(crate) struct NormaliseRows {
    /// The number of rows of one sample.
    pub(crate) rows: usize,
}

/// The values kept of one shard.
pub(crate) struct SavedLayerNorm {
    x: Activation,
    /// The mean and inverse deviation of each row.
    statistics: Activation,
    /// The gradients of gamma and beta of each shard, or for each own part if the tokens are divided.
    of_affine: Vec<[Activation; 2]>,
}

/// Returns the normalised rows and their statistics.
fn normalised(x: &Activation, tensors: Tensors<'_>) -> [Activation; 2] {
    let device = tensors.device();
    let mut y = tensors.result(x.shape());
    let rows = x.elements() / tensors.get(0).length().max(1);
    let mut statistics = tensors.unwritten(&[rows, 2]);
    let blocks = tensors.blocks(rows);
    blocks.run([x], [&mut y, &mut statistics], |_, [x], [to, found]| {
        LayerNormKernel {
            x,
            gamma: tensors.get(0),
            beta: tensors.get(1),
            epsilon: EPSILON,
            y: to,
            statistics: found,
        }
        .run_on(device);
    });
    [y, statistics]
}

/// Returns the gradient of rows, and those of gamma and beta, from the rows, the gradient of the output and the statistics.
fn gradients(
    [x, given, statistics]: [&Activation; 3],
    tensors: Tensors<'_>,
) -> (Activation, [Activation; 2]) {
    let gamma = tensors.get(0);
    let device = tensors.device();
    let width = gamma.length();
    let mut of_x = tensors.result(x.shape());
    let mut of_affine = [(); 2].map(|()| tensors.unwritten(&[0]));
    let blocks = tensors.blocks(x.elements() / width.max(1));
    let inputs = [x, given, statistics];
    blocks.run(inputs, [&mut of_x], |rows, [x, given, known], [to]| {
        let mut more = [(); 2].map(|()| tensors.unwritten(&[width]));
        let [of_gamma, of_beta] = more.each_mut().map(|more| more.values_mut(device));
        LayerNormGradientKernel {
            x,
            dy: given,
            gamma,
            statistics: known,
            dx: to,
            of_gamma,
            of_beta,
        }
        .run_on(device);
        if rows.start == 0 {
            of_affine = more;
            return;
        }
        for (sum, more) in of_affine.iter_mut().zip(&more) {
            AddKernel {
                y: sum.values_mut(device),
                x: more.values(),
            }
            .run_on(device);
        }
    });
    (of_x, of_affine)
}

/// Returns the gradient of all rows, and keeps those of gamma and beta of each shard.
fn gradients_of_shards(
    saved: &mut SavedLayerNorm,
    gradient: &Activation,
    tensors: Tensors<'_>,
) -> Activation {
    let samples = tensors.samples_of_shards(saved.x.samples());
    let rows_of_sample = saved.statistics.samples() / saved.x.samples().max(1);
    let found = samples.into_iter().map(|samples| {
        let rows = samples.start * rows_of_sample..samples.end * rows_of_sample;
        let statistics = saved.statistics.some_samples(&rows);
        let [x, given] = [&saved.x, gradient].map(|values| values.some_samples(&samples));
        gradients([&x, &given, &statistics], tensors)
    });
    let (of_x, of_affine) = found.unzip::<_, _, Vec<_>, _>();
    saved.of_affine = of_affine;
    Activation::together(tensors.device(), of_x)
}

impl GraphOperation for NormaliseRows {
    type Saved = SavedLayerNorm;

    fn computation(&self) -> Computation {
        Computation::LayerNorm { epsilon: EPSILON }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            always_f32: 2 * self.rows,
            ..KeptValues::input()
        }
    }

    fn kept_for_output(&self) -> Option<KeptValues> {
        Some(self.kept())
    }

    fn output_again(&self, saved: &mut SavedLayerNorm, tensors: Tensors<'_>) -> Option<Activation> {
        let [y, _] = normalised(&saved.x, tensors);
        Some(y)
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&self, saved: &mut SavedLayerNorm, visit: &mut dyn FnMut(&mut Activation)) {
        visit(&mut saved.x);
    }

    fn is_per_position(&self) -> bool {
        true
    }

    fn computes_own_tokens(&self) -> bool {
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
    ) -> Result<(Activation, SavedLayerNorm), EngineError> {
        let x = only(inputs);
        let [y, statistics] = normalised(&x, tensors);
        let saved = SavedLayerNorm {
            x,
            statistics,
            of_affine: Vec::new(),
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedLayerNorm,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let parts = tensors.tokens().map(|tokens| (tokens, tokens.parts()));
        let Some((tokens, parts)) = parts.filter(|(_, parts)| parts.len() > 1) else {
            return vec![Some(gradients_of_shards(saved, &gradient, tensors))];
        };
        let device = tensors.device();
        let width = tensors.get(0).length();
        let samples = saved.x.samples();
        let mut of_x = tensors.unwritten(saved.x.shape());
        saved.of_affine.clear();
        for part in parts {
            let own = tokens.of_part(part);
            let (first, rows) = (own.start * samples, own.len() * samples);
            let taken = |from: &Activation, width: usize| {
                taken_run(device, from, first * width, &[rows, width])
            };
            let x = taken(&saved.x, width);
            let statistics = taken(&saved.statistics, 2);
            let given = taken(&gradient, width);
            let (found, of_affine) = gradients([&x, &given, &statistics], tensors);
            copy_run(
                device,
                (&found, 0),
                (&mut of_x, first * width),
                rows * width,
            );
            saved.of_affine.push(of_affine);
        }
        vec![Some(of_x)]
    }

    fn backward_weights(
        &self,
        saved: &SavedLayerNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let part = tensors.tokens_of_part();
        let part = part.map_or(0, |(part, tokens)| (part - tokens.parts().start) as usize);
        to.add_shards(0..2, tensors, saved.x.samples(), |shard, _, to| {
            for (index, found) in saved.of_affine[part + shard].iter().enumerate() {
                CopyKernel {
                    from: found.values(),
                    to: to.get(index),
                }
                .run_on(tensors.device());
            }
        });
        Ok(())
    }
}
