//! [`HistogramParts`]: the histograms of tensors whose parts are on several ranks; and their form in TensorBoard's files.

use std::collections::BTreeMap;

use ronde_core::Event;
use ronde_core::histogram::ValueHistogram;
use ronde_core::protobuf::ProtoMessage;

use crate::track::committed;

/// A histogram of a whole tensor.
#[derive(Debug, PartialEq)]
pub(super) struct WholeHistogram {
    /// The name of the series, such as `weights/layer1.weight`.
    pub(super) name: String,
    /// The number of committed steps.
    pub(super) step: u64,
    pub(super) histogram: ValueHistogram,
}

/// Largest number of steps of a tensor with missing parts. The ranks report a step at different times; parts that never
/// arrive belong to a rank that was lost.
const OPEN_STEPS_MAX: usize = 64;

/// The histograms with missing parts, by name and step.
#[derive(Debug, Default)]
pub(super) struct HistogramParts(BTreeMap<String, BTreeMap<u64, ValueHistogram>>);

impl HistogramParts {
    /// Adds a part, and returns the histogram once all elements of the tensor are in it.
    pub(super) fn add(&mut self, event: &Event) -> Option<WholeHistogram> {
        let Event::TensorHistogram {
            step,
            tensor,
            values,
            elements,
            histogram: part,
        } = event
        else {
            return None;
        };
        let (name, step) = (format!("{}/{tensor}", values.name()), committed(*step));
        let open = self.0.entry(name.clone()).or_default();
        let mut histogram = open.remove(&step).unwrap_or_default();
        histogram.merge(part);
        if histogram.count() + histogram.non_finite < *elements {
            open.insert(step, histogram);
            if open.len() > OPEN_STEPS_MAX {
                open.pop_first();
            }
            return None;
        }
        Some(WholeHistogram {
            name,
            step,
            histogram,
        })
    }

    /// Forgets all parts.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns a `HistogramProto` with its tag.
pub(super) fn value(name: &str, histogram: &ValueHistogram) -> ProtoMessage {
    let (mut limits, mut counts) = (Vec::new(), Vec::new());
    let mut push = |limit: f64, count: u64| {
        limits.extend_from_slice(&limit.to_le_bytes());
        counts.extend_from_slice(&(count as f64).to_le_bytes());
    };
    let mut previous = None;
    for &(bucket, count) in &histogram.buckets {
        // A bucket begins at the end of the one before it, so a gap is an empty bucket.
        let (begin, end) = ValueHistogram::ends(bucket);
        if previous != Some(begin) {
            push(begin, 0);
        }
        push(end, count);
        previous = Some(end);
    }
    let content = ProtoMessage::default()
        .double(1, histogram.min)
        .double(2, histogram.max)
        .double(3, histogram.count() as f64)
        .double(4, histogram.sum)
        .double(5, histogram.sum_of_squares)
        .bytes(6, &limits)
        .bytes(7, &counts);
    ProtoMessage::default()
        .bytes(1, name.as_bytes())
        .message(5, &content)
}

#[cfg(test)]
mod tests {
    use ronde_core::Step;
    use ronde_core::histogram::{HistogramCounter, TensorValues};

    use super::*;
    use crate::event_line::EventLine;
    use crate::event_line::parse_event_line;

    fn part(step: u64, values: &[f32]) -> Event {
        let mut counter = HistogramCounter::default();
        counter.add(values);
        Event::TensorHistogram {
            step: Step(step),
            tensor: "w".to_owned(),
            values: TensorValues::Gradients,
            elements: 3,
            histogram: counter.take(),
        }
    }

    #[test]
    fn histograms_read_back_from_a_line() {
        let event = part(3, &[1.5, -0.25, f32::INFINITY]);
        let line = serde_json::to_string(&EventLine {
            t: 1.5,
            event: &event,
        })
        .unwrap();
        assert_eq!(
            parse_event_line(line.as_bytes()),
            Some((1.5, event)),
            "{line}"
        );
    }

    #[test]
    fn a_histogram_is_complete_with_the_parts_of_all_ranks() {
        let mut parts = HistogramParts::default();
        assert_eq!(parts.add(&part(0, &[9.0])), None);
        assert_eq!(parts.add(&part(1, &[1.0])), None);
        let late = parts.add(&part(0, &[1.0, 2.0])).unwrap();
        assert_eq!((late.step, late.histogram.sum), (1, 12.0));
        let whole = parts.add(&part(1, &[f32::NAN, -2.0])).unwrap();
        assert_eq!((whole.name.as_str(), whole.step), ("gradients/w", 2));
        let histogram = whole.histogram;
        let numbers = (histogram.count(), histogram.non_finite, histogram.sum);
        assert_eq!(numbers, (2, 1, -1.0));
        assert_eq!(parts.add(&part(2, &[1.0])), None);
        parts.clear();
        assert_eq!(parts.add(&part(2, &[1.0, 2.0])), None);
        (3..1_000).for_each(|step| assert_eq!(parts.add(&part(step, &[1.0])), None));
        assert_eq!(parts.0["gradients/w"].len(), OPEN_STEPS_MAX);
    }
}
