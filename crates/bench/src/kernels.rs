//! [`KernelReport`]: the time of each kernel of a model, compared with the rates of the machine.

mod machine_rates;

use std::fmt::Write;

use ronde_report::TextTable;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::statistics::median;

/// The number of bytes of a value.
const VALUE_BYTES: f64 = 4.0;

/// All calls of one kernel with one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelRow {
    /// The kernel.
    pub kernel: String,
    /// The lengths that determine the cost of a call.
    pub shape: String,
    /// The number of calls in all steps.
    pub calls: u64,
    /// The time of all calls.
    pub seconds: f64,
    /// The multiply-adds of one call as a matrix product; 0 for a kernel that moves data.
    pub multiply_adds: f64,
    /// The number of floats of the operands and results of one call.
    pub floats: usize,
}

/// The rates of this machine with a number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MachineRates {
    /// The floating-point operations per second of a matrix product in the second-level cache.
    pub product_flops: f64,
    /// The bytes per second, read and written, of a copy in memory.
    pub memory_bytes_per_s: f64,
}

/// The kernels of some steps of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// The model or the run file.
    pub model: String,
    /// The number of samples of a step.
    pub samples: usize,
    /// The number of threads that compute.
    pub threads: usize,
    /// The time of each step.
    pub step_seconds: Vec<f64>,
    /// The rates with which kernels are compared.
    pub machine: MachineRates,
    /// The kernels.
    pub rows: Vec<KernelRow>,
}

impl KernelRow {
    /// Returns the floating-point operations per second.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.multiply_adds * self.calls as f64 / self.seconds
    }

    /// Returns the bytes of operands and results per second.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        VALUE_BYTES * self.floats as f64 * self.calls as f64 / self.seconds
    }

    /// Returns the least time of all calls by the roofline model: that of the products or that of the memory traffic,
    /// whichever is longer.
    #[must_use]
    pub fn possible_seconds(&self, machine: &MachineRates) -> f64 {
        let products = 2.0 * self.multiply_adds / machine.product_flops;
        let memory = VALUE_BYTES * self.floats as f64 / machine.memory_bytes_per_s;
        products.max(memory) * self.calls as f64
    }
}

impl KernelReport {
    /// Returns the median time of a step; NaN without steps.
    #[must_use]
    pub fn median_step_seconds(&self) -> f64 {
        median(&mut self.step_seconds.clone())
    }

    /// Adds a call that took some seconds to the row of its kernel and shape; `seconds` and `calls` of `call` count.
    pub fn add(&mut self, call: KernelRow) {
        let is_same = |row: &&mut KernelRow| row.kernel == call.kernel && row.shape == call.shape;
        match self.rows.iter_mut().find(is_same) {
            Some(row) => {
                row.calls += call.calls;
                row.seconds += call.seconds;
            }
            None => self.rows.push(call),
        }
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// Never: all numbers and names can be represented.
    pub fn to_json(&self) -> Result<String, BenchError> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| BenchError::Setting {
                what: "--json",
                problem: error.to_string(),
            })
    }

    fn thread_words(&self) -> String {
        match self.threads {
            1 => "one thread".to_owned(),
            threads => format!("{threads} threads"),
        }
    }

    /// Returns the table for people: a line per kernel and shape, the longest time first.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        let (steps, seconds) = (
            self.step_seconds.len(),
            self.step_seconds.iter().sum::<f64>(),
        );
        let ms_per_step = 1e3 / steps as f64;
        let _ = writeln!(
            text,
            "{}: {} samples a step, {} steps on {}, {:.1} ms a step",
            self.model,
            self.samples,
            steps,
            self.thread_words(),
            seconds * ms_per_step
        );
        let mut table = TextTable::new([
            "kernel",
            "shape",
            "calls",
            "ms a step",
            "share",
            "GFLOP/s",
            "GB/s",
            "of limit",
        ])
        .right(2..8);
        let mut rows: Vec<&KernelRow> = self.rows.iter().collect();
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let (mut measured, mut possible) = (0.0, 0.0);
        let ms_a_step = |seconds: f64| format!("{:.3}", seconds * ms_per_step);
        let share = |part: f64| format!("{:.1} %", 1e2 * part / seconds);
        for row in rows {
            let least = row.possible_seconds(&self.machine);
            (measured, possible) = (measured + row.seconds, possible + least);
            let rate = match row.multiply_adds {
                0.0 => "-".to_owned(),
                _ => format!("{:.1}", row.flops() / 1e9),
            };
            table.row([
                row.kernel.clone(),
                row.shape.clone(),
                (row.calls / steps.max(1) as u64).to_string(),
                ms_a_step(row.seconds),
                share(row.seconds),
                rate,
                format!("{:.1}", row.bytes_per_s() / 1e9),
                format!("{:.0} %", 1e2 * least / row.seconds),
            ]);
        }
        let rest = seconds - measured;
        table.row(["between kernels", "", "", &ms_a_step(rest), &share(rest)]);
        let _ = writeln!(
            text,
            "{table}\nlimits of {}: matrix product {:.0} GFLOP/s, memory {:.1} GB/s; all kernels: {:.0} % of the limits",
            self.thread_words(),
            self.machine.product_flops / 1e9,
            self.machine.memory_bytes_per_s / 1e9,
            1e2 * possible / measured
        );
        text.push_str(
            "of limit: the time that the limits allow / the measured time. It exceeds 100 % for data in caches, and for \
             3 x 3\nconvolutions that need fewer multiplications than the product that is counted.\n",
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kernel: &str, seconds: f64, multiply_adds: f64) -> KernelRow {
        KernelRow {
            kernel: kernel.to_owned(),
            shape: "8x8".to_owned(),
            calls: 1,
            seconds,
            multiply_adds,
            floats: 1_000_000,
        }
    }

    fn report() -> KernelReport {
        let mut report = KernelReport {
            model: "a model".to_owned(),
            samples: 32,
            threads: 1,
            step_seconds: vec![0.06, 0.04],
            machine: MachineRates {
                product_flops: 100e9,
                memory_bytes_per_s: 10e9,
            },
            rows: Vec::new(),
        };
        for (kernel, seconds, multiply_adds) in [
            ("add", 0.001, 0.0),
            ("multiply", 0.04, 1e9),
            ("add", 0.003, 0.0),
            ("multiply", 0.04, 1e9),
        ] {
            report.add(row(kernel, seconds, multiply_adds));
        }
        report
    }

    #[test]
    fn calls_of_one_shape_share_a_row_and_are_compared_with_the_nearer_limit() {
        let report = report();
        assert_eq!(report.rows.len(), 2);
        let (add, multiply) = (&report.rows[0], &report.rows[1]);
        assert_eq!((add.calls, multiply.calls), (2, 2));
        // 4 MB at 10 GB/s, and 2 GFLOP at 100 GFLOP/s; twice each.
        assert!((add.possible_seconds(&report.machine) - 0.8e-3).abs() < 1e-9);
        assert!((multiply.possible_seconds(&report.machine) - 0.04).abs() < 1e-9);
        assert!((multiply.flops() - 50e9).abs() < 1.0);
        assert!((add.bytes_per_s() - 2e9).abs() < 1.0);
    }

    #[test]
    fn the_table_starts_with_the_longest_time_and_has_all_columns() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[0],
            "a model: 32 samples a step, 2 steps on one thread, 50.0 ms a step"
        );
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(lines[2]),
            "multiply 8x8 1 40.000 80.0 % 50.0 0.1 50 %"
        );
        assert_eq!(words(lines[3]), "add 8x8 1 2.000 4.0 % - 2.0 20 %");
        assert_eq!(words(lines[4]), "between kernels 8.000 16.0 %");
        assert!(
            lines[5].contains("100 GFLOP/s, memory 10.0 GB/s; all kernels: 49 %"),
            "{table}"
        );
        let json: serde_json::Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
        assert_eq!(json["rows"][1]["calls"], 2);
    }
}
