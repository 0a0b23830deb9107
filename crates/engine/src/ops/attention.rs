//! [`attention`]: every head of an attention layer as one operation.

use burn::tensor::Tensor;
use ronde_kernels::Attention;

use super::custom::{Host, Input, Saved, record};
use super::memory::{give, take};

/// `softmax(q k' / sqrt(width)) v` of each head: queries `[batch, queries, heads * width]`, keys and
/// values `[batch, keys, heads * width]`, output as the queries. With `causal` a token sees only itself
/// and those before it. Kept for backward: a weight for each head, query and key.
///
/// # Panics
/// When shapes do not fit or `heads` does not divide the last dimension.
#[must_use]
pub fn attention(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    heads: usize,
    causal: bool,
) -> Tensor<3> {
    let [batch, asking, row] = queries.dims();
    assert!(
        heads > 0 && row.is_multiple_of(heads),
        "{heads} heads of {row}"
    );
    let shape = Attention {
        batch,
        queries: asking,
        keys: keys.dims()[1],
        heads,
        width: row / heads,
        causal,
    };
    let inputs = [Input::of(queries), Input::of(keys), Input::of(values)];
    record(inputs, |inputs| {
        let [output, _, weights] = shape.elements();
        let (mut y, mut weights) = (take(output), take(weights));
        let [q, k, v] = inputs.each_ref().map(Host::values);
        shape.forward(q, k, v, &mut y, &mut weights);
        let output = Host::new(y, inputs[0].shape());
        let saved = Heads {
            shape,
            inputs,
            weights,
        };
        (output, saved)
    })
}

#[derive(Debug)]
struct Heads {
    shape: Attention,
    inputs: [Host; 3],
    weights: Vec<f32>,
}

impl Drop for Heads {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.weights));
    }
}

impl Saved<3> for Heads {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 3]) -> [Option<Host>; 3] {
        let inputs = self.inputs.each_ref().map(Host::values);
        let mut found = inputs.map(|input| take(input.len()));
        self.shape.backward(
            inputs,
            &self.weights,
            gradient,
            found.each_mut().map(Vec::as_mut_slice),
        );
        let mut shapes = self.inputs.iter().map(Host::shape);
        found.map(|found| Some(Host::new(found, shapes.next().unwrap_or_default())))
    }
}
