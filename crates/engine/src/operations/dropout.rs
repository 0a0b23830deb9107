//! [`Dropout`]: random elements set to zero in training.

use super::only;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::{DrawDropoutKernel, DrawnRows, MultiplyByKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, JoinedShard, KeptValues, Tensors, copy_run};

/// Multiplies by the factors that the context draws; the identity in evaluation.
pub(crate) struct Dropout {
    pub(crate) probability: f64,
    /// The number of the dropout in its layer, a part of its key.
    pub(crate) index: u64,
    /// The number of elements of one sample.
    pub(crate) elements: usize,
}

impl Dropout {
    /// Draws the factors of the samples of each joined shard, or of one shard.
    fn draw_shards(
        &self,
        x: &Activation,
        tensors: Tensors<'_>,
        context: &ForwardContext,
        factors: &mut Activation,
    ) {
        let device = tensors.device();
        let alone = [JoinedShard {
            shard: context.shard,
            place: 0,
            samples: 0..x.samples(),
        }];
        let each = x.elements() / x.samples().max(1);
        let shards = match tensors.joined() {
            [] => &alone,
            joined => joined,
        };
        for of in shards {
            let elements = of.samples.start * each..of.samples.end * each;
            DrawDropoutKernel {
                context: ForwardContext {
                    shard: of.shard,
                    ..*context
                },
                probability: self.probability,
                index: self.index,
                drawn: DrawnRows::all(elements.len()),
                to: factors.values_mut(device).range(elements),
            }
            .run_on(device);
        }
    }

    /// Draws the factors of a value. Those of own tokens are those that the whole value has there.
    fn factors(
        &self,
        x: &Activation,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Activation {
        let device = tensors.device();
        let mut factors = tensors.unwritten(x.shape());
        let Some(tokens) = tensors.tokens() else {
            self.draw_shards(x, tensors, context, &mut factors);
            return factors;
        };
        let samples = x.samples();
        let each_token = self.elements / tokens.all().max(1);
        let pieces = tokens.pieces();
        let is_alone = pieces.len() == 1;
        for piece in pieces {
            let drawn = DrawnRows {
                row: self.elements,
                first: piece.tokens.start * each_token,
                length: piece.tokens.len() * each_token,
            };
            if is_alone {
                let to = factors.values_mut(device);
                DrawDropoutKernel {
                    context: *context,
                    probability: self.probability,
                    index: self.index,
                    drawn,
                    to,
                }
                .run_on(device);
                break;
            }
            let mut found = tensors.unwritten(&[samples, drawn.length]);
            let to = found.values_mut(device);
            DrawDropoutKernel {
                context: *context,
                probability: self.probability,
                index: self.index,
                drawn,
                to,
            }
            .run_on(device);
            let start = piece.before * samples * each_token;
            let elements = samples * drawn.length;
            copy_run(device, (&found, 0), (&mut factors, start), elements);
        }
        factors
    }
}

impl GraphOperation for Dropout {
    /// The factors; `None` in evaluation.
    type Saved = Option<Activation>;

    fn computation(&self) -> Computation {
        Computation::Identity
    }

    fn takes_packed(&self) -> bool {
        true
    }

    /// The factors stay f32, so that both passes multiply by the same ones.
    fn kept(&self) -> KeptValues {
        KeptValues {
            always_f32: self.elements,
            ..KeptValues::default()
        }
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
        context: &ForwardContext,
    ) -> Result<(Activation, Option<Activation>), EngineError> {
        let mut x = only(inputs);
        if context.mode == Mode::Evaluate {
            return Ok((x, None));
        }
        let device = tensors.device();
        let factors = self.factors(&x, tensors, context);
        let blocks = tensors.blocks(x.elements());
        blocks.change(&mut x, [&factors], |_, x, [factors]| {
            MultiplyByKernel { y: x, factors }.run_on(device);
        });
        Ok((x, Some(factors)))
    }

    fn backward_input(
        &self,
        factors: &mut Option<Activation>,
        mut gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        if let Some(factors) = factors {
            let device = tensors.device();
            let blocks = tensors.blocks(factors.elements());
            blocks.change(&mut gradient, [factors], |_, gradient, [factors]| {
                MultiplyByKernel {
                    y: gradient,
                    factors,
                }
                .run_on(device);
            });
        }
        vec![Some(gradient)]
    }
}
