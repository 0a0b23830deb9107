//! Passes of a run of shards, layer by layer. A layer that joins shards gets all of them in one call, and writes the sum of their
//! gradients for each subtree of the exact sum; others run each shard alone, and their gradients are added here.

use std::ops::Range;

use ronde_core::exact::TreeSum;
use ronde_core::layout::Arena;
use ronde_core::{Buffer, DType, Shard, Step};
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, Mode, NotSummed, ShardGradient, ShardInput, ShardSums,
};

use super::passes::Passes;
use super::program::RunningStep;
use crate::error::ParallelError;

/// The values or the gradients of the shards of a run; `None` for a shard without samples.
type RunValues = Vec<Option<Activation>>;

/// Layers that need sums over all shards run in lock step.
struct NoSums;

impl ShardSums for NoSums {
    fn sum(&mut self, _len: usize, _parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed> {
        Err(NotSummed)
    }
}

impl Passes<'_> {
    /// Returns the number of shards that pass through the layers together.
    pub(super) fn together(&self) -> u32 {
        match self.mesh.layout.stages() {
            [_] => self.config.together.max(1),
            _ => 1,
        }
    }

    /// Runs the forward pass of a run of shards through the layers of a unit.
    pub(super) fn forward_run(
        &mut self,
        index: usize,
        run: Range<u32>,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let unit = self.reducer.unit(index);
        let (stage, layers) = (unit.stage, unit.layers.clone());
        let mut values = RunValues::with_capacity(run.len());
        for shard in run.clone() {
            let input = self.input(stage, &layers, shard, running)?;
            let samples = input.as_ref().map_or(0, Activation::samples);
            running.samples.insert(shard, samples);
            values.push(input);
        }
        for layer in layers {
            let passed = match self.joins(layer, run.len()) {
                true => self.forward_joined(layer, (running.step, &run), values),
                false => self.forward_alone(layer, (running.step, &run), values),
            };
            values = passed?;
        }
        for (shard, output) in run.zip(values) {
            running.outputs.insert((stage, shard), output);
        }
        Ok(())
    }

    fn joins(&self, layer: usize, shards: usize) -> bool {
        shards > 1 && self.model.chain.layers()[layer].facts().joins_shards()
    }

    fn forward_alone(
        &mut self,
        layer: usize,
        (step, run): (Step, &Range<u32>),
        values: RunValues,
    ) -> Result<RunValues, ParallelError> {
        let mut outputs = RunValues::with_capacity(values.len());
        for (shard, input) in run.clone().zip(values) {
            let of = (step, Shard(shard), Mode::Train);
            let output = input.map(|input| self.model.forward(layer..layer + 1, of, input));
            let output = output.transpose();
            outputs.push(output.map_err(|source| self.model.pass_error(Shard(shard), source))?);
        }
        Ok(outputs)
    }

    fn forward_joined(
        &mut self,
        layer: usize,
        (step, run): (Step, &Range<u32>),
        values: RunValues,
    ) -> Result<RunValues, ParallelError> {
        let Some((values, shape)) = with_empty_shards(values) else {
            return Ok(vec![None; run.len()]);
        };
        let inputs = run.clone().zip(values).map(|(shard, input)| ShardInput {
            input,
            context: self.model.context((step, Shard(shard)), layer, Mode::Train),
        });
        let inputs = inputs.collect();
        let outputs = self.model.pass(layer, "forward", shape, |layer| {
            layer.forward(inputs, &mut NoSums)
        });
        let outputs = outputs.map_err(|source| self.model.pass_error(Shard(run.start), source))?;
        Ok(outputs.into_iter().map(unless_empty).collect())
    }

    /// Runs the backward pass of a run of shards through the layers of a unit, and adds their gradients.
    pub(super) fn backward_run(
        &mut self,
        index: usize,
        run: Range<u32>,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let stage = self.reducer.unit(index).stage;
        let subtrees = self.reducer.subtrees(index, run.clone());
        let sums = subtrees.iter().map(|_| self.reducer.take_unit(index));
        let mut sums = sums.collect::<Result<Vec<_>, _>>()?;
        let gradients = run
            .clone()
            .map(|shard| running.gradients.remove(&(stage, shard)));
        let mut gradients: RunValues = gradients.map(Option::flatten).collect();
        if gradients.iter().all(Option::is_none) {
            sums.iter_mut().for_each(|sum| sum.values_mut().fill(0.0));
        } else {
            for layer in self.reducer.unit(index).layers.clone().rev() {
                let ranges = self.reducer.unit_ranges(index, layer);
                let parts = subtrees.iter().cloned().zip(&mut sums);
                let to = parts
                    .map(|(shards, sum)| (shards, sum.values_mut()))
                    .collect();
                gradients = match self.joins(layer, run.len()) {
                    true => self.backward_joined(layer, gradients, to, &ranges),
                    false => self.backward_alone(layer, gradients, to, (&ranges, running)),
                }?;
            }
        }
        for (shards, sum) in subtrees.iter().zip(sums) {
            self.reducer.add_unit(shards, sum);
        }
        for (shard, gradient) in run.zip(gradients) {
            running.gradients.insert((stage, shard), gradient);
        }
        Ok(())
    }

    /// Runs backward of a layer that joins shards. It writes the sums.
    fn backward_joined(
        &mut self,
        layer: usize,
        gradients: RunValues,
        sums: Vec<(Range<u32>, &mut [f32])>,
        ranges: &[Range<usize>],
    ) -> Result<RunValues, ParallelError> {
        let first = sums.first().map_or(0, |(shards, _)| shards.start);
        let Some((gradients, shape)) = with_empty_shards(gradients) else {
            return Ok(Vec::new());
        };
        let mut gradients = gradients.into_iter();
        let given = sums.into_iter().map(|(shards, to)| {
            let mut of_sum = shards.map(Shard).zip(gradients.by_ref());
            let (shard, grad_output) = of_sum.next().expect("a subtree has a shard");
            ShardGradient {
                shard,
                grad_output,
                gradients: to,
                added: of_sum.collect(),
            }
        });
        let given = given.collect();
        let pass = BackwardPass {
            part: BackwardPart::Whole,
            ranges,
            needs_input_gradient: layer > 0,
        };
        let found = self.model.pass(layer, "backward", shape, |layer| {
            layer.backward(given, pass, &mut NoSums)
        });
        let found = found.map_err(|source| self.model.pass_error(Shard(first), source))?;
        Ok(found
            .into_iter()
            .map(|found| found.and_then(unless_empty))
            .collect())
    }

    /// Runs backward of a layer shard by shard.
    fn backward_alone(
        &mut self,
        layer: usize,
        gradients: RunValues,
        sums: Vec<(Range<u32>, &mut [f32])>,
        (ranges, running): (&[Range<usize>], &RunningStep),
    ) -> Result<RunValues, ParallelError> {
        let mut found = RunValues::with_capacity(gradients.len());
        let mut gradients = gradients.into_iter();
        let own = Arena::new(ranges.iter().map(ExactSizeIterator::len));
        for (shards, to) in sums {
            let samples = |shard: u32| running.samples.get(&shard).copied().unwrap_or(0);
            if shards.len() == 1 {
                let of = (Shard(shards.start), samples(shards.start));
                let gradient = gradients.next().flatten();
                found.push(self.backward_shard(layer, of, gradient, to, ranges)?);
                continue;
            }
            let mut sum = TreeSum::new(shards.len() as u32);
            let first = shards.start;
            for shard in shards {
                let mut buffer = Buffer::host(DType::F32, own.len());
                let (of, gradient) = ((Shard(shard), samples(shard)), gradients.next().flatten());
                let values = buffer.as_mut_slice();
                found.push(self.backward_shard(layer, of, gradient, values, own.ranges())?);
                sum.add_shard(shard - first, buffer);
            }
            for (_, sum) in sum.take() {
                for (from, to_range) in own.ranges().iter().zip(ranges) {
                    to[to_range.clone()].copy_from_slice(&sum.as_slice()[from.clone()]);
                }
            }
        }
        Ok(found)
    }

    /// Runs backward of a layer for one shard, whose gradient is zero without samples.
    fn backward_shard(
        &mut self,
        layer: usize,
        (shard, samples): (Shard, usize),
        gradient: Option<Activation>,
        to: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<Option<Activation>, ParallelError> {
        let Some(output) = gradient else {
            ranges.iter().for_each(|range| to[range.clone()].fill(0.0));
            return Ok(None);
        };
        let found = self.model.backward(layer, shard, output, to, ranges);
        let found = found.map_err(|source| self.model.pass_error(shard, source))?;
        self.model.weigh_buffers(layer, samples, ranges, to);
        Ok(found)
    }
}

/// Returns values without samples for the shards that have none, and the shape of the others; `None` if no shard has samples.
fn with_empty_shards(values: RunValues) -> Option<(Vec<Activation>, Vec<usize>)> {
    let known = values.iter().flatten().next()?;
    let shape = known.shape().to_vec();
    let mut empty = shape.clone();
    empty[0] = 0;
    let values = values.into_iter();
    let values =
        values.map(|value| value.unwrap_or_else(|| Activation::from_host(&empty, Vec::new())));
    Some((values.collect(), shape))
}

fn unless_empty(value: Activation) -> Option<Activation> {
    (value.samples() > 0).then_some(value)
}
