//! Initial weights by name: every process draws the same ones, in any order, for any cut.

use ronde_core::layout::{Role, TensorEntry};
use ronde_core::seed::{Purpose, SeedTree};

/// Fills a tensor as its name and shape ask for; one that is neither a weight matrix nor a bias
/// stays as it is.
///
/// Weights are uniform in `±sqrt(6 / fan_in)`: variance `2 / fan_in`, which rectifiers keep.
pub(crate) fn fill(tensor: &TensorEntry, seeds: &SeedTree, values: &mut [f32]) {
    if tensor.role != Role::Parameter {
        return;
    }
    if tensor.shape.len() < 2 {
        if tensor.name == "bias" || tensor.name.ends_with(".bias") {
            values.fill(0.0);
        }
        return;
    }
    let bound = (6.0 / fan_in(&tensor.shape).max(1) as f64).sqrt() as f32;
    seeds
        .named(Purpose::InitialWeights, &tensor.name)
        .fill_uniform(values);
    for value in values {
        *value = (2.0 * *value - 1.0) * bound;
    }
}

/// Inputs of one output: a matrix is `[inputs, outputs]`, a convolution `[outputs, inputs, ...]`.
fn fan_in(shape: &[usize]) -> usize {
    match shape {
        [inputs, _] => *inputs,
        _ => shape[1..].iter().product(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
        let entry = TensorEntry::f32(name, shape, Role::Parameter);
        let mut values = vec![7.0; entry.elements()];
        fill(&entry, &SeedTree::new(seed), &mut values);
        values
    }

    #[test]
    fn weights_have_the_variance_of_kaiming_and_follow_name_and_seed() {
        for shape in [&[600, 10][..], &[10, 24, 5, 5]] {
            let values = filled("w", shape, 1);
            let variance =
                values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64;
            assert!((variance * 300.0 - 1.0).abs() < 0.05, "{variance}");
            assert_eq!(values, filled("w", shape, 1));
            assert_ne!(values, filled("v", shape, 1));
            assert_ne!(values, filled("w", shape, 2));
        }
    }

    #[test]
    fn biases_are_zero_and_scales_stay() {
        assert_eq!(filled("fc.bias", &[3], 1), [0.0; 3]);
        assert_eq!(filled("bn.gamma", &[3], 1), [7.0; 3]);
    }
}
