//! Initial weights keyed by name: every process draws the same ones, in any order and for any cut.

use ronde_core::layout::TensorEntry;
use ronde_core::seed::{Purpose, SeedTree};

/// The distribution of initial weights, drawn uniformly or constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// The variance `2 / fan_in`, which rectifiers preserve.
    Rectifier,
    /// A standard deviation that does not depend on the shape.
    Deviation(f64),
    /// One value.
    Constant(f32),
}

impl Initial {
    /// The standard deviation of GPT-2.
    pub const TRANSFORMER: Self = Self::Deviation(0.02);
    /// The standard deviation of the last layer of VGG and of the residual networks, so that all
    /// classes start with similar logits. Source: torchvision's `vgg.py`; Goyal et al.,
    /// arXiv:1706.02677, section 5.1.
    pub const CLASSIFIER: Self = Self::Deviation(0.01);

    fn bound(self, shape: &[usize]) -> f32 {
        let square = match self {
            Self::Rectifier => 6.0 / fan_in(shape).max(1) as f64,
            Self::Deviation(deviation) => 3.0 * deviation * deviation,
            Self::Constant(_) => 0.0,
        };
        square.sqrt() as f32
    }
}

/// Fills a tensor with its initial values, keyed by its name. A part of a tensor has those of its place in the whole one.
pub fn fill_tensor(tensor: &TensorEntry, initial: Initial, seeds: &SeedTree, values: &mut [f32]) {
    if let Initial::Constant(value) = initial {
        values.fill(value);
        return;
    }
    let stream = seeds.named(Purpose::InitialWeights, tensor.whole_name());
    let shape = tensor
        .part
        .as_ref()
        .map_or(&tensor.shape, |part| &part.shape);
    let bound = initial.bound(shape);
    match &tensor.part {
        None => stream.fill_uniform(values),
        Some(part) => {
            let mut rest = &mut *values;
            for run in part.runs() {
                let (to, after) = rest.split_at_mut(run.len());
                stream.fill_uniform_from(run.start as u64, to);
                rest = after;
            }
        }
    }
    for value in values {
        *value = (2.0 * *value - 1.0) * bound;
    }
}

/// Returns the number of inputs of one output: a matrix is `[inputs, outputs]`, a convolution
/// `[outputs, inputs, ...]`.
fn fan_in(shape: &[usize]) -> usize {
    match shape {
        [inputs, _] => *inputs,
        _ => shape[1..].iter().product(),
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::layout::{Role, TensorPart};

    use super::*;

    fn filled(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
        let entry = TensorEntry::f32(name, shape, Role::Parameter);
        let mut values = vec![7.0; entry.elements()];
        fill_tensor(
            &entry,
            Initial::Rectifier,
            &SeedTree::new(seed),
            &mut values,
        );
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
    fn a_deviation_is_kept_whatever_the_shape() {
        let entry = TensorEntry::f32("token", &[300, 20], Role::Parameter);
        let mut values = vec![0.0; entry.elements()];
        fill_tensor(
            &entry,
            Initial::Deviation(0.02),
            &SeedTree::new(1),
            &mut values,
        );
        let square: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let deviation = (square / values.len() as f64).sqrt();
        assert!((deviation - 0.02).abs() < 4e-4, "{deviation}");
    }

    #[test]
    fn a_part_has_the_values_of_its_place() {
        let whole = filled("w", &[6, 8], 3);
        for (dim, ranges) in [(1, vec![1..3, 5..7]), (0, std::iter::once(2..5).collect())] {
            let part = TensorPart {
                name: "w".to_owned(),
                shape: vec![6, 8],
                index: 1,
                parts: 2,
                dim,
                ranges,
            };
            let entry = TensorEntry::f32_part(part.clone(), Role::Parameter);
            let mut values = vec![7.0; entry.elements()];
            fill_tensor(&entry, Initial::Rectifier, &SeedTree::new(3), &mut values);
            let mut expected = vec![0.0; entry.elements()];
            part.take(&whole, &mut expected);
            assert_eq!(values, expected);
        }
    }

    #[test]
    fn a_constant_fills_a_tensor() {
        let entry = TensorEntry::f32("bias", &[3], Role::Parameter);
        let mut values = vec![1.0; 3];
        fill_tensor(
            &entry,
            Initial::Constant(0.5),
            &SeedTree::new(1),
            &mut values,
        );
        assert_eq!(values, [0.5; 3]);
    }
}
