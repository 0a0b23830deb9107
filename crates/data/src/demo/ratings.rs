//! Synthetic ratings: the values that users give to items, from a matrix of low rank with noise. Each sample is computed
//! independently when it is read.

use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::permutation::Permutation;
use ronde_core::seed::{Purpose, SeedTree};
use serde::{Deserialize, Serialize};

use super::SplitSizes;
use crate::dataset::DatasetDescription;
use crate::dataset::{Split, Targets};
use crate::error::DataError;
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;

/// The identifiers of the random streams of the order of the cells, of users, of items, and of the noise.
const CELLS: u64 = 7;
const USERS: u64 = 8;
const ITEMS: u64 = 9;
const NOISE: u64 = 10;

/// The numbers of users and items are features, so `f32` must represent them.
const ROWS_MAX: u32 = 1 << 24;
const FACTORS_MAX: u32 = 1 << 12;
/// The deviation of the biases; that of the products of factors is 1.
const BIAS: f32 = 0.5;
/// A uniform number of `[-1, 1)` times this has a deviation of 1.
const UNIT: f32 = 1.732_050_8;

/// The settings of synthetic ratings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RatingsConfig {
    /// The number of training samples.
    pub samples: u64,
    /// The number of samples for evaluation, of other pairs than the training samples.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub test_samples: u64,
    /// The number of users.
    pub users: u32,
    /// The number of items.
    pub items: u32,
    /// The rank of the matrix without biases and noise.
    pub factors: u32,
    /// The standard deviation of the noise; that of the values without it is about 1.2.
    #[serde(default = "noise")]
    pub noise: f32,
}

fn noise() -> f32 {
    0.1
}

impl RatingsConfig {
    /// Checks the numbers, and that the matrix has a cell for each sample; returns the numbers of samples.
    pub(crate) fn counts(&self) -> Result<SplitSizes, DataError> {
        let refused = |key: &str, problem: String| {
            let key = key.to_owned();
            Err(DataError::schema(key, problem))
        };
        for (key, count, most) in [
            ("users", self.users, ROWS_MAX),
            ("items", self.items, ROWS_MAX),
            ("factors", self.factors, FACTORS_MAX),
        ] {
            if !(1..=most).contains(&count) {
                let problem = format!("invalid {key} `{count}`: expected 1 to {most}");
                return refused(key, problem);
            }
        }
        let noise = self.noise;
        if !(noise.is_finite() && noise >= 0.0) {
            let problem = format!("invalid noise `{noise}`: expected a finite number of 0 or more");
            return refused("noise", problem);
        }
        let counts = SplitSizes::new(self.samples, self.test_samples)?;
        let (samples, cells) = (self.samples + self.test_samples, self.cells());
        if samples > cells {
            let (users, items) = (self.users, self.items);
            let problem = format!(
                "cannot draw {samples} different samples from {users} x {items} users and items: expected at most {cells}"
            );
            return refused("samples", problem);
        }
        Ok(counts)
    }

    fn cells(&self) -> u64 {
        u64::from(self.users) * u64::from(self.items)
    }
}

/// Samples of the numbers of a user and an item, with their value. Cost of a read: a quarter of a Philox block for each
/// factor of the two.
struct SyntheticRatings {
    seeds: SeedTree,
    first: u64,
    config: RatingsConfig,
    order: Permutation,
}

/// Returns a training set and a test set of different cells of the matrix.
pub(super) fn split(counts: SplitSizes, config: &RatingsConfig, seed: u64) -> Split {
    let seeds = SeedTree::new(seed);
    let order = Permutation::new(config.cells(), seeds.stream(Purpose::Synthetic, &[CELLS]));
    let RatingsConfig {
        users,
        items,
        factors,
        noise,
        ..
    } = *config;
    counts.split(|numbers, _| {
        let identity = format!(
            "synthetic_ratings version 1: seed {seed}, samples {numbers:?}, {users} x {items}, factors {factors}, noise {noise}"
        );
        let source = SyntheticRatings {
            seeds,
            first: numbers.start,
            config: config.clone(),
            order,
        };
        MemoryDataset::of(
            Arc::new(source),
            numbers.end - numbers.start,
            DatasetDescription {
                targets: Targets::Values,
                ..DatasetDescription::new(vec![2], 1, identity)
            },
        )
    })
}

impl SyntheticRatings {
    /// Returns the bias of a user or an item, and then its factors.
    fn row(&self, kind: u64, number: u64) -> Vec<f32> {
        let mut row = vec![0.0; 1 + self.config.factors as usize];
        let stream = self.seeds.stream(Purpose::Synthetic, &[kind, number]);
        stream.fill_uniform(&mut row);
        row.iter_mut().for_each(|x| *x = UNIT * (2.0 * *x - 1.0));
        row
    }
}

impl SampleSource for SyntheticRatings {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let cell = self.order.at(self.first + sample);
        let items = u64::from(self.config.items);
        let (user, item) = (cell / items, cell % items);
        let (of_user, of_item) = (self.row(USERS, user), self.row(ITEMS, item));
        let mut noise = [0.0];
        let stream = self.seeds.stream(Purpose::Synthetic, &[NOISE, cell]);
        stream.fill_uniform(&mut noise);
        let products = of_user[1..].iter().zip(&of_item[1..]).map(|(a, b)| a * b);
        let product = products.sum::<f32>() / (self.config.factors as f32).sqrt();
        let noise = self.config.noise * UNIT * (2.0 * noise[0] - 1.0);
        let value = product + BIAS * (of_user[0] + of_item[0]) + noise;
        out.copy_from_slice(&[user as f32, item as f32]);
        targets.fill(value.to_bits());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dataset::{Dataset, DatasetExt};

    const MATRIX: RatingsConfig = RatingsConfig {
        samples: 1000,
        test_samples: 200,
        users: 40,
        items: 30,
        factors: 3,
        noise: 0.0,
    };

    fn opened(config: RatingsConfig) -> Result<Split, DataError> {
        Ok(super::split(config.counts()?, &config, 5))
    }

    fn cells(set: &dyn Dataset) -> Vec<([u32; 2], f32)> {
        let read = |number| {
            let (pair, value) = set.sample(number).unwrap();
            ([pair[0] as u32, pair[1] as u32], f32::from_bits(value[0]))
        };
        (0..set.len()).map(read).collect()
    }

    #[test]
    fn every_cell_occurs_once_with_a_deviation_of_the_stated_parts() {
        let split = opened(MATRIX).unwrap();
        let mut all = cells(&*split.train);
        all.extend(cells(&*split.test.unwrap()));
        let places: BTreeMap<[u32; 2], f32> = all.iter().copied().collect();
        assert_eq!(places.len(), 1200);
        assert!(places.keys().all(|[user, item]| *user < 40 && *item < 30));
        let square = all.iter().map(|(_, x)| f64::from(x * x)).sum::<f64>() / 1200.0;
        assert!((square - 1.5).abs() < 0.5, "{square}");
    }

    #[test]
    fn noise_is_added_to_the_same_values() {
        let noisy = opened(RatingsConfig {
            noise: 0.5,
            ..MATRIX
        });
        let pairs = cells(&*opened(MATRIX).unwrap().train).into_iter();
        let errors = pairs.zip(cells(&*noisy.unwrap().train)).map(|(a, b)| {
            assert_eq!(a.0, b.0);
            f64::from(a.1 - b.1).powi(2)
        });
        let square = errors.sum::<f64>() / 1000.0;
        assert!((square - 0.25).abs() < 0.03, "{square}");
    }

    #[test]
    fn more_samples_than_cells_and_invalid_numbers_are_refused() {
        for (matrix, words) in [
            (
                RatingsConfig {
                    items: 29,
                    ..MATRIX
                },
                "1200 different samples from 40 x 29",
            ),
            (RatingsConfig { users: 0, ..MATRIX }, "invalid users `0`"),
            (
                RatingsConfig {
                    factors: 0,
                    ..MATRIX
                },
                "invalid factors `0`",
            ),
            (
                RatingsConfig {
                    noise: f32::NAN,
                    ..MATRIX
                },
                "invalid noise `NaN`",
            ),
        ] {
            let error = opened(matrix).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
