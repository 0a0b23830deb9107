//! [`CostModel`]: predicts the time of a collective, linear in the counts of its schedules.

use crate::algorithm::Algorithm;
use crate::corrections::{self, Corrections, Timing};
use crate::cost_sample::CostSample;
use crate::counts::Counts;
use crate::least_squares::{Prior, dot, fit};

/// The number of kinds of cost.
const KINDS: usize = 7;
/// The number of words of an encoded model: see [`CostModel::to_words`].
pub const COST_WORDS: usize = 2 + KINDS + corrections::WORDS;
/// The index of the kind that is not fitted: reducing a byte.
const REDUCED: usize = 5;
/// The kinds that do not depend on the peer.
const WITHIN: [usize; 2] = [3, 4];
/// The index of the cost of a byte between hosts.
const ACROSS: usize = 6;
/// The weight of a prior, as a fraction of a sample. It matters if another cost explains the samples equally well.
const LEANING: f64 = 0.02;
/// The duration in seconds at which a sample counts half as much as a long one, because the noise of all samples is
/// about equal.
const NOISE_S: f64 = 200e-6;
/// The lower limit of a fitted cost, as a fraction of the default cost.
const LEAST: f64 = 0.05;

/// The costs in seconds of everything that [`Counts`] counts, and the number of cores of a host.
///
/// The model compares the times of algorithms. It does not include caches, other programs or concurrent
/// operations. [`CostModel::default`] applies if nothing was measured. All ranks of a group must use the same
/// model, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// The time to start an operation and to be notified of its end.
    pub operation_s: f64,
    /// The time of one wait for another rank of the host.
    pub round_s: f64,
    /// The time of one wait for a rank of another host.
    pub round_across_s: f64,
    /// The time to send or receive a message.
    pub message_s: f64,
    /// The time to send or receive a byte.
    pub byte_s: f64,
    /// The time to reduce a byte of one operand into another, or to copy it.
    pub byte_reduced_s: f64,
    /// The time of a byte on the link between hosts.
    pub byte_across_s: f64,
    /// The number of cores that the ranks of a host share.
    pub cores: usize,
    /// Whether the costs were measured.
    pub is_measured: bool,
    /// The ratios of measured to predicted times of algorithms.
    pub corrections: Corrections,
}

impl Default for CostModel {
    /// Returns costs for one core per rank, loopback connections within hosts and 10 Gbit/s between hosts. With
    /// these costs, short operands use the fewest messages, long ones the fewest bytes (from tens of KiB), and few
    /// bytes cross between hosts.
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
    /// Returns the costs of each kind in seconds, in the order of the fields.
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

    /// Returns the predicted time in seconds of an operation with these counts.
    #[must_use]
    pub fn seconds(&self, counts: &Counts) -> f64 {
        dot(&columns(counts), &self.costs())
    }

    /// Returns the predicted time in seconds of an all-reduce of operands of `bytes` bytes with an algorithm:
    /// [`CostModel::seconds`], corrected by the algorithm's measured times if there are any.
    #[must_use]
    pub fn seconds_by(&self, algorithm: Algorithm, bytes: usize, counts: &Counts) -> f64 {
        self.seconds(counts) * self.corrections.at(algorithm, bytes)
    }

    /// Returns the model with corrections from measured times of algorithms on the same kind of group, at the lengths
    /// of [`corrections::CORRECTED_BYTES`]; other lengths are ignored.
    #[must_use]
    pub fn corrected_by(self, timings: &[Timing]) -> Self {
        let corrections = Corrections::of(timings, |sample| self.seconds(&sample.counts));
        Self {
            corrections,
            ..self
        }
    }

    /// Returns the model without corrections, for a group of another size.
    #[must_use]
    pub fn uncorrected(self) -> Self {
        let corrections = Corrections::default();
        Self {
            corrections,
            ..self
        }
    }

    /// Fits a model to measured times by relative least squares with non-negative costs; outliers have little weight.
    /// Costs that no sample depends on are those of `self`. So are the number of cores and the cost of reducing a
    /// byte: schedules reduce about as many bytes as they move, so operations cannot separate the two, and the
    /// latter can be measured separately. If bytes cross between hosts, the values of `self` are priors for the costs
    /// that do not depend on the peer, because most bytes that cross are also sent. Samples without a positive time
    /// are ignored.
    ///
    /// Pure: the same samples give the same bits on every machine.
    #[must_use]
    pub fn fit(&self, samples: &[CostSample]) -> Self {
        let is_good = |sample: &&CostSample| sample.seconds.is_finite() && sample.seconds > 0.0;
        let good: Vec<&CostSample> = samples.iter().filter(is_good).collect();
        if good.is_empty() {
            return *self;
        }
        let rows: Vec<_> = good.iter().map(|sample| columns(&sample.counts)).collect();
        let known = self.costs();
        let is_seen = |kind: usize| kind != REDUCED && rows.iter().any(|row| row[kind] > 0.0);
        // No cost exceeds the total of any sample.
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
        let rest = |(row, sample): (&[f64; KINDS], &&CostSample)| sample.seconds - dot(row, &least);
        let targets: Vec<f64> = rows.iter().zip(&good).map(rest).collect();
        let seen: Vec<[f64; KINDS]> = rows
            .iter()
            .map(|row| std::array::from_fn(|kind| if is_seen(kind) { row[kind] } else { 0.0 }))
            .collect();
        let priors = WITHIN.map(|column| Prior {
            column,
            value: known[column],
            weight: LEANING,
        });
        let priors: &[_] = if is_seen(ACROSS) { &priors } else { &[] };
        let weight = |sample: &&CostSample| {
            let noise = NOISE_S / sample.seconds;
            1.0 / (1.0 + noise * noise)
        };
        let weights: Vec<f64> = good.iter().map(weight).collect();
        let found: [f64; KINDS] = fit(&seen, &targets, &weights, priors);
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

    /// Encodes the model as words for sending; [`CostModel::from_words`] decodes them.
    #[must_use]
    pub fn to_words(&self) -> [u64; COST_WORDS] {
        let (costs, corrections) = (self.costs(), self.corrections.to_words());
        std::array::from_fn(|index| match index {
            0 => u64::from(self.is_measured),
            1 => self.cores as u64,
            index if index < 2 + KINDS => costs[index - 2].to_bits(),
            index => corrections[index - 2 - KINDS],
        })
    }

    /// Decodes a model; `None` if a cost is negative or not a number.
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
    use crate::algorithm::Algorithm;
    use crate::choose::counts;
    use crate::hosts::Hosts;

    fn samples(truth: &CostModel, hosts: &Hosts) -> Vec<CostSample> {
        let operation = Operation::AllReduce(ReduceOp::Sum);
        let mut samples = Vec::new();
        for len in [32, 1024, 8192, 65_536] {
            for algorithm in Algorithm::ALL {
                let counts = counts(algorithm, &operation, hosts, len, 4, truth.cores);
                let counts = counts.expect("all can");
                let seconds = truth.seconds(&counts);
                samples.push(CostSample { counts, seconds });
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

    /// The prior costs.
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
    fn fitting_recovers_the_costs_behind_simulated_times() {
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
    fn costs_without_samples_keep_their_values() {
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
        for (index, sample) in all.iter_mut().enumerate() {
            sample.seconds *= [0.96, 1.03, 1.0, 1.05, 0.98][index % 5];
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
            sample: CostSample {
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
