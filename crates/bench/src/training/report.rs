//! [`TrainingReport`]: medians over rounds, and the table that shows them.

use std::fmt::Write;

use ronde_report::TextTable;
use serde::Serialize;

use super::{RunTimes, TrainingSettings, Variant};
use crate::error::BenchError;
use crate::statistics::{mean_and_deviation, median};

/// One variant over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VariantReport {
    /// The variant.
    pub variant: Variant,
    /// Its runs.
    pub runs: Vec<RunTimes>,
}

/// The results of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingReport {
    /// The settings.
    pub settings: TrainingSettings,
    /// The operations per second of this machine's matrix product, on one thread.
    pub peak_flops: f64,
    /// The variants in the order of their turns.
    pub variants: Vec<VariantReport>,
}

impl VariantReport {
    /// Returns the median over rounds of a quantity.
    #[must_use]
    pub fn median(&self, of: impl Fn(&RunTimes) -> f64) -> f64 {
        let mut values: Vec<f64> = self.runs.iter().map(of).collect();
        median(&mut values)
    }
}

impl TrainingReport {
    /// Creates a report without runs.
    #[must_use]
    pub fn new(settings: TrainingSettings, peak_flops: f64) -> Self {
        let empty = |&variant| VariantReport {
            variant,
            runs: Vec::new(),
        };
        Self {
            variants: settings.variants.iter().map(empty).collect(),
            settings,
            peak_flops,
        }
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// Never: all numbers and names can be represented.
    pub fn to_json(&self) -> Result<String, BenchError> {
        serde_json::to_string_pretty(self)
            .map_err(|error| BenchError::channel("encode the report", error))
    }

    fn of(&self, variant: Variant) -> Option<&VariantReport> {
        self.variants.iter().find(|one| one.variant == variant)
    }

    /// Returns the median over rounds of the ratio of two variants' rates in the same round.
    #[must_use]
    pub fn ratio(&self, of: Variant, to: Variant) -> Option<f64> {
        let (of, to) = (self.of(of)?, self.of(to)?);
        let pairs = of.runs.iter().zip(&to.runs);
        let mut ratios: Vec<f64> = pairs
            .map(|(a, b)| a.samples_per_s / b.samples_per_s)
            .collect();
        (!ratios.is_empty()).then(|| median(&mut ratios))
    }

    /// Formats the table and the lines below it.
    #[must_use]
    pub fn table(&self) -> String {
        let TrainingSettings {
            case,
            workers,
            shards,
            rounds,
            steps,
            forward_only,
            precision,
            sets,
            ..
        } = &self.settings;
        let (run, multiply_adds) = match forward_only {
            true => ("forward passes", case.forward_multiply_adds),
            false => ("steps", case.multiply_adds),
        };
        let format = match *precision {
            "f32" => String::new(),
            short => format!(" in {short}"),
        };
        let mut text = format!(
            "{}{format}: {workers} workers, {shards} logical shards, {} samples a worker and step; medians of {rounds} rounds of {steps} {run}\n",
            case.model, case.batch
        );
        for set in sets {
            let _ = writeln!(text, "ronde with {set}");
        }
        let unit = format!("{}/s", case.unit);
        let head = ["", &unit, "a worker", "step ms", "of peak", "model MiB"];
        let mut table = TextTable::new(head).right(1..6);
        for one in self.variants.iter().filter(|one| !one.runs.is_empty()) {
            let samples = one.median(|run| run.samples_per_s);
            let processes = if one.variant == Variant::Alone {
                1.0
            } else {
                f64::from(*workers)
            };
            let units = samples * case.units_per_sample as f64;
            let flops = 2.0 * samples / processes * multiply_adds;
            let memory = one.median(|run| run.peak_bytes as f64);
            table.row([
                one.variant.name(),
                &format!("{units:.1}"),
                &format!("{:.1}", units / processes),
                &format!("{:.1}", 1e3 * one.median(|run| run.step_s)),
                &format!("{:.0} %", 1e2 * flops / self.peak_flops),
                &if memory > 0.0 {
                    format!("{:.0}", memory / f64::from(1 << 20))
                } else {
                    "-".to_owned()
                },
            ]);
        }
        let _ = writeln!(
            text,
            "{table}\nmatrix product of one thread: {:.0} GFLOP/s",
            self.peak_flops / 1e9
        );
        if !forward_only {
            self.step_rates(&mut text);
            self.split(&mut text);
        }
        self.ratios(&mut text);
        text
    }

    /// Formats the rates of single steps, as tf_cnn_benchmarks and Horovod's synthetic benchmark do.
    fn step_rates(&self, text: &mut String) {
        let TrainingSettings { case, workers, .. } = &self.settings;
        for (variant, workers) in [(Variant::Alone, 1), (Variant::Together, *workers)] {
            let runs = self.of(variant).into_iter().flat_map(|one| &one.runs);
            let rates: Vec<f64> = runs.flat_map(|run| run.step_rates.clone()).collect();
            if rates.is_empty() {
                continue;
            }
            let [mean, deviation] =
                mean_and_deviation(&rates).map(|rate| rate * case.units_per_sample as f64);
            let (unit, each, spread) = (case.unit, f64::from(workers), 1.96 * deviation);
            let plural = if workers == 1 { "" } else { "s" };
            let _ = writeln!(
                text,
                "{unit}/s per worker: {:.2} +- {:.2}; total {unit}/s on {workers} worker{plural}: {mean:.2} +- {spread:.2}",
                mean / each,
                spread / each,
            );
        }
    }

    /// Formats the shares of the workers' time.
    fn split(&self, text: &mut String) {
        let Some(one) = self
            .of(Variant::Together)
            .filter(|one| !one.runs.is_empty())
        else {
            return;
        };
        let share = |part: fn(&RunTimes) -> f64| {
            1e2 * one.median(|run| part(run) / run.phases.total_s().max(f64::MIN_POSITIVE))
        };
        let _ = writeln!(
            text,
            "time: forward {:.1} %, backward {:.1} %, optimizer {:.1} %, communication {:.1} %, data {:.1} %",
            share(|run| run.phases.forward_s),
            share(|run| run.phases.backward_s),
            share(|run| run.phases.optimizer_s),
            share(|run| run.phases.communicate_s),
            share(|run| run.phases.wait_data_s),
        );
        if one.runs.iter().all(|run| run.hidden_share().is_some()) {
            let hidden = one.median(|run| run.hidden_share().unwrap_or(0.0));
            let _ = writeln!(
                text,
                "hidden behind computation: {:.0} % of communication",
                1e2 * hidden
            );
        }
    }

    fn ratios(&self, text: &mut String) {
        let workers = f64::from(self.settings.workers);
        if let Some(ratio) = self.ratio(Variant::Together, Variant::Alone) {
            let efficiency = 1e2 * ratio / workers;
            let _ = writeln!(text, "scaling efficiency: {efficiency:.1} %");
        }
        if let Some(ratio) = self.ratio(Variant::Together, Variant::Apart) {
            let _ = writeln!(
                text,
                "compared with workers that do not communicate: {:.1} %",
                1e2 * ratio
            );
        }
        for variant in [Variant::Pytorch, Variant::PytorchCompiled] {
            if let Some(ratio) = self.ratio(Variant::Together, variant) {
                let name = match variant {
                    Variant::PytorchCompiled => "compiled pytorch",
                    _ => "pytorch",
                };
                let _ = writeln!(text, "times {name}'s rate: {ratio:.2}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::TrainingCase;

    #[test]
    fn the_table_has_rates_ratios_and_shares() {
        let settings = TrainingSettings {
            case: TrainingCase::of("mlp").unwrap(),
            workers: 2,
            shards: 2,
            steps: 5,
            rounds: 3,
            bucket_bytes: None,
            forward_only: false,
            precision: "f32",
            sets: Vec::new(),
            variants: vec![Variant::Together, Variant::Alone, Variant::Pytorch],
        };
        let mut report = TrainingReport::new(settings, 100e9);
        for (place, rates) in [
            [200.0, 210.0, 100.0],
            [105.0, 100.0, 60.0],
            [100.0, 140.0, 50.0],
        ]
        .iter()
        .enumerate()
        {
            for &samples_per_s in rates {
                let mut run = RunTimes {
                    step_s: 0.5,
                    samples_per_s,
                    ..RunTimes::default()
                };
                (run.phases.compute_s, run.phases.forward_s) = (1.0, 0.25);
                (run.phases.reducing_s, run.phases.waited_s) = (0.5, 0.1);
                run.step_rates = vec![samples_per_s];
                run.peak_bytes = if place == 1 {
                    0
                } else {
                    (place as u64 + 3) << 20
                };
                report.variants[place].runs.push(run);
            }
        }
        let table = report.table();
        for expected in [
            "mlp: 2 workers, 2 logical shards, 256 samples",
            "images/s",
            "200.0",
            "        3\n",
            "        5\n",
            "        -\n",
            "forward 25.0 %",
            "hidden behind computation: 80 %",
            "images/s per worker: 88.33 +- 39.47; total images/s on 1 worker: 88.33 +- 39.47\n",
            "total images/s on 2 workers: 170.00",
            "scaling efficiency: 95.2 %",
            "times pytorch's rate: 2.00",
        ] {
            assert!(table.contains(expected), "{expected}\n{table}");
        }
    }
}
