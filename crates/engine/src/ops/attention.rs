//! Scaled dot-product attention.

use burn::tensor::{Bool, Tensor, activation};

/// For each of `queries` (`[N, A, T, E/A]`) the mean of `values` (`[N, A, S, E/A]`), weighted by the
/// softmax of its products with `keys` (`[N, A, S, E/A]`) over the square root of their width. With
/// `causal` place t sees the places up to t only. Source: Vaswani et al., NeurIPS 2017, section 3.2.1.
#[must_use]
pub fn attention(
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
    causal: bool,
) -> Tensor<4> {
    let [samples, heads, places, width] = queries.dims();
    let seen = keys.dims()[2];
    let scale = 1.0 / (width as f64).sqrt();
    let scores = queries.matmul(keys.swap_dims(2, 3)).mul_scalar(scale);
    let scores = if causal {
        let later = Tensor::<2, Bool>::tril_mask([places, seen], 0, &scores.device());
        let later = later.reshape([1, 1, places, seen]);
        scores.mask_fill(
            later.expand([samples, heads, places, seen]),
            f32::NEG_INFINITY,
        )
    } else {
        scores
    };
    activation::softmax(scores, 3).matmul(values)
}
