//! [`GraphBuilder`]: describes a layer as a small graph of operations, with checked shapes.

use std::ops::Range;

use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_kernels::{ActivationFunction, GroupedConvolution, SlidingWindow};

use super::{GraphNode, GraphOperation, OwnTensor, PerShard};
use crate::initial::Initial;
use crate::models::Normalisation;
use crate::operations::{
    Activate, Add, Attend, AveragePool, AverageTo, Concatenate, Convolve, Dropout, Linear, MaxPool,
    NormaliseBatch, NormaliseBatchWide, NormaliseGroups, NormaliseRows, Rectify, Reshape,
    TakeSlice, Upsample,
};
use crate::{AfterNorm, EngineError, LayerCost};

/// The maximum number of elements of a value or tensor.
const ELEMENTS_MAX: usize = 1 << 40;

/// A value of a graph: its input, or the output of an operation. Valid for the builder that returned it; another one may
/// panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphValue(pub(super) usize);

/// The keys to which the queries of an attention attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// All keys.
    All,
    /// The key at the query's own position and all earlier ones.
    Earlier,
    /// The first keys of each sequence, whose number is encoded in a value: see
    /// [`GraphBuilder::source_lengths`].
    First(GraphValue),
}

/// One operation of a graph.
pub(super) struct NodeEntry {
    pub(super) node: Box<dyn GraphNode>,
    pub(super) inputs: Vec<usize>,
    /// Its tensors in the layer's layout.
    pub(super) tensors: Range<usize>,
}

/// A layer without weights: its operations, the shapes of all values, and its tensors. Costs no
/// memory in proportion to the layer.
pub struct GraphOutline {
    pub(super) name: String,
    pub(super) nodes: Vec<NodeEntry>,
    /// The shape of each value, without the number of samples.
    pub(super) shapes: Vec<Vec<usize>>,
    pub(super) layout: StateLayout,
    pub(super) initial: Vec<Initial>,
}

impl GraphOutline {
    /// Returns the tensors.
    #[must_use]
    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// Returns the shape of the output of one sample.
    #[must_use]
    pub fn output(&self) -> &[usize] {
        self.shapes.last().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of floats that one sample keeps from forward until backward: each value
    /// that an operation needs, once, and what operations store besides.
    pub(super) fn kept_floats(&self) -> usize {
        let mut is_kept = vec![false; self.shapes.len()];
        let mut more = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            let kept = node.node.kept();
            more += kept.more;
            is_kept[index + 1] |= kept.output;
            for (value, _) in node
                .inputs
                .iter()
                .zip(&kept.inputs)
                .filter(|(_, kept)| **kept)
            {
                is_kept[*value] = true;
            }
        }
        let values = self.shapes.iter().zip(is_kept).filter(|(_, kept)| *kept);
        more + values
            .map(|(shape, _)| shape.iter().product::<usize>())
            .sum::<usize>()
    }

    /// Returns the shape of the output and the kept floats for an input of `samples` samples.
    #[must_use]
    pub fn cost(&self, samples: usize) -> LayerCost {
        LayerCost {
            output_shape: [&[samples], self.output()].concat(),
            kept_floats: samples * self.kept_floats(),
        }
    }
}

/// Describes a layer operation by operation. Each method adds one and returns its output; the last
/// one added computes the output of the layer.
///
/// Names of tensors are `{layer}.{operation}.{tensor}`. Shapes are those of one sample. The first
/// mistake is reported by [`GraphBuilder::finish`]; methods after it have no effect.
///
/// ```
/// use ronde_core::seed::SeedTree;
/// use ronde_engine::{Chain, GraphBuilder, GraphLayer, Layer};
///
/// let mut hidden = GraphBuilder::new("hidden", &[64]);
/// let x = hidden.linear("up", hidden.input(), 32, true);
/// hidden.relu(x);
/// let mut output = GraphBuilder::new("output", &[32]);
/// output.linear("", output.input(), 10, true);
/// let seeds = SeedTree::new(1);
/// let layers = [hidden, output].map(|layer| layer.build(&seeds));
/// let layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
/// let model = Chain::new(layers)?;
/// assert_eq!(model.layout().tensors[0].name, "hidden.up.weight");
/// assert_eq!(model.layout().tensors[3].name, "output.bias");
/// # Ok::<(), ronde_engine::EngineError>(())
/// ```
pub struct GraphBuilder {
    outline: GraphOutline,
    prefix: String,
    initial: Initial,
    dropouts: u64,
    is_used: Vec<bool>,
    problem: Option<String>,
}

impl GraphBuilder {
    /// Starts a layer for samples of a shape.
    #[must_use]
    pub fn new(name: &str, sample: &[usize]) -> Self {
        let mut builder = Self {
            outline: GraphOutline {
                name: name.to_owned(),
                nodes: Vec::new(),
                shapes: vec![sample.to_vec()],
                layout: StateLayout::default(),
                initial: Vec::new(),
            },
            prefix: format!("{name}."),
            initial: Initial::Rectifier,
            dropouts: 0,
            is_used: vec![false],
            problem: None,
        };
        builder.check_elements(sample, "a sample");
        builder
    }

    /// Uses the layer's name in messages only, not in the names of tensors.
    #[must_use]
    pub fn without_prefix(mut self) -> Self {
        self.prefix.clear();
        self
    }

    /// Sets the distribution of the initial weights of the operations added afterwards. The default
    /// is [`Initial::Rectifier`].
    pub fn set_initial(&mut self, initial: Initial) {
        self.initial = initial;
    }

    /// Returns the input of the layer.
    #[must_use]
    pub fn input(&self) -> GraphValue {
        GraphValue(0)
    }

    /// Returns the shape of a value of one sample.
    #[must_use]
    pub fn shape(&self, value: GraphValue) -> &[usize] {
        &self.outline.shapes[value.0]
    }

    /// Returns the description.
    ///
    /// # Errors
    /// The first mistake, or a value that no operation uses.
    pub fn finish(self) -> Result<GraphOutline, EngineError> {
        let unused = || {
            let operations = self.outline.nodes.len();
            if operations == 0 {
                return Some("it has no operations".to_owned());
            }
            let unused = self.is_used[..operations].iter().position(|used| !used)?;
            Some(match unused {
                0 => "no operation uses the input".to_owned(),
                number => format!("nothing uses the output of operation {number} of {operations}"),
            })
        };
        match self.problem.clone().or_else(unused) {
            Some(problem) => Err(EngineError::Graph {
                layer: self.outline.name,
                problem,
            }),
            None => Ok(self.outline),
        }
    }

    /// Builds the layer with initial weights that depend only on the seed and the tensors' names.
    ///
    /// # Errors
    /// As [`GraphBuilder::finish`].
    pub fn build(
        self,
        seeds: &ronde_core::seed::SeedTree,
    ) -> Result<Box<dyn crate::Layer>, EngineError> {
        Ok(Box::new(super::GraphLayer::new(self.finish()?, seeds)))
    }

    pub(crate) fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    fn check_elements(&mut self, shape: &[usize], what: &str) {
        let elements = shape
            .iter()
            .try_fold(1_usize, |product, &n| product.checked_mul(n));
        if elements.is_none_or(|elements| elements > ELEMENTS_MAX) {
            self.fail(format!(
                "cannot hold {what} of shape {shape:?}: more than 2^40 elements"
            ));
        }
    }

    /// Adds an operation that runs each shard on its own.
    pub(crate) fn add_operation<O: GraphOperation>(
        &mut self,
        operation: O,
        inputs: &[GraphValue],
        output: Vec<usize>,
        tensors: Vec<OwnTensor>,
    ) -> GraphValue {
        self.add_node(Box::new(PerShard::new(operation)), inputs, output, tensors)
    }

    pub(crate) fn add_node(
        &mut self,
        node: Box<dyn GraphNode>,
        inputs: &[GraphValue],
        output: Vec<usize>,
        tensors: Vec<OwnTensor>,
    ) -> GraphValue {
        self.check_elements(&output, "a value");
        for tensor in &tensors {
            self.check_elements(&tensor.entry.shape, "a tensor");
        }
        if self.problem.is_some() {
            return GraphValue(self.outline.shapes.len() - 1);
        }
        let first = self.outline.layout.tensors.len();
        for tensor in tensors {
            self.outline.layout.tensors.push(tensor.entry);
            self.outline.initial.push(tensor.initial);
        }
        for input in inputs {
            self.is_used[input.0] = true;
        }
        self.outline.nodes.push(NodeEntry {
            node,
            inputs: inputs.iter().map(|input| input.0).collect(),
            tensors: first..self.outline.layout.tensors.len(),
        });
        self.outline.shapes.push(output);
        self.is_used.push(false);
        GraphValue(self.outline.shapes.len() - 1)
    }

    /// Returns a tensor of the operation called `name`.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        tensor: &str,
        shape: &[usize],
        initial: Initial,
    ) -> OwnTensor {
        let separator = if name.is_empty() { "" } else { "." };
        let prefix = &self.prefix;
        let full = format!("{prefix}{name}{separator}{tensor}");
        self.check_elements(shape, "a tensor");
        let shape = if self.problem.is_some() {
            &[0][..]
        } else {
            shape
        };
        OwnTensor {
            entry: TensorEntry::f32(full, shape, Role::Parameter),
            initial,
        }
    }

    fn buffer(&mut self, name: &str, tensor: &str, length: usize, value: f32) -> OwnTensor {
        let mut own = self.tensor(name, tensor, &[length], Initial::Constant(value));
        own.entry.role = Role::Buffer;
        own
    }

    /// The initial distribution of the next weights.
    pub(crate) fn initial(&self) -> Initial {
        self.initial
    }

    /// Checks that a value is an image, and returns channels, height and width.
    fn image(&mut self, name: &str, x: GraphValue) -> [usize; 3] {
        match *self.shape(x) {
            [channels, height, width] => [channels, height, width],
            _ => {
                let shape = self.shape(x).to_vec();
                self.fail(format!(
                    "{name}: invalid input shape {shape:?}: expected [channels, height, width]"
                ));
                [1; 3]
            }
        }
    }

    fn same_shape(&mut self, name: &str, values: [GraphValue; 2]) {
        let [a, b] = values.map(|value| self.shape(value).to_vec());
        if a != b {
            self.fail(format!("{name}: shapes {a:?} and {b:?} differ"));
        }
    }

    /// Adds `x * weight + bias` over the last dimension: `weight` is `[inputs, outputs]`.
    pub fn linear(
        &mut self,
        name: &str,
        x: GraphValue,
        outputs: usize,
        has_bias: bool,
    ) -> GraphValue {
        let mut shape = self.shape(x).to_vec();
        let Some(last) = shape.last_mut() else {
            self.fail(format!("{name}: invalid input without dimensions"));
            return x;
        };
        let inputs = std::mem::replace(last, outputs);
        let initial = self.initial;
        let mut tensors = vec![self.tensor(name, "weight", &[inputs, outputs], initial)];
        if has_bias {
            tensors.push(self.tensor(name, "bias", &[outputs], Initial::Constant(0.0)));
        }
        let operation = Linear {
            inputs,
            outputs,
            has_bias,
        };
        self.add_operation(operation, &[x], shape, tensors)
    }

    /// Adds a convolution of `[channels, height, width]`; `weight` is `[outputs, channels, side,
    /// side]`.
    pub fn convolution(
        &mut self,
        name: &str,
        x: GraphValue,
        outputs: usize,
        window: SlidingWindow,
        has_bias: bool,
    ) -> GraphValue {
        self.grouped_convolution(name, x, [outputs, 1], window, has_bias)
    }

    /// Adds a convolution in which each of `groups` groups of input channels makes a group of the
    /// `outputs`; with as many groups as channels it is depthwise. `weight` is `[outputs, channels /
    /// groups, side, side]`.
    pub fn grouped_convolution(
        &mut self,
        name: &str,
        x: GraphValue,
        [outputs, groups]: [usize; 2],
        window: SlidingWindow,
        has_bias: bool,
    ) -> GraphValue {
        let [channels, height, width] = self.image(name, x);
        let size = [height, width].map(|length| window.count(length));
        if size.contains(&0) || window.side == 0 || window.stride == 0 {
            self.fail(format!(
                "{name}: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        if groups == 0 || !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            self.fail(format!(
                "{name}: {groups} groups do not divide {channels} channels and {outputs} outputs"
            ));
            return x;
        }
        let initial = self.initial;
        let shape = [outputs, channels / groups, window.side, window.side];
        let mut tensors = vec![self.tensor(name, "weight", &shape, initial)];
        if has_bias {
            tensors.push(self.tensor(name, "bias", &[outputs], Initial::Constant(0.0)));
        }
        let each = ronde_kernels::Convolution {
            channels: channels / groups,
            size: [height, width],
            outputs: outputs / groups,
            kernel: [window.side; 2],
            stride: [window.stride; 2],
            padding: [window.padding; 2],
        };
        let operation = Convolve {
            shape: GroupedConvolution { each, groups },
            has_bias,
        };
        self.add_operation(operation, &[x], vec![outputs, size[0], size[1]], tensors)
    }

    /// Adds a normalisation of channels, then the addition of `added` if there is one, then a
    /// rectifier if configured.
    pub fn normalise(
        &mut self,
        name: &str,
        kind: Normalisation,
        x: GraphValue,
        added: Option<GraphValue>,
        after: AfterNorm,
    ) -> GraphValue {
        let [channels, height, width] = self.image(name, x);
        if let Some(added) = added {
            self.same_shape(name, [x, added]);
        }
        let affine = [("gamma", 1.0), ("beta", 0.0)];
        let mut tensors: Vec<OwnTensor> = affine
            .into_iter()
            .map(|(tensor, value)| self.tensor(name, tensor, &[channels], Initial::Constant(value)))
            .collect();
        let shape = vec![channels, height, width];
        if kind == Normalisation::Group {
            let operation = NormaliseGroups::new(channels, height * width);
            if !channels.is_multiple_of(operation.groups()) {
                let groups = operation.groups();
                self.fail(format!(
                    "{name}: {channels} channels are not a multiple of {groups} groups"
                ));
            }
            let mut y = self.add_operation(operation, &[x], shape, tensors);
            if let Some(added) = added {
                y = self.add(y, added);
            }
            return match after {
                AfterNorm::Linear => y,
                AfterNorm::Rectified => self.relu(y),
            };
        }
        tensors.push(self.buffer(name, "running_mean", channels, 0.0));
        tensors.push(self.buffer(name, "running_var", channels, 1.0));
        let inputs: Vec<GraphValue> = std::iter::once(x).chain(added).collect();
        if kind == Normalisation::Batch {
            let operation = NormaliseBatch::new(channels, height * width, after, added.is_some());
            return self.add_operation(operation, &inputs, shape, tensors);
        }
        let title = format!("{}{name}", self.prefix);
        let node =
            NormaliseBatchWide::new(title, [channels, height * width], after, added.is_some());
        self.add_node(Box::new(node), &inputs, shape, tensors)
    }

    /// Adds a normalisation of the last dimension, with an epsilon of 1e-5.
    pub fn layer_norm(&mut self, name: &str, x: GraphValue) -> GraphValue {
        let shape = self.shape(x).to_vec();
        let width = shape.last().copied().unwrap_or(1);
        let affine = [("gamma", 1.0), ("beta", 0.0)];
        let tensors = affine
            .into_iter()
            .map(|(tensor, value)| self.tensor(name, tensor, &[width], Initial::Constant(value)))
            .collect();
        let rows = shape.iter().product::<usize>() / width.max(1);
        self.add_operation(NormaliseRows { rows }, &[x], shape, tensors)
    }

    /// Adds `max(x, 0)`; NaN is preserved.
    pub fn relu(&mut self, x: GraphValue) -> GraphValue {
        let shape = self.shape(x).to_vec();
        self.add_operation(Rectify, &[x], shape, Vec::new())
    }

    /// Adds a function of each element.
    pub fn activate(&mut self, x: GraphValue, function: ActivationFunction) -> GraphValue {
        let shape = self.shape(x).to_vec();
        let operation = Activate {
            function,
            elements: shape.iter().product(),
        };
        self.add_operation(operation, &[x], shape, Vec::new())
    }

    /// Adds dropout: in training, sets elements to zero with a probability and scales the others by
    /// `1 / (1 - probability)`.
    pub fn dropout(&mut self, x: GraphValue, probability: f64) -> GraphValue {
        if !(0.0..1.0).contains(&probability) {
            self.fail(format!(
                "invalid dropout = {probability}: expected at least 0 and below 1"
            ));
        }
        if probability == 0.0 {
            return x;
        }
        let shape = self.shape(x).to_vec();
        let operation = Dropout {
            probability,
            index: self.dropouts,
            elements: shape.iter().product(),
        };
        self.dropouts += 1;
        self.add_operation(operation, &[x], shape, Vec::new())
    }

    /// Adds the sum of two values of one shape.
    pub fn add(&mut self, a: GraphValue, b: GraphValue) -> GraphValue {
        self.same_shape("addition", [a, b]);
        let shape = self.shape(a).to_vec();
        self.add_operation(Add, &[a, b], shape, Vec::new())
    }

    /// Adds a change of shape to as many elements per sample.
    pub fn reshape(&mut self, x: GraphValue, shape: &[usize]) -> GraphValue {
        let from = self.shape(x).to_vec();
        if from.iter().product::<usize>() != shape.iter().product::<usize>() {
            self.fail(format!("cannot reshape {from:?} to {shape:?}"));
        }
        if from == shape {
            return x;
        }
        self.add_operation(Reshape::new(&from, shape), &[x], shape.to_vec(), Vec::new())
    }

    /// Adds a change of shape to one dimension.
    pub fn flatten(&mut self, x: GraphValue) -> GraphValue {
        let elements = self.shape(x).iter().product();
        self.reshape(x, &[elements])
    }

    /// Adds the greatest value of each window of `[channels, height, width]`.
    pub fn max_pool(&mut self, x: GraphValue, window: SlidingWindow) -> GraphValue {
        let [channels, height, width] = self.image("max_pool", x);
        let size = [height, width].map(|length| window.count(length));
        if size.contains(&0) || window.stride == 0 || window.padding >= window.side {
            self.fail(format!(
                "max_pool: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        let operation = MaxPool {
            size: [height, width],
            window,
            outputs: channels * size[0] * size[1],
        };
        self.add_operation(
            operation,
            &[x],
            vec![channels, size[0], size[1]],
            Vec::new(),
        )
    }

    /// Adds the mean of each window of `[channels, height, width]`; padding counts as zeros.
    pub fn average_pool(&mut self, x: GraphValue, window: SlidingWindow) -> GraphValue {
        let [channels, height, width] = self.image("average_pool", x);
        let size = [height, width].map(|length| window.count(length));
        if size.contains(&0) || window.stride == 0 || window.padding >= window.side {
            self.fail(format!(
                "average_pool: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        let operation = AveragePool {
            size: [height, width],
            window,
        };
        self.add_operation(
            operation,
            &[x],
            vec![channels, size[0], size[1]],
            Vec::new(),
        )
    }

    /// Enlarges `[channels, height, width]` by a factor: each element becomes a square.
    pub fn upsample(&mut self, x: GraphValue, factor: usize) -> GraphValue {
        let [channels, height, width] = self.image("upsample", x);
        if factor == 0 {
            self.fail("upsample: expected a factor of at least 1".to_owned());
            return x;
        }
        let shape = [height, width].map(|length| length.saturating_mul(factor));
        let shape = vec![channels, shape[0], shape[1]];
        self.add_operation(Upsample { width, factor }, &[x], shape, Vec::new())
    }

    /// Adds the means of `side` x `side` areas that cover `[channels, height, width]` evenly.
    pub fn average_to(&mut self, x: GraphValue, side: usize) -> GraphValue {
        let [channels, height, width] = self.image("average_to", x);
        if side == 0 {
            self.fail("average_to: expected at least one area".to_owned());
            return x;
        }
        let areas = ronde_kernels::AverageAreas {
            size: [height, width],
            areas: [side; 2],
        };
        self.add_operation(
            AverageTo { areas },
            &[x],
            vec![channels, side, side],
            Vec::new(),
        )
    }

    /// Adds the attention of several heads: `softmax(q k' / sqrt(width)) v`. Queries are
    /// `[positions, width]`; keys and values are side by side, `[positions, 2 * width]`.
    pub fn attention(
        &mut self,
        queries: GraphValue,
        keys_values: GraphValue,
        heads: usize,
        attended: Attended,
    ) -> GraphValue {
        let shapes = [queries, keys_values].map(|value| self.shape(value).to_vec());
        let ([asking, row], [keys, twice]) = (&shapes[0][..], &shapes[1][..]) else {
            self.fail(format!(
                "attention: invalid shapes {shapes:?}: expected [positions, width]"
            ));
            return queries;
        };
        if heads == 0 || !row.is_multiple_of(heads) || *twice != 2 * row {
            self.fail(format!("attention: {heads} heads of shapes {shapes:?}"));
            return queries;
        }
        if attended == Attended::Earlier && asking != keys {
            self.fail(format!(
                "attention: {asking} queries cannot attend to {keys} earlier keys"
            ));
        }
        let mut inputs = vec![queries, keys_values];
        if let Attended::First(lengths) = attended {
            // The rows that `source_lengths` makes.
            if !matches!(*self.shape(lengths), [1, width] if width >= 2) {
                let shape = self.shape(lengths).to_vec();
                self.fail(format!(
                    "attention: invalid shape {shape:?} of the lengths: expected that of source_lengths"
                ));
                return queries;
            }
            inputs.push(lengths);
        }
        let operation = Attend {
            shape: ronde_kernels::Attention {
                batch: 1,
                queries: *asking,
                keys: *keys,
                heads,
                width: row / heads,
                causal: attended == Attended::Earlier,
            },
        };
        self.add_operation(operation, &inputs, shapes[0].clone(), Vec::new())
    }

    /// Adds a part of a value along a dimension.
    pub fn slice(&mut self, x: GraphValue, dim: usize, part: Range<usize>) -> GraphValue {
        let from = self.shape(x).to_vec();
        if from.get(dim).is_none_or(|&length| part.end > length) || part.is_empty() {
            self.fail(format!(
                "cannot take {part:?} of dimension {dim} of {from:?}"
            ));
            return x;
        }
        if part.len() == from[dim] {
            return x;
        }
        let mut shape = from.clone();
        shape[dim] = part.len();
        self.add_operation(TakeSlice::new(&from, dim, part), &[x], shape, Vec::new())
    }

    /// Adds the concatenation of values along a dimension; their other dimensions are equal.
    pub fn concatenate(&mut self, values: &[GraphValue], dim: usize) -> GraphValue {
        let shapes: Vec<Vec<usize>> = values
            .iter()
            .map(|value| self.shape(*value).to_vec())
            .collect();
        let without = |shape: &Vec<usize>| {
            let mut shape = shape.clone();
            shape[dim] = 0;
            shape
        };
        let has_dim = shapes.iter().all(|shape| dim < shape.len());
        let fits = has_dim
            && shapes
                .windows(2)
                .all(|pair| without(&pair[0]) == without(&pair[1]));
        if shapes.is_empty() || !fits {
            self.fail(format!(
                "cannot concatenate {shapes:?} along dimension {dim}"
            ));
            return self.input();
        }
        let mut shape = shapes[0].clone();
        shape[dim] = shapes.iter().map(|shape| shape[dim]).sum();
        self.add_operation(Concatenate::new(&shapes, dim), values, shape, Vec::new())
    }
}
