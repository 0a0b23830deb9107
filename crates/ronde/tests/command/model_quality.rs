//! The quality that the examples' comments and `benchmarks/README.md` state, after the last step of each example.
//!
//! Single runs on other processors differ by several percent, as their instructions round differently.

use std::ops::RangeInclusive;

use crate::support::{RONDE, TestFolder, of_kind};

/// Trains an example to its end, and checks a number of the last evaluation: a metric by its name, or the loss.
#[track_caller]
#[expect(clippy::print_stderr, reason = "shows the quality with --nocapture")]
fn reaches(example: &str, expected: &[(&str, RangeInclusive<f64>)]) {
    let dir = TestFolder::new();
    let root = env!("CARGO_MANIFEST_DIR");
    let file = format!("{root}/../../examples/{example}.toml");
    let ended = dir.start(RONDE, &["train", &file, "--json"], &[]).wait();
    let events = ended.expect(0, &[]).events();
    let steps = of_kind(&events, "run_started").last().unwrap()["steps"].as_u64();
    let evaluated = of_kind(&events, "evaluated").last().unwrap();
    let step = evaluated["step"].as_u64().map(|step| step + 1);
    assert!(step.is_some() && step == steps, "{example}: {evaluated}");
    for (name, range) in expected {
        let value = evaluated[name].as_f64();
        let is_reached = value.is_some_and(|value| range.contains(&value));
        assert!(
            is_reached,
            "{example}: expected {name} in {range:?}: {evaluated}"
        );
    }
    eprintln!("{example}: {evaluated}");
}

#[test]
fn kmeans_finds_clusters_of_digits() {
    reaches("kmeans", &[("inertia", 900.0..=970.0)]);
}

#[test]
fn matrix_factorisation_predicts_held_out_ratings() {
    // The noise of the ratings alone has 0.09.
    reaches("matrix_factorisation", &[("loss", 0.085..=0.1)]);
}

#[test]
fn a_unet_finds_masks() {
    reaches("unet", &[("iou", 0.9..=1.0)]);
}

#[test]
#[ignore = "takes a quarter of a minute: `cargo xtask soak models` runs it"]
fn a_detector_finds_boxes() {
    reaches("detector", &[("map50", 0.95..=1.0)]);
}

#[test]
#[ignore = "takes half a minute: `cargo xtask soak models` runs it"]
fn an_encoder_fills_in_hidden_letters() {
    let expected = [("accuracy", 0.5..=1.0), ("loss", 0.0..=1.65)];
    reaches("bert", &expected);
}

#[test]
#[ignore = "takes half a minute: `cargo xtask soak models` runs it"]
fn inception_classifies_digits() {
    reaches("inception_v3", &[("accuracy", 0.92..=1.0)]);
}
