//! [`FirstPart`]: the first part of a layer alone, to measure a worker that computes some of the parts.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::layout::{StateLayout, TensorEntry};
use ronde_engine::{
    Activation, ForwardContext, Layer, LayerExt, LayerSetting, Mode, NotSummed, PartExchange,
    PartPlace,
};

/// The times of exchanges that were left out.
#[derive(Debug, Default)]
pub(crate) struct ExchangeTimes {
    /// The seconds in which values were copied in and out, and the number of these elements.
    copied: Mutex<(f64, usize)>,
}

impl ExchangeTimes {
    fn copied(&self) -> MutexGuard<'_, (f64, usize)> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seconds in which an element of an exchanged value is copied in and out.
    pub(crate) fn element_s(&self) -> f64 {
        let (seconds, elements) = *self.copied();
        seconds / elements.max(1) as f64
    }
}

/// Stands in for the processes that compute the other parts, whose values are zeros. Copies values as an exchange does.
struct AbsentParts {
    parts: u32,
    all: Arc<ExchangeTimes>,
    /// The seconds since the last pass.
    of_pass: Mutex<f64>,
}

impl AbsentParts {
    fn of_pass(&self) -> MutexGuard<'_, f64> {
        self.of_pass.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartExchange for AbsentParts {
    fn sum(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed> {
        let begun = ronde_clock::seconds();
        let sent = subtrees.concat();
        let received = sent[..subtrees.first().map_or(0, Vec::len)].to_vec();
        let seconds = ronde_clock::seconds() - begun;
        *self.of_pass() += seconds;
        let mut all = self.all.copied();
        *all = (all.0 + seconds, all.1 + received.len());
        Ok(received)
    }

    fn sum_scattered(
        &self,
        subtrees: Vec<Vec<f32>>,
        elements: &[usize],
    ) -> Result<Vec<f32>, NotSummed> {
        let mut received = self.sum(subtrees)?;
        received.truncate(elements.first().copied().unwrap_or(0));
        Ok(received)
    }

    fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed> {
        let begun = ronde_clock::seconds();
        // Other parts are longer by one column at most; the excess is dropped.
        let elements = 2 * own.len() * self.parts as usize;
        let mut received = own;
        received.resize(elements, 0.0);
        *self.of_pass() += ronde_clock::seconds() - begun;
        Ok(received)
    }
}

/// The first part of a layer alone.
pub(crate) struct FirstPart {
    place: PartPlace,
    absent: Arc<AbsentParts>,
    /// The length of the last dimension of each part of the output, if the loss is computed from the parts.
    output_parts: Option<Vec<usize>>,
}

impl FirstPart {
    /// Returns the first of `parts` parts of a layer, whose output remains in parts if `output_parts` is set.
    pub(crate) fn new(
        parts: u32,
        output_parts: Option<Vec<usize>>,
        times: &Arc<ExchangeTimes>,
    ) -> Self {
        let absent = Arc::new(AbsentParts {
            parts,
            all: times.clone(),
            of_pass: Mutex::default(),
        });
        Self {
            place: PartPlace::shared(0..1, parts, absent.clone()),
            absent,
            output_parts,
        }
    }

    /// Lets a layer compute the part.
    pub(crate) fn place(&self, layer: &mut dyn Layer) {
        layer.set_parts(&self.place);
        layer.set(LayerSetting::OutputApart(self.output_parts.is_some()));
    }

    /// Returns the seconds of exchanges in the last pass.
    pub(crate) fn take_exchanged_s(&self) -> f64 {
        std::mem::take(&mut *self.absent.of_pass())
    }

    /// Returns the places of tensors with empty ones for those of other parts, whose gradients become zeros.
    pub(crate) fn own_ranges(
        &self,
        layout: &StateLayout,
        ranges: &[Range<usize>],
        gradients: &mut [f32],
    ) -> Vec<Range<usize>> {
        let own = |(tensor, range): (&TensorEntry, &Range<usize>)| {
            let part = tensor.part.as_ref().map(|part| part.index);
            if self.place.has(part) {
                return range.clone();
            }
            gradients[range.clone()].fill(0.0);
            range.start..range.start
        };
        layout.tensors.iter().zip(ranges).map(own).collect()
    }

    /// Returns the output of a layer with zeros for other parts, if it has the first part alone.
    pub(crate) fn whole_output(&self, output: Activation, context: &ForwardContext) -> Activation {
        match &self.output_parts {
            Some(widths) if context.mode == Mode::Train => {
                let (own, all) = (widths[0], widths.iter().sum());
                with_columns(output, own, all)
            }
            _ => output,
        }
    }

    /// Returns the columns of the first part of an output's gradient, if the output has these alone.
    pub(crate) fn own_output(&self, gradient: Activation) -> Activation {
        match &self.output_parts {
            Some(widths) => with_columns(gradient, widths.iter().sum(), widths[0]),
            None => gradient,
        }
    }
}

/// Returns a value whose last dimension has another length: zeros are added, or columns dropped.
fn with_columns(value: Activation, columns: usize, wanted: usize) -> Activation {
    let mut shape = value.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = wanted;
    }
    let values = value.on_host().into_host();
    let rows = values.chunks_exact(columns.max(1));
    let mut found = vec![0.0; rows.len() * wanted];
    let common = columns.min(wanted);
    for (to, row) in found.chunks_exact_mut(wanted.max(1)).zip(rows) {
        to[..common].copy_from_slice(&row[..common]);
    }
    Activation::from_host(&shape, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_have_zeros_for_other_parts() {
        let value = Activation::from_host(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]);
        let more = with_columns(value, 2, 3);
        assert_eq!(more.shape(), [2, 3]);
        let back = with_columns(more.clone(), 3, 2);
        assert_eq!(more.into_host(), [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
        assert_eq!(back.into_host(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn exchanges_of_absent_parts_are_timed_and_keep_the_own_values() {
        let times = Arc::new(ExchangeTimes::default());
        let part = FirstPart::new(3, None, &times);
        assert_eq!(times.element_s(), 0.0);
        let sum = part
            .absent
            .sum(vec![vec![1.0; 1 << 16]])
            .unwrap_or_default();
        assert_eq!((sum.len(), sum[7]), (1 << 16, 1.0));
        assert!(times.element_s() > 0.0);
        assert!(part.take_exchanged_s() > 0.0 && part.take_exchanged_s() == 0.0);
        let all = part.absent.gather(vec![2.0; 4]).unwrap_or_default();
        assert!(all.len() >= 12 && all[..4] == [2.0; 4] && all[4..12] == [0.0; 8]);
    }
}
