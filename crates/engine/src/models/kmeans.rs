//! k-means: clusters of samples, and their initial centres.

use ronde_core::seed::{Purpose, SeedTree};
use ronde_kernels::squared_distances;

use super::{Layers, refuse};
use crate::error::EngineError;
use crate::graph::GraphBuilder;

/// The name of the tensor of the centres.
const CENTRES: &str = "kmeans.centres";

/// The number of samples from which initial centres are chosen; more for many clusters.
const SAMPLES: usize = 4096;
const SAMPLES_PER_CLUSTER: usize = 4;

/// Describes the only layer: the distances from the centres.
pub(super) fn layers(input_shape: &[usize], clusters: usize) -> Layers {
    if clusters == 0 {
        return refuse(format!("invalid clusters = {clusters}: expected 1 or more"));
    }
    let mut layer = GraphBuilder::new("kmeans", input_shape);
    layer.centre_distances("", layer.input(), clusters);
    Ok(vec![layer.finish()?])
}

/// Returns the number of samples from which initial centres are chosen.
pub(super) fn initial_samples(clusters: usize) -> usize {
    SAMPLES.max(clusters.saturating_mul(SAMPLES_PER_CLUSTER))
}

/// Chooses samples as initial centres by greedy k-means++: each further centre is the best of some
/// samples, drawn with a probability in proportion to their squared distance from the nearest
/// centre. `samples` are rows of `width` elements. Source: Arthur and Vassilvitskii, SODA 2007,
/// sections 2.2 and 7. Cost: the distances of all samples from about `clusters * (2 + ln clusters)`
/// samples.
///
/// # Errors
/// When there are fewer samples than clusters.
pub(super) fn initial_centres(
    samples: &[f32],
    width: usize,
    clusters: usize,
    seeds: &SeedTree,
) -> Result<Vec<f32>, EngineError> {
    let count = samples.len().checked_div(width).unwrap_or(0);
    if count < clusters {
        return refuse(format!(
            "cannot choose {clusters} initial centres from {count} samples: use fewer clusters"
        ));
    }
    let row = |sample: usize| &samples[sample * width..][..width];
    let tries = 2 + libm::log(clusters as f64) as usize;
    let stream = seeds.named(Purpose::InitialWeights, CENTRES);
    let mut numbers = vec![0.0; tries];
    stream.child(0).fill_uniform(&mut numbers);
    let first = (f64::from(numbers[0]) * count as f64) as usize;
    let mut centres = row(first).to_vec();
    let mut nearest = vec![0.0; count];
    squared_distances(samples, row(first), width, &mut nearest);
    for cluster in 1..clusters {
        stream.child(cluster as u64).fill_uniform(&mut numbers);
        let total: f64 = nearest.iter().map(|&distance| f64::from(distance)).sum();
        let mut best: Option<(f64, usize, Vec<f32>)> = None;
        for number in &numbers {
            let sample = drawn(&nearest, f64::from(*number) * total);
            let mut distances = vec![0.0; count];
            squared_distances(samples, row(sample), width, &mut distances);
            let pairs = distances.iter_mut().zip(&nearest);
            pairs.for_each(|(new, old)| *new = new.min(*old));
            let left: f64 = distances.iter().map(|&distance| f64::from(distance)).sum();
            if best.as_ref().is_none_or(|(least, ..)| left < *least) {
                best = Some((left, sample, distances));
            }
        }
        if let Some((_, sample, distances)) = best {
            centres.extend_from_slice(row(sample));
            nearest = distances;
        }
    }
    Ok(centres)
}

/// Returns the first index at which the sum of the values exceeds a limit; the last index if none
/// does.
fn drawn(values: &[f32], limit: f64) -> usize {
    let mut sum = 0.0;
    let exceeds = |&value: &f32| {
        sum += f64::from(value);
        sum > limit
    };
    let found = values.iter().position(exceeds);
    found.unwrap_or(values.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;
    use crate::testing::{state, uniform};

    #[test]
    fn centres_are_samples_of_different_groups() {
        let samples: Vec<f32> = (0..90)
            .flat_map(|i| [(i / 30) as f32 * 100.0, (i % 30) as f32 * 0.1])
            .collect();
        for seed in 0..5 {
            let centres = initial_centres(&samples, 2, 3, &SeedTree::new(seed)).unwrap();
            let mut groups: Vec<u32> = centres.chunks(2).map(|row| row[0] as u32).collect();
            assert!(
                centres
                    .chunks(2)
                    .all(|row| samples.chunks(2).any(|x| x == row))
            );
            groups.sort_unstable();
            assert_eq!(groups, [0, 100, 200]);
        }
    }

    #[test]
    fn a_model_of_any_size_starts_with_chosen_samples() {
        for (clusters, width) in [(3, 2), (1, 1), (5, 7)] {
            let model = ModelConfig::KMeans { clusters };
            let seeds = SeedTree::new(2);
            let mut chain = model.build(&[width], 1, &seeds).unwrap();
            let samples = uniform(20 * width, 3);
            model.initialise(&mut chain, &samples, &seeds).unwrap();
            let (values, arena) = state(&chain);
            let centres = &values[arena.range(0)];
            let mut rows = centres.chunks(width);
            assert!(rows.all(|row| samples.chunks(width).any(|x| x == row)));
            let too_few = model.initialise(&mut chain, &[], &seeds).unwrap_err();
            assert!(too_few.to_string().contains("model kmeans"), "{too_few}");
        }
    }

    #[test]
    fn equal_samples_are_allowed_and_too_few_are_refused() {
        let equal = initial_centres(&[1.0; 8], 2, 3, &SeedTree::new(1)).unwrap();
        assert_eq!(equal, [1.0; 6]);
        let error = initial_centres(&[1.0; 4], 2, 3, &SeedTree::new(1)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("3 initial centres from 2 samples")
        );
    }
}
