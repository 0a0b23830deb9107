//! [`GraphLayer`]: a layer made of a small graph of parts, with normalisations over the whole
//! global batch between them.

mod image_parts;

use std::ops::Range;

use ronde_core::Shard;
use ronde_core::layout::StateLayout;

use super::batch_wide_norm::BatchWideNorm;
use super::cost_per_sample;
use super::layer_size::LayerSize;
use crate::lock_step::SingleRankSums;
use crate::pending_shards::PendingShards;
use crate::{
    Activation, EngineError, ForwardContext, Layer, LayerCost, LockStep, Mode, ShardGradient,
    ShardInput, ShardSums,
};

pub(super) use image_parts::Images;

/// A node of the graph.
pub(super) enum GraphPart {
    /// Runs each shard separately.
    Layer(Box<dyn Layer>),
    /// Needs sums over all shards.
    Norm(BatchWideNorm),
}

/// The index of a part, in the order of the layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartId(usize);

/// The index of a value: the input, or the output of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GraphValue(usize);

/// One execution of a part: reads a value, a normalisation optionally a second one that it adds,
/// and writes the next.
#[derive(Clone, Copy)]
struct GraphEdge {
    part: usize,
    from: GraphValue,
    added: Option<GraphValue>,
}

/// A small graph of parts as one layer. The last edge computes the output.
pub(super) struct GraphLayer {
    layout: StateLayout,
    sample: Vec<usize>,
    size: LayerSize,
    parts: Vec<GraphPart>,
    /// The range of the tensors of each part in the layout.
    tensors: Vec<Range<usize>>,
    wires: Vec<GraphEdge>,
    /// The shapes of input and output.
    pending: PendingShards<[Vec<usize>; 2]>,
}

impl GraphLayer {
    /// Creates a graph without parts, for samples of a shape. The first layer of a model computes
    /// no input gradient.
    pub(super) fn new(name: &str, sample: &[usize], size: &LayerSize, is_first: bool) -> Self {
        Self {
            layout: StateLayout::default(),
            sample: sample.to_vec(),
            size: size.clone(),
            parts: Vec::new(),
            tensors: Vec::new(),
            wires: Vec::new(),
            pending: PendingShards::new(name, !is_first),
        }
    }

    /// Adds a part; its tensors follow those of the earlier parts.
    pub(super) fn part(&mut self, part: GraphPart) -> PartId {
        let layout = match &part {
            GraphPart::Layer(layer) => layer.layout(),
            GraphPart::Norm(norm) => norm.layout(),
        };
        let start = self.layout.tensors.len();
        self.layout.tensors.extend(layout.tensors.iter().cloned());
        self.tensors.push(start..self.layout.tensors.len());
        self.parts.push(part);
        PartId(self.parts.len() - 1)
    }

    /// Returns the input of the layer, which is images.
    pub(super) fn images(&self) -> Images {
        let shape = std::array::from_fn(|dim| self.sample.get(dim).copied().unwrap_or(0));
        Images {
            value: GraphValue(0),
            shape,
        }
    }

    /// Runs a part on a value; returns its output.
    pub(super) fn wire(
        &mut self,
        part: PartId,
        from: GraphValue,
        added: Option<GraphValue>,
    ) -> GraphValue {
        let part = part.0;
        self.wires.push(GraphEdge { part, from, added });
        GraphValue(self.wires.len())
    }

    /// Returns whether a value is used after an edge.
    fn is_used_after(&self, value: GraphValue, wire: usize) -> bool {
        let later = self.wires[wire + 1..].iter();
        later
            .clone()
            .any(|wire| wire.from == value || wire.added == Some(value))
    }

    fn ranges_of<'a>(&self, part: usize, ranges: &'a [Range<usize>]) -> &'a [Range<usize>] {
        &ranges[self.tensors[part].clone()]
    }

    /// Returns the input of an edge, moved if no later edge needs it.
    fn taken(
        &self,
        values: &mut GraphValues,
        wire: usize,
    ) -> (Vec<Activation>, Option<Vec<Activation>>) {
        let GraphEdge { from, added, .. } = self.wires[wire];
        let mut take = |value: GraphValue, is_needed: bool| {
            if is_needed || self.is_used_after(value, wire) {
                values[value.0].clone()
            } else {
                std::mem::take(&mut values[value.0])
            }
        };
        let added_too = added == Some(from);
        (take(from, added_too), added.map(|added| take(added, false)))
    }
}

/// The values of all shards, indexed by [`GraphValue`].
type GraphValues = Vec<Vec<Activation>>;

impl Layer for GraphLayer {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        for (part, tensors) in self.parts.iter_mut().zip(&self.tensors) {
            let ranges = &ranges[tensors.clone()];
            match part {
                GraphPart::Layer(layer) => layer.load(state, ranges),
                GraphPart::Norm(norm) => norm.load(state, ranges),
            }
        }
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        for (part, tensors) in self.parts.iter().zip(&self.tensors) {
            let ranges = &ranges[tensors.clone()];
            match part {
                GraphPart::Layer(layer) => layer.save(state, ranges),
                GraphPart::Norm(norm) => norm.save(state, ranges),
            }
        }
    }

    /// In training the shard is treated as the whole batch.
    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        if context.mode == Mode::Evaluate {
            return self.evaluate(input, context);
        }
        let context = *context;
        let outputs =
            self.forward_shards(vec![ShardInput { input, context }], &mut SingleRankSums)?;
        Ok(only(outputs))
    }

    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let given = ShardGradient {
            shard,
            grad_output,
            gradients,
        };
        self.backward_shards(
            vec![given],
            ranges,
            needs_input_gradient,
            &mut SingleRankSums,
        )
        .map(only)
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        cost_per_sample(&self.size.output, self.size.kept)(input_shape)
    }

    fn discard(&mut self) {
        self.pending.clear();
        for part in &mut self.parts {
            match part {
                GraphPart::Layer(layer) => layer.discard(),
                GraphPart::Norm(norm) => norm.discard(),
            }
        }
    }

    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        Some(self)
    }
}

impl GraphLayer {
    fn evaluate(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        self.pending.check_samples(input.shape(), &self.sample)?;
        let mut values: GraphValues = vec![Vec::new(); self.wires.len() + 1];
        values[0] = vec![input];
        for wire in 0..self.wires.len() {
            let (from, added) = self.taken(&mut values, wire);
            let from = only(from);
            let output = match &mut self.parts[self.wires[wire].part] {
                GraphPart::Layer(layer) => layer.forward(from, context)?,
                GraphPart::Norm(norm) => norm.evaluate(&from, added.map(only))?,
            };
            values[wire + 1] = vec![output];
        }
        Ok(only(values.pop().unwrap_or_default()))
    }
}

impl LockStep for GraphLayer {
    fn forward_shards(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let mut values: GraphValues = vec![Vec::new(); self.wires.len() + 1];
        let mut contexts = Vec::new();
        let mut shapes = Vec::new();
        for ShardInput { input, context } in shards {
            self.pending.check_samples(input.shape(), &self.sample)?;
            shapes.push(input.shape().to_vec());
            values[0].push(input);
            contexts.push(context);
        }
        for wire in 0..self.wires.len() {
            let (from, added) = self.taken(&mut values, wire);
            values[wire + 1] = match &mut self.parts[self.wires[wire].part] {
                GraphPart::Norm(norm) => norm.forward(from, added, &contexts, sums)?,
                GraphPart::Layer(layer) => {
                    let each = from.into_iter().zip(&contexts);
                    let each = each.map(|(input, &context)| ShardInput { input, context });
                    layer.forward_shards(each.collect(), sums)?
                }
            };
        }
        let outputs = values.pop().unwrap_or_default();
        for ((output, context), input) in outputs.iter().zip(&contexts).zip(shapes) {
            let shapes = [input, output.shape().to_vec()];
            self.pending.begin(context.shard, shapes);
        }
        Ok(outputs)
    }

    fn backward_shards(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let mut found: GraphValues = vec![Vec::new(); self.wires.len() + 1];
        let mut buffers: ShardBuffers<'_> = Vec::new();
        for given in shards {
            let [_, output] = self.pending.end(given.shard, needs_input_gradient)?;
            self.pending
                .check_gradient(given.grad_output.shape(), &output)?;
            found[self.wires.len()].push(given.grad_output);
            buffers.push((given.shard, given.gradients));
        }
        for wire in (0..self.wires.len()).rev() {
            let is_needed = self.wires[wire].from != GraphValue(0) || needs_input_gradient;
            self.back_through(wire, &mut found, &mut buffers, ranges, is_needed, sums)?;
        }
        let of_input = std::mem::take(&mut found[0]).into_iter().map(Some);
        let missing = std::iter::repeat_with(|| None);
        Ok(of_input.chain(missing).take(buffers.len()).collect())
    }
}

/// Shards, and the buffers for the gradients of their parameters.
type ShardBuffers<'a> = Vec<(Shard, &'a mut [f32])>;

impl GraphLayer {
    /// Runs backward of one part, from the gradients of its output to those of its inputs.
    fn back_through(
        &mut self,
        wire: usize,
        found: &mut GraphValues,
        buffers: &mut ShardBuffers<'_>,
        ranges: &[Range<usize>],
        is_needed: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<(), EngineError> {
        let GraphEdge { part, from, added } = self.wires[wire];
        let ranges = self.ranges_of(part, ranges);
        let gradients = std::mem::take(&mut found[wire + 1]).into_iter();
        let given = gradients
            .zip(buffers)
            .map(|(grad_output, (shard, gradients))| ShardGradient {
                shard: *shard,
                grad_output,
                gradients,
            });
        let given: Vec<ShardGradient<'_>> = given.collect();
        match &mut self.parts[part] {
            GraphPart::Layer(layer) => {
                let back = layer.backward_shards(given, ranges, is_needed, sums)?;
                add(&mut found[from.0], back.into_iter().flatten().collect());
            }
            GraphPart::Norm(norm) => {
                let back = norm.backward(given, ranges, sums)?;
                let (of_input, of_added): (Vec<_>, Vec<_>) = back.into_iter().unzip();
                add(&mut found[from.0], of_input);
                if let Some(added) = added {
                    add(
                        &mut found[added.0],
                        of_added.into_iter().flatten().collect(),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Adds gradients from another path to those of a value, shard by shard.
fn add(found: &mut Vec<Activation>, more: Vec<Activation>) {
    if found.is_empty() {
        *found = more;
        return;
    }
    for (found, more) in found.iter_mut().zip(more) {
        let shape = found.shape().to_vec();
        let mut sum = std::mem::replace(found, Activation::nothing()).into_host();
        for (sum, more) in sum.iter_mut().zip(more.as_slice()) {
            *sum += more;
        }
        *found = Activation::from_host(&shape, sum);
    }
}

fn only<T>(values: Vec<T>) -> T {
    let mut values = values.into_iter();
    values.next().expect("one output per shard")
}
