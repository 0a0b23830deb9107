//! [`parse_event_line`]: reads one line of an event file.

use ronde_core::event::PhaseTimes;
use ronde_core::{Epoch, Event, Generation, Rank, SkippedUpdate, Step};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

/// Number of bytes at the beginning of a line in which its kind is searched.
const KIND_WITHIN: usize = 80;

/// Returns the time in seconds since 1970 and the event of a line without its line break; `None` for the header, for a
/// line that is damaged, and for an event of a newer version.
///
/// The events of steps, which are nearly all of a file, are read without the intermediate values of tagged types.
#[must_use]
pub fn parse_event_line(line: &[u8]) -> Option<(f64, Event)> {
    let fast = match kind(line) {
        Some(b"step_committed") => read(line).map(CommittedLine::event),
        Some(b"step_times") => read(line).map(TimesLine::event),
        _ => None,
    };
    fast.or_else(|| {
        let EventLine { t, event } = read(line)?;
        Some((t, event))
    })
}

/// Returns the kind of an event if the line begins with `t` and `event`, as ronde writes it.
fn kind(line: &[u8]) -> Option<&[u8]> {
    const MARK: &[u8] = b",\"event\":\"";
    let start = &line[..line.len().min(KIND_WITHIN)];
    let at = start.windows(MARK.len()).position(|part| part == MARK)? + MARK.len();
    let end = start[at..].iter().position(|byte| *byte == b'"')?;
    Some(&start[at..at + end])
}

fn read<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}

/// Reads a number; `null` is NaN.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The fields of [`Event::StepCommitted`] in one flat line.
#[derive(Deserialize)]
struct CommittedLine {
    t: f64,
    step: Step,
    epoch: Epoch,
    generation: Generation,
    #[serde(deserialize_with = "number")]
    loss: f64,
    samples: u64,
    #[serde(default)]
    targets: u64,
    #[serde(default)]
    skipped: u64,
    #[serde(deserialize_with = "number")]
    learning_rate: f64,
    #[serde(deserialize_with = "number")]
    gradient_norm: f64,
    #[serde(default)]
    skipped_update: Option<SkippedUpdate>,
    #[serde(deserialize_with = "number")]
    duration_s: f64,
}

impl CommittedLine {
    fn event(self) -> (f64, Event) {
        let event = Event::StepCommitted {
            step: self.step,
            epoch: self.epoch,
            generation: self.generation,
            loss: self.loss,
            samples: self.samples,
            targets: self.targets,
            skipped: self.skipped,
            learning_rate: self.learning_rate,
            gradient_norm: self.gradient_norm,
            skipped_update: self.skipped_update,
            duration_s: self.duration_s,
        };
        (self.t, event)
    }
}

/// The fields of [`Event::StepTimes`] in one flat line.
#[derive(Deserialize)]
struct TimesLine {
    t: f64,
    rank: Rank,
    step: Step,
    #[serde(deserialize_with = "number")]
    compute_s: f64,
    #[serde(deserialize_with = "number")]
    communicate_s: f64,
    #[serde(deserialize_with = "number")]
    wait_data_s: f64,
    #[serde(default, deserialize_with = "number")]
    forward_s: f64,
    #[serde(default, deserialize_with = "number")]
    backward_s: f64,
    #[serde(default, deserialize_with = "number")]
    optimizer_s: f64,
    #[serde(default, deserialize_with = "number")]
    reducing_s: f64,
    #[serde(default, deserialize_with = "number")]
    waited_s: f64,
    #[serde(default)]
    arrived_s: Option<f64>,
    bytes_sent: u64,
}

impl TimesLine {
    fn event(self) -> (f64, Event) {
        let event = Event::StepTimes {
            rank: self.rank,
            step: self.step,
            times: PhaseTimes {
                compute_s: self.compute_s,
                communicate_s: self.communicate_s,
                wait_data_s: self.wait_data_s,
                forward_s: self.forward_s,
                backward_s: self.backward_s,
                optimizer_s: self.optimizer_s,
                reducing_s: self.reducing_s,
                waited_s: self.waited_s,
            },
            arrived_s: self.arrived_s,
            bytes_sent: self.bytes_sent,
        };
        (self.t, event)
    }
}

/// A line of an event file.
#[derive(Serialize, Deserialize)]
pub(crate) struct EventLine<E> {
    pub(crate) t: f64,
    #[serde(flatten)]
    pub(crate) event: E,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_reads_what_was_written() {
        let committed = Event::StepCommitted {
            step: Step(7),
            epoch: Epoch(1),
            generation: Generation(3),
            loss: 0.25,
            samples: 64,
            targets: 64,
            skipped: 2,
            learning_rate: 1e-5,
            gradient_norm: 1.5,
            skipped_update: None,
            duration_s: 0.125,
        };
        let times = Event::StepTimes {
            rank: Rank(2),
            step: Step(7),
            times: PhaseTimes {
                compute_s: 1.0,
                communicate_s: 2.0,
                wait_data_s: 3.0,
                forward_s: 4.0,
                backward_s: 5.0,
                optimizer_s: 6.0,
                reducing_s: 7.0,
                waited_s: 8.0,
            },
            arrived_s: Some(12_345_678.5),
            bytes_sent: 9,
        };
        let notice = Event::Notice {
            rank: None,
            message: ",\"event\":\"step_times\"".to_owned(),
        };
        for event in [committed, times, notice] {
            let line = serde_json::to_vec(&EventLine {
                t: 12.5,
                event: &event,
            })
            .unwrap();
            assert_eq!(parse_event_line(&line), Some((12.5, event)));
        }
    }

    #[test]
    fn null_is_nan_and_damaged_lines_are_skipped() {
        let line = br#"{"t":1,"event":"step_committed","step":0,"epoch":0,"generation":1,"loss":null,"samples":1,"learning_rate":0.1,"gradient_norm":null,"duration_s":0.1}"#;
        let Some((_, Event::StepCommitted { loss, .. })) = parse_event_line(line) else {
            panic!("not read");
        };
        assert!(loss.is_nan());
        let lines: [&[u8]; 6] = [
            &line[..40],
            b"",
            b"{\"format\":\"ronde.events\",\"version\":1}",
            b"\0\0\0\0\0\0\xff",
            br#"{"t":1,"event":"step_committed""#,
            br#"{"t":1,"event":"of a newer version","x":1}"#,
        ];
        for line in lines {
            assert_eq!(parse_event_line(line), None);
        }
    }
}
