//! [`CostModel`]: how long a collective takes, linear in what its schedules count.

use crate::corrections::{self, Corrections, Timing};
use crate::least_squares::{Leaning, dot, fit};
use crate::{Algorithm, Counts};

/// Kinds of cost.
const KINDS: usize = 7;
/// Words that a model takes: see [`CostModel::to_words`].
pub const COST_WORDS: usize = 2 + KINDS + corrections::WORDS;
/// The kind that is not fitted: reducing a byte.
const REDUCED: usize = 5;
/// The kinds of what processes do by themselves, whoever they speak to.
const WITHIN: [usize; 2] = [3, 4];
/// The kind that a byte costs between hosts.
const ACROSS: usize = 6;
/// How heavily a cost leans to what is known where another one explains the samples as well: so much
/// as this part of a sample.
const LEANING: f64 = 0.02;
/// Samples of so many seconds count half as much as long ones: chance adds about as much to all.
const NOISE_S: f64 = 200e-6;
/// A cost that was too small to be seen is at least this part of the default one.
const LEAST: f64 = 0.05;

/// Seconds for everything that [`Counts`] counts, and the cores of a host.
///
/// It says how times compare, so that one algorithm can be preferred to another; it does not know of
/// caches, of other programs or of operations that run at once. [`CostModel::default`] is for where
/// nothing was measured. All ranks of a group must use the same one, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// To start an operation and to hear of its end.
    pub operation_s: f64,
    /// To wait once for another rank of the host.
    pub round_s: f64,
    /// To wait once for a rank of another host.
    pub round_across_s: f64,
    /// To send or to receive a message.
    pub message_s: f64,
    /// To send or to receive a byte.
    pub byte_s: f64,
    /// To reduce a byte of one operand into another, or to copy it.
    pub byte_reduced_s: f64,
    /// For a byte to cross between hosts.
    pub byte_across_s: f64,
    /// Cores that the ranks of a host share.
    pub cores: usize,
    /// Whether it was measured.
    pub is_measured: bool,
    /// How much longer algorithms took than the costs say.
    pub corrections: Corrections,
}

impl Default for CostModel {
    /// Ranks with a core each, loopback connections within hosts and 10 Gbit/s between them: a round of
    /// many ranks is dearer than the doubling of distances, which is dearer than bytes up to some ten
    /// KiB. Fewest messages for short operands, fewest bytes for long ones, and few bytes between hosts.
    fn default() -> Self {
        Self {
            operation_s: 20e-6,
            round_s: 15e-6,
            round_across_s: 30e-6,
            message_s: 5e-6,
            byte_s: 0.25e-9,
            byte_reduced_s: 0.1e-9,
            byte_across_s: 0.8e-9,
            cores: usize::MAX,
            is_measured: false,
            corrections: Corrections::default(),
        }
    }
}

/// One measured operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// What it made the ranks do.
    pub counts: Counts,
    /// How long it took.
    pub seconds: f64,
}

fn columns(counts: &Counts) -> [f64; KINDS] {
    [
        1.0,
        counts.rounds,
        counts.rounds_across,
        counts.messages,
        counts.bytes,
        counts.bytes_reduced,
        counts.bytes_across,
    ]
}

impl CostModel {
    /// Seconds of each kind, in the order of the fields.
    fn costs(&self) -> [f64; KINDS] {
        [
            self.operation_s,
            self.round_s,
            self.round_across_s,
            self.message_s,
            self.byte_s,
            self.byte_reduced_s,
            self.byte_across_s,
        ]
    }

    fn with_costs(self, costs: [f64; KINDS]) -> Self {
        let [
            operation_s,
            round_s,
            round_across_s,
            message_s,
            byte_s,
            reduced,
            across,
        ] = costs;
        Self {
            operation_s,
            round_s,
            round_across_s,
            message_s,
            byte_s,
            byte_reduced_s: reduced,
            byte_across_s: across,
            ..self
        }
    }

    /// Seconds that an operation of these counts should take.
    #[must_use]
    pub fn seconds(&self, counts: &Counts) -> f64 {
        dot(&columns(counts), &self.costs())
    }

    /// Seconds that a reduction to all ranks by an algorithm should take, of operands of so many bytes:
    /// [`CostModel::seconds`], corrected by the algorithm's own times where those are known.
    #[must_use]
    pub fn seconds_by(&self, algorithm: Algorithm, bytes: usize, counts: &Counts) -> f64 {
        self.seconds(counts) * self.corrections.at(algorithm, bytes)
    }

    /// Corrected by times of algorithms on a group like the one that it is for, at the lengths of
    /// [`corrections::CORRECTED_BYTES`]; other lengths are left out.
    #[must_use]
    pub fn corrected_by(self, timings: &[Timing]) -> Self {
        let corrections = Corrections::of(timings, |sample| self.seconds(&sample.counts));
        Self {
            corrections,
            ..self
        }
    }

    /// The same without corrections: for a group of another size.
    #[must_use]
    pub fn uncorrected(self) -> Self {
        let corrections = Corrections::default();
        Self {
            corrections,
            ..self
        }
    }

    /// The model that explains measured times best, by least squares in proportion, no cost
    /// negative; single samples that fit badly count for little. What no sample shows keeps the cost of
    /// `self`. So do the cores, and what reducing a byte costs: schedules reduce about as many bytes as
    /// they move, so that operations do not tell the two apart, and it can be measured by itself.
    /// Where bytes cross between hosts those costs that do not depend on it lean to those of `self`, for
    /// most bytes that cross are also sent. Samples without a positive time are left out.
    ///
    /// Pure: the same samples give the same bits on every machine.
    #[must_use]
    pub fn fit(&self, samples: &[Sample]) -> Self {
        let is_good = |sample: &&Sample| sample.seconds.is_finite() && sample.seconds > 0.0;
        let good: Vec<&Sample> = samples.iter().filter(is_good).collect();
        if good.is_empty() {
            return *self;
        }
        let rows: Vec<_> = good.iter().map(|sample| columns(&sample.counts)).collect();
        let known = self.costs();
        let is_seen = |kind: usize| kind != REDUCED && rows.iter().any(|row| row[kind] > 0.0);
        // Nothing takes more than the whole of any sample.
        let mut least: [f64; KINDS] = std::array::from_fn(|kind| {
            if kind == REDUCED {
                known[kind]
            } else if is_seen(kind) {
                LEAST * known[kind]
            } else {
                0.0
            }
        });
        for (row, sample) in rows.iter().zip(&good) {
            let share = dot(row, &least) / sample.seconds;
            if share > 0.5 {
                least = least.map(|cost| cost / (2.0 * share));
            }
        }
        let rest = |(row, sample): (&[f64; KINDS], &&Sample)| sample.seconds - dot(row, &least);
        let targets: Vec<f64> = rows.iter().zip(&good).map(rest).collect();
        let seen: Vec<[f64; KINDS]> = rows
            .iter()
            .map(|row| std::array::from_fn(|kind| if is_seen(kind) { row[kind] } else { 0.0 }))
            .collect();
        let leanings = WITHIN.map(|column| Leaning {
            column,
            value: known[column],
            weight: LEANING,
        });
        let leanings: &[_] = if is_seen(ACROSS) { &leanings } else { &[] };
        let weight = |sample: &&Sample| {
            let noise = NOISE_S / sample.seconds;
            1.0 / (1.0 + noise * noise)
        };
        let weights: Vec<f64> = good.iter().map(weight).collect();
        let found: [f64; KINDS] = fit(&seen, &targets, &weights, leanings);
        let costs = std::array::from_fn(|kind| {
            if is_seen(kind) {
                least[kind] + found[kind]
            } else {
                known[kind]
            }
        });
        Self {
            is_measured: true,
            ..self.with_costs(costs)
        }
    }

    /// Words from which [`CostModel::from_words`] makes the same model, for sending.
    #[must_use]
    pub fn to_words(&self) -> [u64; COST_WORDS] {
        let (costs, corrections) = (self.costs(), self.corrections.to_words());
        std::array::from_fn(|place| match place {
            0 => u64::from(self.is_measured),
            1 => self.cores as u64,
            place if place < 2 + KINDS => costs[place - 2].to_bits(),
            place => corrections[place - 2 - KINDS],
        })
    }

    /// The model of these words; `None` when a cost is negative or no number.
    #[must_use]
    pub fn from_words(words: &[u64; COST_WORDS]) -> Option<Self> {
        let costs: [f64; KINDS] = std::array::from_fn(|kind| f64::from_bits(words[kind + 2]));
        let is_good = costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0);
        let model = Self {
            is_measured: words[0] == 1,
            cores: usize::try_from(words[1]).unwrap_or(usize::MAX).max(1),
            corrections: Corrections::from_words(words.last_chunk()?)?,
            ..Self::default()
        };
        is_good.then(|| model.with_costs(costs))
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::{Operation, ReduceOp};

    use super::*;
    use crate::choose::counts;
    use crate::{Algorithm, Hosts};

    fn samples(truth: &CostModel, hosts: &Hosts) -> Vec<Sample> {
        let operation = Operation::AllReduce(ReduceOp::Sum);
        let mut samples = Vec::new();
        for len in [32, 1024, 8192, 65_536] {
            for algorithm in Algorithm::ALL {
                let counts = counts(algorithm, &operation, hosts, len, 4, truth.cores);
                let counts = counts.expect("all can");
                let seconds = truth.seconds(&counts);
                samples.push(Sample { counts, seconds });
            }
        }
        samples
    }

    fn truth() -> CostModel {
        CostModel {
            operation_s: 31e-6,
            round_s: 22e-6,
            round_across_s: 240e-6,
            message_s: 3e-6,
            byte_s: 0.7e-9,
            byte_reduced_s: 0.2e-9,
            byte_across_s: 80e-9,
            cores: 2,
            is_measured: true,
            corrections: Corrections::default(),
        }
    }

    /// What is known before.
    fn start() -> CostModel {
        CostModel {
            cores: 2,
            byte_reduced_s: truth().byte_reduced_s,
            ..CostModel::default()
        }
    }

    fn close(found: f64, real: f64) -> bool {
        (found / real - 1.0).abs() < 0.1
    }

    #[test]
    fn costs_are_found_again_from_the_times_that_they_make() {
        let hosts = Hosts::new(&[0, 0, 0, 0, 1, 1, 1, 1]);
        let start = CostModel {
            message_s: 2.5e-6,
            byte_s: 0.6e-9,
            ..start()
        };
        let found = start.fit(&samples(&truth(), &hosts));
        for (found, real) in found.costs().into_iter().zip(truth().costs()) {
            assert!(close(found, real), "{found} for {real}");
        }
        assert!(found.is_measured && found.cores == 2);
    }

    #[test]
    fn what_no_sample_shows_keeps_its_cost() {
        let start = start();
        let found = start.fit(&samples(&truth(), &Hosts::one(8)));
        assert_eq!(found.byte_across_s, start.byte_across_s);
        assert_eq!(found.round_across_s, start.round_across_s);
        assert!(close(found.byte_s, truth().byte_s), "{found:?}");
        assert_eq!(start.fit(&[]), start);
    }

    #[test]
    fn an_outlier_and_noise_leave_predictions_right() {
        let hosts = Hosts::one(4);
        let mut all = samples(&truth(), &hosts);
        all[7].seconds *= 20.0;
        for (place, sample) in all.iter_mut().enumerate() {
            sample.seconds *= [0.96, 1.03, 1.0, 1.05, 0.98][place % 5];
        }
        let found = start().fit(&all);
        for sample in samples(&truth(), &hosts) {
            let ratio = found.seconds(&sample.counts) / sample.seconds;
            assert!((0.9..1.1).contains(&ratio), "{ratio} for {sample:?}");
        }
    }

    #[test]
    fn a_model_survives_the_wire_and_nonsense_does_not() {
        let sample = samples(&truth(), &Hosts::one(4))[0];
        let timing = Timing {
            algorithm: Algorithm::Ring,
            bytes: 128,
            sample: Sample {
                seconds: 2.0 * sample.seconds,
                ..sample
            },
        };
        let model = truth().corrected_by(&[timing]);
        let by_ring = model.seconds_by(Algorithm::Ring, 8, &sample.counts);
        assert!(close(by_ring, 2.0 * sample.seconds), "{by_ring}");
        assert_eq!(model.uncorrected(), truth());
        assert_eq!(CostModel::from_words(&model.to_words()), Some(model));
        let start = CostModel::default();
        assert_eq!(CostModel::from_words(&start.to_words()), Some(start));
        let mut words = model.to_words();
        words[3] = f64::NAN.to_bits();
        assert_eq!(CostModel::from_words(&words), None);
        words[3] = (-1.0_f64).to_bits();
        assert_eq!(CostModel::from_words(&words), None);
    }
}
