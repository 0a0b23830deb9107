//! [`RunTimes`]: the times reported by a run of `ronde train --json`.

use std::io::BufRead;

use ronde_core::Event;
use ronde_core::event::PhaseTimes;
use serde::Serialize;

use crate::error::BenchError;
use crate::statistics::median;

/// The number of initial steps that are not counted: they touch memory for the first time and open
/// files.
const WARM_UP: u64 = 2;

/// The times of one run without its first steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunTimes {
    /// The median seconds of a step.
    pub step_s: f64,
    /// The samples of all workers per second, from the median step.
    pub samples_per_s: f64,
    /// The samples of all workers per second in each step; empty when unknown.
    pub step_rates: Vec<f64>,
    /// The time of all workers and steps by phase.
    pub phases: PhaseTimes,
    /// The peak resident bytes of the largest process beyond those of one with almost no model; 0 when unknown.
    pub peak_bytes: u64,
}

impl RunTimes {
    /// Reads the events of a run.
    ///
    /// # Errors
    /// Without a step to count.
    pub(super) fn read(events: impl BufRead) -> Result<Self, BenchError> {
        let (mut durations, mut samples) = (Vec::new(), 0);
        let mut phases = PhaseTimes::default();
        // Other lines, such as the header, are not events.
        let lines = events.lines().map_while(Result::ok);
        for event in lines.filter_map(|line| serde_json::from_str::<Event>(&line).ok()) {
            match event {
                Event::StepCommitted {
                    step,
                    samples: of_step,
                    duration_s,
                    ..
                } if step.0 >= WARM_UP => {
                    durations.push(duration_s);
                    samples = of_step;
                }
                Event::StepTimes { step, times, .. } if step.0 >= WARM_UP => phases.add(&times),
                _ => {}
            }
        }
        if durations.is_empty() {
            return Err(BenchError::Channel {
                what: "read the events of a run".to_owned(),
                cause: format!("no step after the first {WARM_UP}; increase --steps"),
            });
        }
        let step_rates = durations.iter().map(|duration| samples as f64 / duration);
        let step_rates = step_rates.collect();
        let step_s = median(&mut durations);
        Ok(Self {
            step_rates,
            step_s,
            samples_per_s: samples as f64 / step_s,
            phases,
            peak_bytes: 0,
        })
    }

    /// Returns the share of the communication time during which the worker computed; `None` without
    /// communication.
    #[must_use]
    pub fn hidden_share(&self) -> Option<f64> {
        self.phases.hidden_share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_after_the_first_two_are_counted() {
        let mut lines = String::from("{\"format\":\"header\"}\n");
        for (step, duration) in [(0, 9.0), (1, 8.0), (2, 0.5), (3, 0.25), (4, 1.0)] {
            lines += &format!(
                "{{\"event\":\"step_committed\",\"step\":{step},\"epoch\":0,\"generation\":0,\"loss\":1.0,\
                 \"samples\":64,\"learning_rate\":0.1,\"gradient_norm\":1.0,\"duration_s\":{duration}}}\n\
                 {{\"event\":\"step_times\",\"rank\":0,\"step\":{step},\"compute_s\":{duration},\"communicate_s\":0.0,\
                 \"wait_data_s\":0.0,\"reducing_s\":0.4,\"waited_s\":0.1,\"bytes_sent\":1}}\n"
            );
        }
        let times = RunTimes::read(lines.as_bytes()).unwrap();
        assert_eq!((times.step_s, times.samples_per_s), (0.5, 128.0));
        assert_eq!(times.step_rates, [128.0, 256.0, 64.0]);
        assert_eq!(times.phases.compute_s, 1.75);
        assert!((times.hidden_share().unwrap() - 0.75).abs() < 1e-12);
        assert!(RunTimes::read("".as_bytes()).is_err());
        assert_eq!(RunTimes::default().hidden_share(), None);
    }
}
