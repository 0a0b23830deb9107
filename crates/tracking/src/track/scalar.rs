//! [`scalars`]: the numbers of a run over its steps, by name, as trackers of other tools show them.

use ronde_core::{Event, Rank};

use super::committed;

/// Ranks from this number on have no separate numbers, so that the number of names is bounded.
pub const RANKS_MAX: u32 = 64;

/// A number of a run after a step.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalarPoint {
    /// The name of the series, such as `train/loss`, `test/accuracy` or `time/rank_0/compute_s`.
    pub name: String,
    /// The number of committed steps.
    pub step: u64,
    /// The value; may be NaN or infinite.
    pub value: f64,
}

/// Returns the numbers of an event: of a committed step, of a worker's durations (ranks below [`RANKS_MAX`]) or of an
/// evaluation.
#[must_use]
pub fn scalars(event: &Event) -> Vec<ScalarPoint> {
    let points = |step: u64, values: &[(String, f64)]| {
        let point = |(name, value): &(String, f64)| ScalarPoint {
            name: name.clone(),
            step,
            value: *value,
        };
        values.iter().map(point).collect()
    };
    match event {
        Event::StepCommitted {
            step,
            epoch,
            loss,
            samples,
            learning_rate,
            gradient_norm,
            duration_s,
            ..
        } => {
            let mut values = vec![
                ("train/loss".to_owned(), *loss),
                ("train/learning_rate".to_owned(), *learning_rate),
                ("train/gradient_norm".to_owned(), *gradient_norm),
                ("train/epoch".to_owned(), epoch.0 as f64),
            ];
            if *duration_s > 0.0 {
                let speed = *samples as f64 / duration_s;
                values.push(("train/samples_per_s".to_owned(), speed));
            }
            points(committed(*step), &values)
        }
        Event::StepTimes {
            rank: Rank(rank),
            step,
            times,
            ..
        } if *rank < RANKS_MAX => {
            let phases = [
                ("compute_s", times.compute_s),
                ("communicate_s", times.communicate_s),
                ("wait_data_s", times.wait_data_s),
            ];
            let values = phases.map(|(phase, s)| (format!("time/rank_{rank}/{phase}"), s));
            points(committed(*step), &values)
        }
        Event::Evaluated {
            step,
            loss,
            metrics,
            ..
        } => {
            let mut values = vec![("test/loss".to_owned(), *loss)];
            values.extend(metrics.iter().map(|(name, v)| (format!("test/{name}"), *v)));
            points(committed(*step), &values)
        }
        _ => Vec::new(),
    }
}
