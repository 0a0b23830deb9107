//! [`attention`]: scaled dot products.

use burn::tensor::{Bool, Tensor, activation};

/// `softmax(q k' / sqrt(width)) v` of each head: queries `[N, T, heads * width]`, keys and values
/// `[N, S, heads * width]`, output as the queries. With `causal` a place sees only itself and those
/// before it. Source: Vaswani et al., NeurIPS 2017, section 3.2.
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
    let [samples, places, row] = queries.dims();
    let seen = keys.dims()[1];
    let width = row / heads;
    let split =
        |x: Tensor<3>, places: usize| x.reshape([samples, places, heads, width]).swap_dims(1, 2);
    let (queries, keys) = (split(queries, places), split(keys, seen));
    let scale = 1.0 / (width as f64).sqrt();
    let scores = queries.matmul(keys.swap_dims(2, 3)).mul_scalar(scale);
    let scores = if causal {
        let later = Tensor::<2, Bool>::tril_mask([places, seen], 0, &scores.device());
        let later = later.reshape([1, 1, places, seen]);
        let later = later.expand([samples, heads, places, seen]);
        scores.mask_fill(later, f32::NEG_INFINITY)
    } else {
        scores
    };
    let found = activation::softmax(scores, 3).matmul(split(values, seen));
    found.swap_dims(1, 2).reshape([samples, places, row])
}
