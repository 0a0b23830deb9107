//! The mean average precision against pycocotools, in parts, and by hand.

use super::*;
use crate::detection::reference::ReferenceImages;

/// Returns the sums over `parts` parts of the images.
fn sums(reference: &ReferenceImages, parts: usize) -> Vec<f64> {
    let metric = MeanAveragePrecision {
        images: reference.images(),
    };
    let (outputs, targets) = (reference.outputs(), reference.targets());
    let each = reference.len() / parts;
    let mut total = vec![0.0; metric.sums()];
    let outputs = outputs.chunks(each * reference.outputs_each());
    for (outputs, targets) in outputs.zip(targets.chunks(targets.len() / parts)) {
        let predictions = Predictions::new(outputs, targets, each).unwrap();
        let mut sums = vec![0.0; metric.sums()];
        metric.add(&predictions, 0.0, &mut sums).unwrap();
        total.iter_mut().zip(sums).for_each(|(sum, x)| *sum += x);
    }
    total
}

#[test]
fn the_precision_is_that_of_pycocotools() {
    let reference = ReferenceImages::load();
    let metric = MeanAveragePrecision {
        images: reference.images(),
    };
    let all = sums(&reference, 1);
    let found = metric.value(&all);
    let error = (found - reference.map50).abs();
    assert!(error < 1e-12, "{found} for {}", reference.map50);
    for parts in [2, 3, 60] {
        assert_eq!(sums(&reference, parts), all, "{parts} parts");
    }
}

/// Returns the precision of a class with some boxes, for detections of (bin, correct, wrong).
fn precision(boxes: f64, detections: &[(usize, f64, f64)]) -> f64 {
    let mut sums = vec![0.0; CLASS_SUMS];
    sums[0] = boxes;
    for &(bin, correct, wrong) in detections {
        sums[1 + bin] = correct;
        sums[1 + BINS + bin] = wrong;
    }
    average_precision(&sums)
}

#[test]
fn the_area_follows_the_scores() {
    assert_eq!(precision(2.0, &[]), 0.0);
    assert_eq!(precision(2.0, &[(5, 2.0, 0.0), (4, 0.0, 9.0)]), 1.0);
    // Half of the boxes with a precision of 1, at recalls up to 0.50.
    assert_eq!(precision(2.0, &[(5, 1.0, 0.0)]), 51.0 / 101.0);
    // Equal scores are one point: the correct one is not before the wrong one.
    assert_eq!(precision(1.0, &[(5, 1.0, 1.0)]), 0.5);
    // A later, higher precision counts for smaller recalls as well.
    let found = precision(4.0, &[(9, 1.0, 1.0), (8, 3.0, 0.0)]);
    assert!((found - 0.8).abs() < 1e-12, "{found}");
    // 7 of 25 is a recall of exactly 0.28, although 7 / 25 is not 0.28 in floating point.
    assert_eq!(precision(25.0, &[(5, 7.0, 0.0)]), 29.0 / 101.0);
}

#[test]
fn classes_without_boxes_do_not_count_and_invalid_outputs_are_no_detections() {
    let images = DetectedImages {
        size: [8, 8],
        classes: 2,
    };
    let metric = MeanAveragePrecision { images };
    let targets: Vec<u32> = [0.25_f32, 0.25, 0.75, 0.75].map(f32::to_bits).to_vec();
    let targets = [vec![1], targets].concat();
    let half = libm::log(0.5) as f32;
    let value = |logits: [f32; 2]| {
        let outputs = [0.0, 0.0, half, half, logits[0], logits[1]];
        let predictions = Predictions::new(&outputs, &targets, 1).unwrap();
        let mut sums = vec![0.0; metric.sums()];
        metric.add(&predictions, 0.0, &mut sums).unwrap();
        metric.value(&sums)
    };
    assert_eq!(value([3.0, 3.0]), 1.0);
    assert_eq!(value([-9.0, f32::INFINITY]), 1.0);
    assert_eq!(value([3.0, -4.1]), 0.0);
    assert_eq!(value([f32::NAN, f32::NAN]), 0.0);
    let outputs = [f32::NAN, f32::NAN, f32::INFINITY, f32::NAN, 3.0, 3.0];
    let predictions = Predictions::new(&outputs, &targets, 1).unwrap();
    let mut sums = vec![0.0; metric.sums()];
    metric.add(&predictions, 0.0, &mut sums).unwrap();
    assert_eq!(metric.value(&sums), 0.0);
    assert!(metric.value(&vec![0.0; metric.sums()]).is_nan());
}
