//! [`RunAccount`]: the steps, the samples and the model of a run, from its events; and the comparison of two runs.

use serde_json::Value;

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RunAccount {
    /// The number, the loss and the gradient norm of each committed step, as written in the events with all digits.
    steps: Vec<(u64, String)>,
    /// The number of samples of the data set, and for each epoch the numbers of used, missing and repeated samples.
    samples: u64,
    epochs: Vec<[u64; 3]>,
    /// The planned number of epochs.
    epochs_planned: u64,
    /// The accuracy of the last evaluation.
    pub(super) accuracy: Option<f64>,
    /// The hash of the trained model.
    pub(super) blake3: Option<String>,
    /// The number of started processes.
    started: u64,
}

impl RunAccount {
    pub(super) fn of(events: &[Value]) -> Self {
        let mut account = Self::default();
        for event in events {
            let number = |key: &str| event[key].as_u64().unwrap_or_default();
            match event["event"].as_str() {
                Some("worker_started") => account.started += 1,
                Some("run_started") => {
                    account.samples = number("samples");
                    account.epochs_planned = number("epochs");
                }
                Some("step_committed") => {
                    let values = format!("{} {}", event["loss"], event["gradient_norm"]);
                    account.steps.push((number("step"), values));
                }
                Some("epoch_finished") => {
                    let counts = ["used_once", "missing", "repeated"].map(number);
                    account.epochs.push(counts);
                }
                Some("evaluated") => account.accuracy = event["accuracy"].as_f64(),
                Some("model_saved") => {
                    account.blake3 = event["blake3"].as_str().map(str::to_owned);
                }
                _ => {}
            }
        }
        account
    }

    pub(super) fn committed(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Returns the numbers of samples that no step used and that several steps used, over all epochs.
    pub(super) fn lost_and_repeated(&self) -> [u64; 2] {
        let sum = |index: usize| self.epochs.iter().map(|epoch| epoch[index]).sum();
        [sum(1), sum(2)]
    }

    /// Returns everything that is wrong whatever the bits are: samples that were not used once in each epoch, and workers
    /// that died without a fault. `killed` of the run's `workers` were killed.
    pub(super) fn problems(&self, workers: u32, killed: u64) -> Vec<String> {
        let mut found = Vec::new();
        if self.epochs.len() as u64 != self.epochs_planned {
            let (is, due) = (self.epochs.len(), self.epochs_planned);
            found.push(format!("{is} of {due} epochs have reported their samples"));
        }
        for (epoch, [once, missing, repeated]) in self.epochs.iter().enumerate() {
            if (*once, *missing, *repeated) != (self.samples, 0, 0) {
                found.push(format!(
                    "epoch {epoch}: of {} samples {once} were used once, {missing} lost, {repeated} repeated",
                    self.samples
                ));
            }
        }
        if self.blake3.is_none() {
            found.push("there is no model".to_owned());
        }
        if self.started > u64::from(workers) + killed {
            found.push(format!(
                "{} processes were started for {workers} workers, and {killed} were killed: \
                 other workers have died or were restarted",
                self.started
            ));
        }
        found
    }

    /// Returns all differences from `reference`, which must have the same bits.
    pub(super) fn differences(&self, reference: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let in_order = self
            .steps
            .iter()
            .zip(0..)
            .find(|((step, _), expected)| step != expected);
        if let Some(((step, _), expected)) = in_order {
            found.push(format!("step {step} was committed instead of {expected}"));
        }
        if self.committed() != reference.committed() {
            let (own, other) = (self.committed(), reference.committed());
            found.push(format!("{own} steps were committed, expected {other}"));
        }
        let mut pairs = self.steps.iter().zip(&reference.steps);
        if let Some((own, other)) = pairs.find(|(own, other)| own != other) {
            let (step, values) = own;
            found.push(format!(
                "step {step} has loss and gradient norm {values}, expected {}",
                other.1
            ));
        }
        if self.blake3 != reference.blake3 {
            let name = |hash: &Option<String>| hash.clone().unwrap_or("none".to_owned());
            let (own, other) = (name(&self.blake3), name(&reference.blake3));
            found.push(format!("the model is {own}, expected {other}"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Vec<Value> {
        let step = |step: u64| json!({"event": "step_committed", "step": step, "loss": 0.5, "gradient_norm": 1.25});
        vec![
            json!({"event": "worker_started", "place": 0}),
            json!({"event": "run_started", "samples": 10, "epochs": 1}),
            step(0),
            step(1),
            json!({"event": "epoch_finished", "used_once": 10, "missing": 0, "repeated": 0}),
            json!({"event": "model_saved", "blake3": "aa"}),
        ]
    }

    #[test]
    fn every_difference_from_the_reference_is_reported() {
        let reference = RunAccount::of(&run());
        assert_eq!(reference.differences(&reference), [""; 0]);
        assert_eq!(reference.problems(1, 0), [""; 0]);
        let cases: [(usize, Value, &str); 6] = [
            (
                2,
                json!({"event": "step_committed", "step": 1, "loss": 0.5, "gradient_norm": 1.25}),
                "step 1 was committed instead of 0",
            ),
            (3, json!({"event": "notice"}), "1 steps were committed"),
            (
                3,
                json!({"event": "step_committed", "step": 1, "loss": 0.5, "gradient_norm": 1.5}),
                "step 1 has loss and gradient norm 0.5 1.5, expected 0.5 1.25",
            ),
            (
                4,
                json!({"event": "epoch_finished", "used_once": 8, "missing": 1, "repeated": 1}),
                "8 were used once, 1 lost, 1 repeated",
            ),
            (
                5,
                json!({"event": "model_saved", "blake3": "bb"}),
                "the model is bb, expected aa",
            ),
            (
                5,
                json!({"event": "worker_started", "place": 0}),
                "2 processes were started",
            ),
        ];
        for (at, event, expected) in cases {
            let mut events = run();
            events[at] = event;
            let account = RunAccount::of(&events);
            let found = [account.problems(1, 0), account.differences(&reference)].concat();
            assert!(
                found.iter().any(|told| told.contains(expected)),
                "{found:?}"
            );
        }
    }
}
