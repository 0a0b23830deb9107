//! [`Translator`]: the operations of a model as ONNX nodes.

use std::borrow::Cow;

use ronde_core::layout::TensorEntry;
use ronde_engine::{ActivationFunction, AfterNorm, Computation, GraphOutline, OperationOutline};

use super::graph::{Attribute, ElementType, GraphEnd, OnnxGraph, OnnxNode};
use crate::error::ModelError;
use crate::weight_file::WeightFile;

/// The translation of a model, layer by layer.
pub(super) struct Translator<'a> {
    weights: &'a WeightFile,
    pub(super) graph: OnnxGraph<'a>,
    /// The name of the token vectors of the model's embedding.
    token_table: Option<String>,
    /// The name of the layer that is translated, which precedes the names of its values.
    layer: String,
}

impl<'a> Translator<'a> {
    /// The name of the model's input.
    pub(super) const INPUT: &'static str = "input";
    const OUTPUT: &'static str = "output";

    pub(super) fn new(weights: &'a WeightFile, sample: &[usize], layers: &[GraphOutline]) -> Self {
        let input = GraphEnd {
            name: Self::INPUT,
            element: input_type(layers),
            sample: sample.to_vec(),
        };
        let output = GraphEnd {
            name: Self::OUTPUT,
            element: ElementType::F32,
            sample: Vec::new(),
        };
        Self {
            weights,
            graph: OnnxGraph::new([input, output]),
            token_table: None,
            layer: String::new(),
        }
    }

    /// Adds the operations of a layer for an input value, and returns the name of its output.
    pub(super) fn layer(
        &mut self,
        layer: &GraphOutline,
        input: String,
    ) -> Result<String, ModelError> {
        layer.name().clone_into(&mut self.layer);
        let mut values = vec![input];
        for operation in layer.operations() {
            let inputs: Vec<&str> = operation
                .inputs
                .iter()
                .map(|&i| values[i].as_str())
                .collect();
            let shapes: Vec<&[usize]> = operation
                .inputs
                .iter()
                .map(|&value| layer.value_shape(value))
                .collect();
            let output = self.operation(&operation, &inputs, &shapes)?;
            values.push(output);
        }
        Ok(values.pop().unwrap_or_default())
    }

    /// Multiplies a value by a number, and returns the name of the product.
    pub(super) fn scaled(&mut self, value: &str, scale: f32) -> String {
        const SCALE: &str = "units_of_the_data";
        self.graph.floats(SCALE, &[], Cow::Owned(vec![scale]));
        let product = format!("{SCALE}.product");
        self.graph.nodes.push(OnnxNode {
            operator: "Mul",
            inputs: vec![value.to_owned(), SCALE.to_owned()],
            outputs: vec![product.clone()],
            attributes: Vec::new(),
        });
        product
    }

    /// Names the last value as the output, whose samples have a shape.
    pub(super) fn finish(mut self, value: &str, sample: &[usize]) -> OnnxGraph<'a> {
        self.graph.nodes.push(OnnxNode {
            operator: "Identity",
            inputs: vec![value.to_owned()],
            outputs: vec![Self::OUTPUT.to_owned()],
            attributes: Vec::new(),
        });
        self.graph.ends[1].sample = sample.to_vec();
        self.graph
    }

    fn operation(
        &mut self,
        operation: &OperationOutline<'_>,
        inputs: &[&str],
        shapes: &[&[usize]],
    ) -> Result<String, ModelError> {
        let (tensors, x) = (operation.tensors, inputs[0]);
        Ok(match &operation.computation {
            Computation::Linear { has_bias } => {
                let weight = self.tensor(&tensors[0]);
                let y = self.node("MatMul", &[x, &weight], Vec::new());
                match has_bias {
                    true => self.add_tensor(&y, &tensors[1]),
                    false => y,
                }
            }
            Computation::Convolution { shape, has_bias } => {
                self.convolution(x, shape, &tensors[..1 + usize::from(*has_bias)])
            }
            Computation::BatchNorm { epsilon, after } => {
                self.batch_norm(inputs, (*epsilon, *after), tensors)
            }
            Computation::GroupNorm { groups, epsilon } => {
                self.group_norm(x, (*groups, *epsilon), tensors, operation.output)
            }
            Computation::LayerNorm { epsilon } => {
                let [gamma, beta] = [0, 1].map(|index| self.tensor(&tensors[index]));
                let epsilon = Attribute::Float("epsilon", *epsilon as f32);
                self.node("LayerNormalization", &[x, &gamma, &beta], vec![epsilon])
            }
            Computation::Relu => self.node("Relu", &[x], Vec::new()),
            Computation::Activation(function) => self.activation(x, *function),
            Computation::Identity => x.to_owned(),
            Computation::Add => self.node("Add", &[x, inputs[1]], Vec::new()),
            Computation::MaxPool(window) => self.max_pool(x, window),
            Computation::Planes(map) => self.planes(x, *map, operation.output[0]),
            Computation::Reshape => self.reshape(x, operation.output),
            Computation::Slice { dim, part } => self.slice(x, dim + 1, part.clone()),
            Computation::Concatenate { dim } => self.node(
                "Concat",
                inputs,
                vec![Attribute::Int("axis", *dim as i64 + 1)],
            ),
            Computation::Embedding => self.embedding(x, tensors),
            Computation::SourceLengths(padding) => {
                self.source_lengths(x, *padding, operation.output[1])
            }
            Computation::Attention(shape) => self.attention(inputs, shape),
            Computation::TiedScores => self.tied_scores(x),
            Computation::SquaredDistances => self.squared_distances(x, &tensors[0], shapes[0]),
            Computation::FactorScores => self.factor_scores(x, tensors),
            other => {
                return Err(ModelError::NotExportable {
                    format: "ONNX",
                    problem: format!("layer {} has the operation {other:?}", self.layer),
                });
            }
        })
    }

    /// Adds a node with one output, and returns the name of the output.
    pub(super) fn node(
        &mut self,
        operator: &'static str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
    ) -> String {
        let output = format!("{}/{operator}_{}", self.layer, self.graph.nodes.len());
        self.graph.nodes.push(OnnxNode {
            operator,
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![output.clone()],
            attributes,
        });
        output
    }

    /// Returns the name of a tensor of the model as a constant.
    pub(super) fn tensor(&mut self, entry: &TensorEntry) -> String {
        self.tensor_as(entry, &entry.name, &entry.shape)
    }

    /// Returns the name of a tensor of the model as a constant with a name and a shape.
    pub(super) fn tensor_as(&mut self, entry: &TensorEntry, name: &str, shape: &[usize]) -> String {
        let weights: &'a WeightFile = self.weights;
        let values = weights.values_of(&entry.name).unwrap_or_default();
        self.graph.floats(name, shape, Cow::Borrowed(values));
        name.to_owned()
    }

    /// Returns the name of a constant.
    pub(super) fn floats(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> String {
        self.graph.floats(name, shape, Cow::Owned(values));
        name.to_owned()
    }

    /// Returns the name of a constant number.
    pub(super) fn float(&mut self, value: f32) -> String {
        self.floats(&format!("number/{value}"), &[], vec![value])
    }

    /// Returns the name of a constant list of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        let parts: Vec<String> = values.iter().map(ToString::to_string).collect();
        let name = format!("integers/{}", parts.join(","));
        self.graph.ints(&name, values);
        name
    }

    pub(super) fn add_tensor(&mut self, x: &str, entry: &TensorEntry) -> String {
        let bias = self.tensor(entry);
        self.node("Add", &[x, &bias], Vec::new())
    }

    /// Changes the shape of each sample.
    pub(super) fn reshape(&mut self, x: &str, sample: &[usize]) -> String {
        // Zero keeps the number of samples.
        let shape: Vec<i64> = std::iter::once(0)
            .chain(sample.iter().map(|&length| length as i64))
            .collect();
        let shape = self.ints(&shape);
        self.node("Reshape", &[x, &shape], Vec::new())
    }

    /// Takes a part of a dimension, counted with the samples.
    pub(super) fn slice(&mut self, x: &str, axis: usize, part: std::ops::Range<usize>) -> String {
        let [start, end, axis] =
            [part.start, part.end, axis].map(|number| self.ints(&[number as i64]));
        self.node("Slice", &[x, &start, &end, &axis], Vec::new())
    }

    fn activation(&mut self, x: &str, function: ActivationFunction) -> String {
        match function {
            ActivationFunction::Sigmoid => self.node("Sigmoid", &[x], Vec::new()),
            ActivationFunction::Tanh => self.node("Tanh", &[x], Vec::new()),
            ActivationFunction::Silu => {
                let gate = self.node("Sigmoid", &[x], Vec::new());
                self.node("Mul", &[x, &gate], Vec::new())
            }
            ActivationFunction::Gelu => {
                let [root, one, half] =
                    [std::f32::consts::FRAC_1_SQRT_2, 1.0, 0.5].map(|value| self.float(value));
                let y = self.node("Mul", &[x, &root], Vec::new());
                let y = self.node("Erf", &[&y], Vec::new());
                let y = self.node("Add", &[&y, &one], Vec::new());
                let y = self.node("Mul", &[x, &y], Vec::new());
                self.node("Mul", &[&y, &half], Vec::new())
            }
        }
    }

    fn batch_norm(
        &mut self,
        inputs: &[&str],
        (epsilon, after): (f64, AfterNorm),
        tensors: &[TensorEntry],
    ) -> String {
        let names: Vec<String> = tensors.iter().map(|tensor| self.tensor(tensor)).collect();
        let all: Vec<&str> = std::iter::once(inputs[0])
            .chain(names.iter().map(String::as_str))
            .collect();
        let epsilon = Attribute::Float("epsilon", epsilon as f32);
        let mut y = self.node("BatchNormalization", &all, vec![epsilon]);
        if let Some(added) = inputs.get(1) {
            y = self.node("Add", &[&y, added], Vec::new());
        }
        match after {
            AfterNorm::Rectified => self.node("Relu", &[&y], Vec::new()),
            AfterNorm::Linear => y,
        }
    }

    fn embedding(&mut self, x: &str, tensors: &[TensorEntry]) -> String {
        let [token, position] = [0, 1].map(|index| self.tensor(&tensors[index]));
        let y = self.node("Gather", &[&token, x], Vec::new());
        self.token_table = Some(token);
        self.node("Add", &[&y, &position], Vec::new())
    }

    fn tied_scores(&mut self, x: &str) -> String {
        let table = self.token_table.clone().unwrap_or_default();
        let order = Attribute::Ints("perm", vec![1, 0]);
        let transposed = self.node("Transpose", &[&table], vec![order]);
        self.node("MatMul", &[x, &transposed], Vec::new())
    }

    fn squared_distances(&mut self, x: &str, centres: &TensorEntry, sample: &[usize]) -> String {
        let width = sample.iter().product();
        let x = self.reshape(x, &[1, width]);
        let centres = self.tensor(centres);
        let difference = self.node("Sub", &[&x, &centres], Vec::new());
        let squares = self.node("Mul", &[&difference, &difference], Vec::new());
        self.sum_of_last(&squares, 2, false)
    }

    fn factor_scores(&mut self, pairs: &str, tensors: &[TensorEntry]) -> String {
        let names: Vec<String> = tensors.iter().map(|tensor| self.tensor(tensor)).collect();
        let mut factors = Vec::new();
        let mut biases = Vec::new();
        for column in [0, 1] {
            let numbers = self.slice(pairs, 1, column..column + 1);
            // [samples, 1, factors] and [samples, 1]
            factors.push(self.node("Gather", &[&names[column], &numbers], Vec::new()));
            biases.push(self.node("Gather", &[&names[2 + column], &numbers], Vec::new()));
        }
        let products = self.node("Mul", &[&factors[0], &factors[1]], Vec::new());
        let product = self.sum_of_last(&products, 2, false);
        let sum = self.node("Add", &[&biases[0], &biases[1]], Vec::new());
        let sum = self.node("Add", &[&sum, &product], Vec::new());
        self.node("Add", &[&sum, &names[4]], Vec::new())
    }

    fn sum_of_last(&mut self, x: &str, axis: i64, keeps: bool) -> String {
        let axes = self.ints(&[axis]);
        let keeps = Attribute::Int("keepdims", keeps.into());
        self.node("ReduceSum", &[x, &axes], vec![keeps])
    }
}

/// Returns the type of the input: integers if it has numbers that select rows of a table.
fn input_type(layers: &[GraphOutline]) -> ElementType {
    let operations = layers.iter().take(1).flat_map(GraphOutline::operations);
    let mut of_input = operations.filter(|operation| operation.inputs.contains(&0));
    let has_numbers = of_input.any(|operation| {
        let kind = operation.computation;
        matches!(
            kind,
            Computation::Embedding | Computation::SourceLengths(_) | Computation::FactorScores
        )
    });
    if has_numbers {
        ElementType::I64
    } else {
        ElementType::F32
    }
}
