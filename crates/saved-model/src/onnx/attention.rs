//! Attention and the lengths of source texts as ONNX nodes.

use ronde_engine::{Attention, SourcePadding};

use super::graph::Attribute;
use super::translate::Translator;

/// The base of the digits of a length: see [`ronde_engine::Computation::SourceLengths`].
const DIGIT: f32 = 256.0;

impl Translator<'_> {
    /// Encodes the number of tokens before the padding of `[samples, positions]` as `[samples, 1, width]`.
    pub(super) fn source_lengths(
        &mut self,
        tokens: &str,
        padding: SourcePadding,
        width: usize,
    ) -> String {
        let source = self.slice(tokens, 1, 0..padding.source);
        let token = self.ints(&[padding.token.into()]);
        let is_padding = self.node("Equal", &[&source, &token], Vec::new());
        let is_token = self.node("Not", &[&is_padding], Vec::new());
        let is_token = self.node("Cast", &[&is_token], vec![Attribute::Int("to", 1)]);
        let count = padding.source;
        let numbers = (1..=count).map(|number| number as f32).collect();
        let numbers = self.floats(&format!("numbers/{count}"), &[count], numbers);
        let ends = self.node("Mul", &[&is_token, &numbers], Vec::new());
        let axes = Attribute::Ints("axes", vec![1]);
        let length = self.node("ReduceMax", &[&ends], vec![axes]);
        let digit = self.float(DIGIT);
        let low = self.node("Mod", &[&length, &digit], vec![Attribute::Int("fmod", 1)]);
        let high = self.node("Div", &[&length, &digit], Vec::new());
        let high = self.node("Floor", &[&high], Vec::new());
        let mut parts = vec![low, high];
        if let Some(rest) = width.checked_sub(2).filter(|&rest| rest > 0) {
            let zeros = self.floats(&format!("zeros/1x{rest}"), &[1, rest], vec![0.0; rest]);
            parts.push(self.node("Mul", &[&length, &zeros], Vec::new()));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let row = self.node("Concat", &parts, vec![Attribute::Int("axis", 1)]);
        self.reshape(&row, &[1, width])
    }

    /// `inputs` are queries, keys and values, and the lengths if there are any.
    pub(super) fn attention(&mut self, inputs: &[&str], shape: &Attention) -> String {
        let Attention {
            queries,
            keys,
            heads,
            width,
            ..
        } = *shape;
        let row = heads * width;
        let q = self.heads(inputs[0], [queries, heads, width], [0, 2, 1, 3]);
        let k = self.slice(inputs[1], 2, 0..row);
        let k = self.heads(&k, [keys, heads, width], [0, 2, 3, 1]);
        let v = self.slice(inputs[1], 2, row..2 * row);
        let v = self.heads(&v, [keys, heads, width], [0, 2, 1, 3]);
        let scale = self.float(1.0 / (width as f32).sqrt());
        let q = self.node("Mul", &[&q, &scale], Vec::new());
        let mut scores = self.node("MatMul", &[&q, &k], Vec::new());
        if shape.causal {
            let mask = (0..queries).flat_map(|query| {
                (0..keys).map(move |key| if key <= query { 0.0 } else { f32::MIN })
            });
            let mask = self.floats(
                &format!("earlier/{queries}x{keys}"),
                &[queries, keys],
                mask.collect(),
            );
            scores = self.node("Add", &[&scores, &mask], Vec::new());
        }
        if let Some(lengths) = inputs.get(2) {
            let is_seen = self.seen_keys(lengths, keys);
            let lowest = self.float(f32::MIN);
            scores = self.node("Where", &[&is_seen, &scores, &lowest], Vec::new());
        }
        let weights = self.node("Softmax", &[&scores], vec![Attribute::Int("axis", -1)]);
        let y = self.node("MatMul", &[&weights, &v], Vec::new());
        let order = Attribute::Ints("perm", vec![0, 2, 1, 3]);
        let y = self.node("Transpose", &[&y], vec![order]);
        self.reshape(&y, &[queries, row])
    }

    fn heads(&mut self, x: &str, sample: [usize; 3], order: [i64; 4]) -> String {
        let x = self.reshape(x, &sample);
        self.node(
            "Transpose",
            &[&x],
            vec![Attribute::Ints("perm", order.into())],
        )
    }

    /// Returns which keys are below the lengths `[samples, 1, width]`, as `[samples, 1, 1, keys]`.
    fn seen_keys(&mut self, lengths: &str, keys: usize) -> String {
        let low = self.slice(lengths, 2, 0..1);
        let high = self.slice(lengths, 2, 1..2);
        let digit = self.float(DIGIT);
        let high = self.node("Mul", &[&high, &digit], Vec::new());
        let length = self.node("Add", &[&low, &high], Vec::new());
        let one = self.float(1.0);
        let length = self.node("Max", &[&length, &one], Vec::new());
        let positions = (0..keys).map(|key| key as f32).collect();
        let positions = self.floats(&format!("positions/{keys}"), &[keys], positions);
        let is_seen = self.node("Less", &[&positions, &length], Vec::new());
        self.reshape(&is_seen, &[1, 1, keys])
    }
}
