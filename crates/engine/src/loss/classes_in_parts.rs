//! [`CrossEntropy`] of logits that are divided among processes: the greatest logit of a row is exact, and the sums of
//! exponentials are added along a tree over the parts.

use std::ops::Range;

use ronde_core::PartTransfer;
use ronde_core::norm::tree_sum;
use ronde_kernels::{exponentials, greatest_logit, scale_in_f64};

use super::classes::check_label;
use super::{CrossEntropy, IGNORED, LossInParts, LossOutput};
use crate::error::EngineError;
use crate::graph::PartPlace;
use crate::lock_step::NotSummed;

/// The own logits: rows of the columns of the own parts.
struct OwnColumns<'a> {
    /// The first class of each own part, its first own column, and its number of columns.
    parts: Vec<(usize, usize, usize)>,
    /// The number of own columns.
    width: usize,
    targets: &'a [u32],
}

impl<'a> OwnColumns<'a> {
    fn new(widths: &[usize], place: &PartPlace, targets: &'a [u32]) -> Self {
        let own = place.own();
        let (mut class, mut width) = (0, 0);
        let mut parts = Vec::new();
        for (part, &columns) in (0..).zip(widths) {
            if own.contains(&part) {
                parts.push((class, width, columns));
                width += columns;
            }
            class += columns;
        }
        Self {
            parts,
            width,
            targets,
        }
    }

    /// Returns the columns of a part in a row.
    fn of_part<'b>(
        &self,
        values: &'b mut [f32],
        row: usize,
        (_, first, columns): (usize, usize, usize),
    ) -> &'b mut [f32] {
        &mut values[row * self.width + first..][..columns]
    }

    /// Returns for each own part and row the greatest logit, and that of the target if it is in the part.
    fn greatest(&self, values: &mut [f32]) -> Vec<f32> {
        let mut found = Vec::with_capacity(2 * self.parts.len() * self.targets.len());
        for &part in &self.parts {
            for (row, &target) in self.targets.iter().enumerate() {
                let logits = self.of_part(values, row, part);
                let own = (target as usize).checked_sub(part.0);
                let of_target = own.and_then(|class| logits.get(class));
                found.push(greatest_logit(logits));
                found.push(of_target.copied().unwrap_or(f32::NEG_INFINITY));
            }
        }
        found
    }

    /// Replaces the logits by exponentials, and returns their sum for each own part and row, as the halves of f64 numbers.
    fn exponentials(&self, values: &mut [f32], maxima: &[f32]) -> Vec<f32> {
        let mut found = Vec::with_capacity(2 * self.parts.len() * self.targets.len());
        for &part in &self.parts {
            for (row, maximum) in maxima.iter().enumerate() {
                let sum = exponentials(self.of_part(values, row, part), *maximum);
                found.extend(halves(sum));
            }
        }
        found
    }
}

impl OwnColumns<'_> {
    /// Replaces the exponentials of rows by their gradient, and returns the sum of their losses. `sum_of` returns the sum of the
    /// exponentials of a row, and the difference of the logit of its target from the greatest one.
    fn finish_rows(
        &self,
        values: &mut [f32],
        rows: Range<usize>,
        sum_of: &dyn Fn(usize) -> (f64, f64),
    ) -> f64 {
        let mut loss = 0.0;
        for row in rows {
            let own_row = &mut values[row * self.width..(row + 1) * self.width];
            if self.targets[row] == IGNORED {
                own_row.fill(0.0);
                continue;
            }
            let (total, difference) = sum_of(row);
            scale_in_f64(own_row, 1.0 / total);
            for &(class, first, columns) in &self.parts {
                let target = (self.targets[row] as usize).checked_sub(class);
                if let Some(target) = target.filter(|target| *target < columns) {
                    own_row[first + target] -= 1.0;
                }
            }
            loss += libm::log(total) - difference;
        }
        loss
    }
}

/// Returns the bits of a number as two f32.
fn halves(number: f64) -> [f32; 2] {
    let bits = number.to_bits();
    [bits as u32, (bits >> 32) as u32].map(f32::from_bits)
}

fn whole([low, high]: [f32; 2]) -> f64 {
    f64::from_bits(u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32)
}

impl LossInParts for CrossEntropy {
    fn loss_of_parts(
        &self,
        outputs: Vec<f32>,
        widths: &[usize],
        targets: &[u32],
        samples: usize,
        place: &PartPlace,
    ) -> Result<LossOutput, EngineError> {
        let own = OwnColumns::new(widths, place, targets);
        let (rows, classes) = (targets.len(), widths.iter().sum());
        if outputs.len() != rows * own.width || !rows.is_multiple_of(samples.max(1)) {
            return Err(EngineError::OutputCount {
                function: "loss cross_entropy in parts".to_owned(),
                samples,
                found: outputs.len() / samples.max(1),
                targets: rows / samples.max(1),
                factor: own.width,
            });
        }
        if samples == 0 {
            return Ok(LossOutput::default());
        }
        let each = rows / samples;
        for (row, &target) in targets.iter().enumerate() {
            if target != IGNORED {
                check_label(row / each, target, classes)?;
            }
        }
        let mut values = outputs;
        let not_summed = |NotSummed| EngineError::NotSummed {
            layer: "loss".to_owned(),
        };
        let greatest = place
            .gather(own.greatest(&mut values))
            .map_err(not_summed)?;
        let of_row = |row: usize| greatest.chunks_exact(2).skip(row).step_by(rows);
        let maximum = |row, which: usize| {
            let parts = of_row(row).map(|pair| pair[which]);
            parts.fold(f32::NEG_INFINITY, f32::max)
        };
        let maxima: Vec<f32> = (0..rows).map(|row| maximum(row, 0)).collect();
        let sums = own.exponentials(&mut values, &maxima);
        let sums = place.gather(sums).map_err(not_summed)?;
        let sum_of = |row: usize| {
            let parts = sums.chunks_exact(2).skip(row).step_by(rows);
            let total = tree_sum(parts.map(|pair| whole([pair[0], pair[1]])));
            (total, f64::from(maximum(row, 1)) - f64::from(maxima[row]))
        };
        let mut loss_sum = 0.0;
        for sample in 0..samples {
            loss_sum += own.finish_rows(&mut values, sample * each..(sample + 1) * each, &sum_of);
        }
        Ok(LossOutput {
            loss_sum,
            gradient: values,
        })
    }

    /// The greatest logits with those of the targets, then the halves of the sums of exponentials.
    fn transfers_of_parts(&self, targets: usize, parts: usize) -> Vec<PartTransfer> {
        let elements = vec![2 * targets; parts];
        vec![PartTransfer::Gather { elements }; 2]
    }
}
