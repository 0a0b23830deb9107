//! [`GraphBuilder`]: describes a layer as a small graph of operations, with checked shapes.

mod images;
mod parts;
mod shapes;
mod tokens;

use std::ops::Range;

use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_kernels::ActivationFunction;

use super::{GraphNode, GraphOperation, OwnTensor, PartPlace, PerShard, TokenDivision};
use crate::error::EngineError;
use crate::initial::Initial;
use crate::layer::LayerCost;
use crate::operations::{Activate, Add, Dropout, Linear, Rectify};
use crate::precision::Precision;

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
    /// The part of the layer to which it belongs; `None` if all processes compute it.
    pub(super) part: Option<u32>,
}

/// A layer without weights: its operations, the shapes of all values, and its tensors. Costs no
/// memory in proportion to the layer.
pub struct GraphOutline {
    pub(super) name: String,
    pub(super) nodes: Vec<NodeEntry>,
    /// The shape of each value, without the number of samples.
    pub(super) shapes: Vec<Vec<usize>>,
    /// The division of each value along its tokens, in training; `None` for a whole value.
    pub(super) divisions: Vec<Option<TokenDivision>>,
    pub(super) layout: StateLayout,
    pub(super) initial: Vec<Initial>,
    /// The number of parts into which the layer is divided.
    pub(super) parts: u32,
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

    /// Returns whether each value is kept for the backward pass of an operation.
    pub(super) fn kept_values(&self) -> Vec<bool> {
        let mut is_kept = vec![false; self.shapes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let kept = node.node.kept();
            is_kept[index + 1] |= kept.output;
            let inputs = node.inputs.iter().zip(&kept.inputs);
            for (value, _) in inputs.filter(|(_, kept)| **kept) {
                is_kept[*value] = true;
            }
        }
        is_kept
    }

    /// Returns whether each value is computed again in the backward pass instead of being kept: the output of a cheap operation that
    /// another operation of the layer keeps. The values that the operation itself reads are kept.
    pub(super) fn values_computed_again(&self) -> Vec<bool> {
        let (is_kept, has_numbers) = (self.kept_values(), self.number_values());
        let mut again = vec![false; self.shapes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let value = index + 1;
            let reads_any = node.inputs.iter().any(|input| again[*input]);
            let reads_any = reads_any && !node.node.reads_values_again();
            again[value] = value < self.nodes.len()
                && is_kept[value]
                && !has_numbers[value]
                && !reads_any
                && node.node.kept_for_output().is_some();
        }
        again
    }

    /// Returns whether each value depends on tensors of the layer, so that its gradient is needed for theirs.
    pub(super) fn values_of_tensors(&self) -> Vec<bool> {
        let mut depends = vec![false; self.shapes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let of_inputs = node.inputs.iter().any(|value| depends[*value]);
            depends[index + 1] = of_inputs || !node.tensors.is_empty();
        }
        depends
    }

    /// Returns whether each value has numbers that select rows of a table, directly or after it was moved.
    pub(super) fn number_values(&self) -> Vec<bool> {
        let mut has_numbers = vec![false; self.shapes.len()];
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if has_numbers[index + 1] || node.node.reads_numbers() {
                node.inputs
                    .iter()
                    .for_each(|value| has_numbers[*value] = true);
            }
        }
        has_numbers
    }

    /// Returns the memory that one sample needs from forward until backward, in floats: each value
    /// that an operation needs, once, and what operations store besides.
    fn kept_floats(&self, precision: Precision, place: &PartPlace) -> usize {
        let (again, has_numbers) = (self.values_computed_again(), self.number_values());
        let mut is_kept = self.kept_values();
        let mut floats = 0;
        let own = self.nodes.iter().enumerate();
        for (index, node) in own.filter(|(_, node)| place.has(node.part)) {
            let for_output = again[index + 1].then(|| node.node.kept_for_output());
            let kept = for_output.flatten().unwrap_or_else(|| node.node.kept());
            let inputs = node.inputs.iter().zip(&kept.inputs);
            for (value, _) in inputs.filter(|(_, kept)| **kept) {
                is_kept[*value] = true;
            }
            let own = |elements| self.own_elements(index + 1, elements, place);
            floats += precision.kept_floats(own(kept.more)) + own(kept.always_f32);
        }
        for (value, shape) in self.shapes.iter().enumerate() {
            let producer = value.checked_sub(1).map(|node| &self.nodes[node]);
            if producer.is_some_and(|node| !place.has(node.part)) {
                continue;
            }
            let elements = self.own_elements(value, shape.iter().product(), place);
            floats += match (is_kept[value] && !again[value], has_numbers[value]) {
                (false, _) => 0,
                (true, true) => elements,
                (true, false) => precision.kept_floats(elements),
            };
        }
        floats
    }

    /// Returns the shape of the output and the kept floats for an input of `samples` samples. The output is that of all tokens.
    #[must_use]
    pub fn cost(&self, samples: usize, precision: Precision) -> LayerCost {
        self.cost_of_parts(samples, precision, &PartPlace::all(self.parts))
    }

    /// Returns the same for a process that computes some parts of the layer.
    #[must_use]
    pub fn cost_of_parts(
        &self,
        samples: usize,
        precision: Precision,
        place: &PartPlace,
    ) -> LayerCost {
        LayerCost {
            output_shape: [&[samples], self.output()].concat(),
            kept_floats: samples * self.kept_floats(precision, place),
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
/// use ronde_engine::{Chain, GraphBuilder, LayerExt};
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
    /// The part to which the next operations belong.
    part: Option<u32>,
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
                divisions: vec![None],
                layout: StateLayout::default(),
                initial: Vec::new(),
                parts: 1,
            },
            prefix: format!("{name}."),
            initial: Initial::Rectifier,
            dropouts: 0,
            is_used: vec![false],
            part: None,
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
        let division = self.division_of(&operation, inputs);
        let node = Box::new(PerShard::new(operation));
        let found = self.add_node(node, inputs, output, tensors);
        self.divide(found, division);
        found
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
            part: self.part,
        });
        self.outline.shapes.push(output);
        self.outline.divisions.push(None);
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

    pub(super) fn buffer(
        &mut self,
        name: &str,
        tensor: &str,
        length: usize,
        value: f32,
    ) -> OwnTensor {
        let mut own = self.tensor(name, tensor, &[length], Initial::Constant(value));
        own.entry.role = Role::Buffer;
        own
    }

    /// The initial distribution of the next weights.
    pub(crate) fn initial(&self) -> Initial {
        self.initial
    }

    pub(super) fn same_shape(&mut self, name: &str, values: [GraphValue; 2]) {
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
}
