//! [`Attend`]: every head of an attention as one operation.

use std::ops::Range;

use ronde_kernels::Attention;

use super::embedding::read_length;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{AttendGradientKernel, AttendKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptPositions, KeptValues, Tensors, copy_run};

/// `softmax(q k' / sqrt(width)) v` of each head: queries `[N, T, E]`, keys and values side by side
/// `[N, S, 2 E]`, and optionally the number of attended keys of each sample, `[N, 1, E]`, as
/// written by [`GraphBuilder::source_lengths`](crate::GraphBuilder::source_lengths).
pub(crate) struct Attend {
    /// The lengths for one sample.
    pub(crate) shape: Attention,
}

/// The values kept of one shard.
pub(crate) struct SavedAttention {
    inputs: [Activation; 2],
    lengths: Vec<usize>,
    statistics: Activation,
    has_lengths: bool,
}

/// Returns the shape of the kept values of each query of each head.
fn statistics_of(shape: &Attention) -> [usize; 4] {
    [shape.batch, shape.heads, shape.queries, 2]
}

/// Returns the lengths of some samples; none if there are none of all.
fn some(lengths: &[usize], samples: Range<usize>) -> &[usize] {
    lengths.get(samples).unwrap_or_default()
}

impl Attend {
    fn shape(&self, batch: usize) -> Attention {
        Attention {
            batch,
            ..self.shape
        }
    }
}

impl GraphOperation for Attend {
    type Saved = SavedAttention;

    fn computation(&self) -> Computation {
        Computation::Attention(self.shape)
    }

    fn kept(&self) -> KeptValues {
        let [.., statistics] = self.shape.elements();
        KeptValues {
            inputs: vec![true, true, false],
            output: false,
            more: 0,
            always_f32: statistics,
        }
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn each_saved(&self, saved: &mut SavedAttention, visit: &mut dyn FnMut(&mut Activation)) {
        saved.inputs.iter_mut().for_each(visit);
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, SavedAttention), EngineError> {
        let has_lengths = inputs.len() > 2;
        let lengths: Vec<usize> = inputs.get(2).map_or_else(Vec::new, |carried| {
            let row = carried.shape().last().copied().unwrap_or(1);
            carried
                .unpacked(tensors.device())
                .values()
                .to_vec()
                .chunks_exact(row.max(1))
                .map(read_length)
                .collect()
        });
        let [queries, keys_values] = super::first_two(inputs);
        let shape = self.shape(queries.samples());
        let device = tensors.device();
        let mut y = tensors.result(queries.shape());
        let mut statistics = tensors.unwritten(&statistics_of(&shape));
        let blocks = tensors.blocks_of_products(queries.samples());
        let inputs = [&queries, &keys_values];
        let outputs = [&mut y, &mut statistics];
        blocks.run(inputs, outputs, |samples, [q, kv], [to, found]| {
            let shape = self.shape(samples.len());
            AttendKernel {
                shape,
                queries: q,
                keys_values: kv,
                lengths: some(&lengths, samples).to_vec(),
                y: to,
                statistics: found,
            }
            .run_on(device);
        });
        let saved = SavedAttention {
            inputs: [queries, keys_values],
            lengths,
            statistics,
            has_lengths,
        };
        Ok((y, saved))
    }

    /// Attends to the kept keys and values, and keeps those of the new positions.
    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        if inputs.len() > 2 || !self.shape.causal {
            return Ok(None);
        }
        let [queries, keys_values] = super::first_two(inputs);
        let (texts, more) = (queries.samples(), queries.shape()[1]);
        kept.check_length(more, self.shape.keys)?;
        let row = self.shape.heads * self.shape.width;
        let device = tensors.device();
        let mut y = tensors.unwritten(queries.shape());
        if kept.texts.iter().all(|text| text.tokens() == 0) {
            for text in 0..texts {
                kept.push(device, text, (keys_values.values(), more, 2 * row));
            }
            let shape = Attention {
                batch: texts,
                queries: more,
                keys: more,
                ..self.shape
            };
            let mut statistics = tensors.unwritten(&statistics_of(&shape));
            AttendKernel {
                shape,
                queries: queries.values(),
                keys_values: keys_values.values(),
                lengths: Vec::new(),
                y: y.values_mut(device),
                statistics: statistics.values_mut(device),
            }
            .run_on(device);
            return Ok(Some(y));
        }
        let mut asked = tensors.unwritten(&[row]);
        let mut found = tensors.unwritten(&[row]);
        for text in 0..texts {
            let first = kept.texts[text].tokens();
            let all = kept.push(device, text, (keys_values.values(), more, 2 * row));
            let shape = Attention {
                batch: 1,
                queries: 1,
                keys: all.capacity(),
                causal: false,
                ..self.shape
            };
            let mut statistics = tensors.unwritten(&statistics_of(&shape));
            for position in 0..more {
                let at = (text * more + position) * row;
                copy_run(device, (&queries, at), (&mut asked, 0), row);
                AttendKernel {
                    shape,
                    queries: asked.values(),
                    keys_values: all.values(),
                    lengths: vec![first + position + 1],
                    y: found.values_mut(device),
                    statistics: statistics.values_mut(device),
                }
                .run_on(device);
                copy_run(device, (&found, 0), (&mut y, at), row);
            }
        }
        Ok(Some(y))
    }

    fn backward_input(
        &self,
        saved: &mut SavedAttention,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let [queries, keys_values] = &saved.inputs;
        let device = tensors.device();
        let mut found = [queries, keys_values].map(|input| tensors.result(input.shape()));
        // With inputs in a short format, the weights have it in the backward pass.
        let format = queries.rounded_to();
        let inputs = [queries, keys_values, &saved.statistics, &gradient];
        let blocks = tensors.blocks_of_products(queries.samples());
        blocks.run(inputs, found.each_mut(), |samples, of, to| {
            let shape = self.shape(samples.len());
            let lengths = some(&saved.lengths, samples);
            let [queries, keys_values, statistics, dy] = of;
            let [of_queries, of_keys_values] = to;
            AttendGradientKernel {
                shape,
                format,
                queries,
                keys_values,
                statistics,
                dy,
                lengths: lengths.to_vec(),
                of_queries,
                of_keys_values,
            }
            .run_on(device);
        });
        let mut all: Vec<Option<Activation>> = found.into_iter().map(Some).collect();
        if saved.has_lengths {
            all.push(None);
        }
        all
    }
}
