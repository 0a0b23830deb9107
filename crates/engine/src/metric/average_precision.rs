//! [`MeanAveragePrecision`]: the quality of a detector's boxes.

use super::Metric;
use crate::detection::{DetectedImages, Detection, ImageBox, LOGIT_MIN, OVERLAP, TrueBox};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// The number of classes of equal scores.
const BINS: usize = 1024;
/// The number of classes of equal scores within a logit of 1.
const BINS_PER_LOGIT: f64 = 64.0;
/// The number of sums of a class: its true boxes, and the correct and the wrong detections by score.
const CLASS_SUMS: usize = 1 + 2 * BINS;

/// The mean over classes of the average precision of detections, 0 to 1 (`mAP@0.5`).
///
/// Each logit of at least -4 is a detection. Of detections of a class in an image that overlap by more than one half, only
/// the one with the greatest score counts. In the order of scores, a detection is correct if it overlaps a true box of its
/// class by at least one half that no previous detection has found; it finds the one with the greatest overlap. The average
/// precision is the mean, over the recalls 0, 0.01, ..., 1, of the greatest precision at this recall or above, as for COCO.
/// Classes without true boxes do not count. Source: Lin et al., "Microsoft COCO", ECCV 2014, and pycocotools.
///
/// Scores of all images are compared as logits in steps of 1/64 from -4 to 12: detections within a step count as equal. The
/// sums are therefore numbers of detections, which do not depend on the order of samples. Cost: 2,049 sums for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeanAveragePrecision {
    /// The images.
    pub images: DetectedImages,
}

impl Metric for MeanAveragePrecision {
    fn name(&self) -> &str {
        "map50"
    }

    fn sums(&self) -> usize {
        self.images.classes * CLASS_SUMS
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        let grid = self.images.grid("metric map50", predictions)?;
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            let boxes = grid.true_boxes(sample, targets)?;
            for (class, sums) in sums.chunks_exact_mut(CLASS_SUMS).enumerate() {
                let of_class = boxes.iter().filter(|found| found.class == class);
                add_image(&grid.detections(outputs, class), of_class, sums);
            }
        }
        Ok(())
    }

    fn value(&self, sums: &[f64]) -> f64 {
        let classes = sums.chunks_exact(CLASS_SUMS).filter(|sums| sums[0] > 0.0);
        let (count, sum) = classes.fold((0.0, 0.0), |(count, sum), sums| {
            (count + 1.0, sum + average_precision(sums))
        });
        sum / count
    }
}

/// Returns the class of scores that count as equal.
fn bin(detection: &Detection) -> usize {
    (((detection.logit - LOGIT_MIN) * BINS_PER_LOGIT) as usize).min(BINS - 1)
}

/// Adds the detections of a class in an image to the sums of the class.
fn add_image<'a>(
    detections: &[Detection],
    boxes: impl Iterator<Item = &'a TrueBox>,
    sums: &mut [f64],
) {
    let mut missing: Vec<&ImageBox> = boxes.map(|found| &found.bounds).collect();
    sums[0] += missing.len() as f64;
    for detection in detections {
        let overlaps = missing.iter().enumerate();
        let overlaps = overlaps.map(|(at, bounds)| (at, detection.bounds.overlap(bounds)));
        let nearest = overlaps.max_by(|a, b| a.1.total_cmp(&b.1));
        let is_correct = match nearest {
            Some((at, overlap)) if overlap >= OVERLAP => {
                missing.remove(at);
                true
            }
            _ => false,
        };
        let first = if is_correct { 1 } else { 1 + BINS };
        sums[first + bin(detection)] += 1.0;
    }
}

/// Returns the average precision of a class.
fn average_precision(sums: &[f64]) -> f64 {
    let (boxes, counts) = (sums[0], &sums[1..]);
    let (correct, wrong) = counts.split_at(BINS);
    // The number of correct detections and the precision for each smallest score.
    let (mut found, mut all) = (0.0, 0.0);
    let mut points = Vec::new();
    for (correct, wrong) in correct.iter().zip(wrong).rev() {
        if correct + wrong > 0.0 {
            found += correct;
            all += correct + wrong;
            points.push((found, found / all));
        }
    }
    let (mut sum, mut best) = (0.0, 0.0_f64);
    for hundredth in (0..=100).rev() {
        // Whole numbers are compared, so that no recall is missed by rounding.
        while let Some(&(found, precision)) = points.last()
            && 100.0 * found >= f64::from(hundredth) * boxes
        {
            best = best.max(precision);
            points.pop();
        }
        sum += best;
    }
    sum / 101.0
}

#[cfg(test)]
mod tests;
