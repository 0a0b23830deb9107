//! [`OnnxGraph`]: nodes and constants of an ONNX graph, and their encoding.

use std::borrow::Cow;
use std::collections::BTreeSet;

use ronde_core::protobuf::ProtoMessage;

use super::protobuf::LongMessage;

/// The type of an element in ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementType {
    F32 = 1,
    I64 = 7,
}

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attribute {
    Float(&'static str, f32),
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
    Text(&'static str, &'static str),
}

impl Attribute {
    fn message(&self) -> ProtoMessage {
        let named = |name| ProtoMessage::default().text(1, name);
        match self {
            Self::Float(name, value) => named(name).float(2, *value).number(20, 1),
            Self::Int(name, value) => named(name).number(3, *value as u64).number(20, 2),
            Self::Text(name, text) => named(name).text(4, text).number(20, 3),
            Self::Ints(name, values) => {
                let mut message = named(name);
                for value in values {
                    message = message.number(8, *value as u64);
                }
                message.number(20, 7)
            }
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OnnxNode {
    pub(super) operator: &'static str,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<Attribute>,
}

impl OnnxNode {
    fn message(&self) -> ProtoMessage {
        let mut message = ProtoMessage::default();
        for input in &self.inputs {
            message = message.text(1, input);
        }
        for output in &self.outputs {
            message = message.text(2, output);
        }
        let name = self.outputs.first().map_or("", String::as_str);
        message = message.text(3, name).text(4, self.operator);
        for attribute in &self.attributes {
            message = message.message(5, &attribute.message());
        }
        message
    }
}

/// A constant tensor.
#[derive(Debug)]
pub(super) struct Constant<'a> {
    pub(super) name: String,
    dims: Vec<usize>,
    values: ConstantValues<'a>,
}

#[derive(Debug)]
enum ConstantValues<'a> {
    Floats(Cow<'a, [f32]>),
    Ints(Vec<i64>),
}

/// The input or the output of a graph, with any number of samples.
#[derive(Debug)]
pub(super) struct GraphEnd {
    pub(super) name: &'static str,
    pub(super) element: ElementType,
    /// The shape of one sample.
    pub(super) sample: Vec<usize>,
}

impl GraphEnd {
    fn message(&self) -> ProtoMessage {
        let batch = ProtoMessage::default().text(2, "batch");
        let mut shape = ProtoMessage::default().message(1, &batch);
        for length in &self.sample {
            shape = shape.message(1, &ProtoMessage::default().number(1, *length as u64));
        }
        let tensor = ProtoMessage::default()
            .number(1, self.element as u64)
            .message(2, &shape);
        let of_type = ProtoMessage::default().message(1, &tensor);
        ProtoMessage::default()
            .text(1, self.name)
            .message(2, &of_type)
    }
}

/// A graph.
#[derive(Debug)]
pub(super) struct OnnxGraph<'a> {
    pub(super) nodes: Vec<OnnxNode>,
    pub(super) constants: Vec<Constant<'a>>,
    names: BTreeSet<String>,
    pub(super) ends: [GraphEnd; 2],
}

impl<'a> OnnxGraph<'a> {
    /// Creates a graph with an input and an output.
    pub(super) fn new(ends: [GraphEnd; 2]) -> Self {
        Self {
            nodes: Vec::new(),
            constants: Vec::new(),
            names: BTreeSet::new(),
            ends,
        }
    }

    /// Adds a constant, unless there is one of this name.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: Cow<'a, [f32]>) {
        self.constant(name, dims, ConstantValues::Floats(values));
    }

    /// Adds a constant of integers with one dimension, unless there is one of this name.
    pub(super) fn ints(&mut self, name: &str, values: &[i64]) {
        let dims = [values.len()];
        self.constant(name, &dims, ConstantValues::Ints(values.to_vec()));
    }

    fn constant(&mut self, name: &str, dims: &[usize], values: ConstantValues<'a>) {
        if self.names.insert(name.to_owned()) {
            self.constants.push(Constant {
                name: name.to_owned(),
                dims: dims.to_vec(),
                values,
            });
        }
    }

    /// Encodes the graph under a name.
    pub(super) fn message(&self, name: &str) -> LongMessage<'_> {
        let mut message = LongMessage::default();
        for node in &self.nodes {
            message.push(ProtoMessage::default().message(1, &node.message()));
        }
        message.push(ProtoMessage::default().text(2, name));
        for constant in &self.constants {
            let element = match constant.values {
                ConstantValues::Floats(_) => ElementType::F32,
                ConstantValues::Ints(_) => ElementType::I64,
            };
            let mut start = ProtoMessage::default();
            for length in &constant.dims {
                start = start.number(1, *length as u64);
            }
            start = start.number(2, element as u64).text(8, &constant.name);
            match &constant.values {
                ConstantValues::Floats(values) => message.push_floats(5, start, 9, values),
                ConstantValues::Ints(values) => {
                    for value in values {
                        start = start.number(7, *value as u64);
                    }
                    message.push(ProtoMessage::default().message(5, &start));
                }
            }
        }
        let [input, output] = &self.ends;
        message.push(ProtoMessage::default().message(11, &input.message()));
        message.push(ProtoMessage::default().message(12, &output.message()));
        message
    }
}
