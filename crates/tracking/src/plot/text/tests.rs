//! Drawings of synthetic runs.

use ronde_core::{Epoch, Event, Generation, Step};

use super::*;

pub(in crate::plot) fn falling(steps: u64) -> LossCurve {
    let mut curve = LossCurve::default();
    for step in 0..steps {
        curve.apply(&Event::StepCommitted {
            step: Step(step),
            epoch: Epoch(0),
            generation: Generation(0),
            loss: 2.3 / (1.0 + step as f64 / 20.0),
            samples: 64,
            targets: 64,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            skipped_update: None,
            duration_s: 0.1,
        });
    }
    curve
}

#[test]
fn a_falling_loss_is_drawn_within_the_columns() {
    for (columns, characters) in [
        (24, Characters::Ascii),
        (40, Characters::Ascii),
        (80, Characters::Braille),
        (500, Characters::Braille),
    ] {
        let text = text(&falling(200), columns, characters).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 2, "{text}");
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns.min(100), "{widest} of {columns}\n{text}");
        assert_eq!(text.is_ascii(), characters == Characters::Ascii);
        assert!(lines[ROWS + 1].ends_with("step 200"), "{text}");
    }
}

#[test]
fn nothing_is_drawn_without_points_or_columns() {
    assert_eq!(text(&falling(1), 80, Characters::Ascii), None);
    assert_eq!(text(&LossCurve::default(), 80, Characters::Ascii), None);
    assert_eq!(text(&falling(9), 23, Characters::Ascii), None);
}
