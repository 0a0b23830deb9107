//! The text of a run with hostile names and many ranks.

use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::{Epoch, Generation, Rank, Step};

use super::*;

#[test]
fn labels_are_escaped_and_bounded_and_numbers_are_those_of_prometheus() {
    let mut metrics = RunMetrics::default();
    metrics.apply(&Event::RunStarted {
        name: "a\"b\\c\nd".into(),
        plan: String::new(),
        world_size: 200,
        logical_shards: 256,
        parameters: 1,
        steps: 10,
        epochs: 1,
        samples: 640,
        unit: SampleUnit::Sample,
    });
    metrics.apply(&Event::Resumed {
        generation: Generation(1),
        world_size: 200,
        step: Step(0),
        applied: 0,
        healed: 0,
    });
    metrics.apply(&Event::StepCommitted {
        step: Step(2),
        epoch: Epoch(0),
        generation: Generation(0),
        loss: f64::NAN,
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: f64::INFINITY,
        skipped_update: None,
        duration_s: 0.5,
    });
    for rank in 0..200 {
        metrics.apply(&Event::StepTimes {
            rank: Rank(rank),
            step: Step(2),
            times: PhaseTimes::default(),
            arrived_s: None,
            bytes_sent: 7,
        });
    }
    let text = metrics.text();
    for line in [
        "ronde_run_steps{run=\"a\\\"b\\\\c\\nd\"} 10",
        "ronde_generation{run=\"a\\\"b\\\\c\\nd\"} 1",
        "ronde_loss{run=\"a\\\"b\\\\c\\nd\"} NaN",
        "ronde_gradient_norm{run=\"a\\\"b\\\\c\\nd\"} +Inf",
        "ronde_worker_sent_bytes_total{run=\"a\\\"b\\\\c\\nd\",rank=\"63\"} 7",
        "# TYPE ronde_samples_total counter",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("rank=\"64\""));
}
