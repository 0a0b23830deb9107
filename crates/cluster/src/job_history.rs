//! [`EventHistory`]: reports each event of a job once and each decision as one sentence. Pure.

use std::time::Duration;

use ronde_core::{Epoch, Event, Generation, Step};
use ronde_elastic::Reason;

/// Time that workers may take to start before it is reported.
const START_QUIET: Duration = Duration::from_secs(5);

/// The events reported so far and an unrecovered loss.
#[derive(Default)]
pub(crate) struct JobHistory {
    /// When the unrecovered loss was noticed, and the generation that had it.
    recovering: Option<(Duration, Generation)>,
    seen: RecordedProgress,
}

/// The recorded progress: a new rank 0 repeats some events of its predecessor.
#[derive(Default)]
struct RecordedProgress {
    /// The generation in which the job started from a checkpoint; later events of older ones are
    /// ignored.
    anew: Generation,
    step: Option<Step>,
    epoch: Option<Epoch>,
    evaluated: Option<Step>,
    started: bool,
    finished: bool,
}

impl RecordedProgress {
    /// Returns whether an event is new.
    fn admits(&mut self, event: &Event) -> bool {
        fn newer<T: PartialOrd + Copy>(last: &mut Option<T>, this: T) -> bool {
            let is_newer = last.is_none_or(|last| this > last);
            if is_newer {
                *last = Some(this);
            }
            is_newer
        }
        match event {
            Event::RunStarted { .. } => !std::mem::replace(&mut self.started, true),
            Event::RunFinished { .. } => !std::mem::replace(&mut self.finished, true),
            Event::StepCommitted {
                step, generation, ..
            } => *generation >= self.anew && newer(&mut self.step, *step),
            Event::EpochFinished { epoch, .. } => newer(&mut self.epoch, *epoch),
            Event::Evaluated { step, .. } => newer(&mut self.evaluated, *step),
            _ => true,
        }
    }
}

impl JobHistory {
    /// Returns the events to record for an event of a worker: the event itself unless it is a
    /// repetition, and possibly the recovery from a loss.
    pub(crate) fn recorded(
        &mut self,
        now: Duration,
        event: Event,
        newest: Generation,
    ) -> Vec<Event> {
        if !self.seen.admits(&event) {
            return Vec::new();
        }
        let Event::StepCommitted {
            step, generation, ..
        } = event
        else {
            return vec![event];
        };
        let recovered = self
            .recovering
            .take_if(|(_, lost)| generation == newest && generation > *lost)
            .map(|(since, _)| Event::Recovered {
                generation,
                step,
                duration_s: now.saturating_sub(since).as_secs_f64(),
            });
        std::iter::once(event).chain(recovered).collect()
    }

    /// Records an event that was reported before this coordinator started.
    pub(crate) fn remember(&mut self, event: &Event) {
        self.seen.admits(event);
    }

    /// Returns the event that reports a decision. `newest` is the newest generation.
    pub(crate) fn say(
        &mut self,
        now: Duration,
        reason: &Reason,
        newest: Generation,
    ) -> Option<Event> {
        let message = reason.to_string();
        let (generation, world_size) = match reason {
            Reason::Begun { .. } | Reason::Finished { .. } => return None,
            Reason::Leads { .. } if newest == Generation(0) => return None,
            Reason::Starts { after: None, .. } => return None,
            // The workers are only just being started.
            Reason::Waiting { waited, .. } if newest == Generation(0) && *waited < START_QUIET => {
                return None;
            }
            Reason::GivenUp { generation, .. } => {
                let (since, _) = self.recovering.unwrap_or((now, *generation));
                self.recovering = Some((since, *generation));
                return None;
            }
            Reason::StateLost {
                generation,
                workers,
                checkpoint,
            } => {
                // Steps from the checkpoint on are committed again.
                self.seen.anew = *generation;
                self.seen.step = checkpoint.and_then(|next| next.0.checked_sub(1)).map(Step);
                (self.seen.epoch, self.seen.evaluated) = (None, None);
                (*generation, *workers)
            }
            Reason::Lost {
                generation,
                workers,
                ..
            }
            | Reason::Reformed {
                generation,
                workers,
                ..
            }
            | Reason::Changed {
                generation,
                workers,
                ..
            } => (*generation, *workers),
            _ => {
                return Some(Event::Notice {
                    rank: None,
                    message,
                });
            }
        };
        Some(Event::MembershipChanged {
            generation,
            world_size,
            reason: message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(generation: u64, step: u64) -> Event {
        Event::StepCommitted {
            step: Step(step),
            epoch: Epoch(0),
            generation: Generation(generation),
            loss: 1.0,
            samples: 8,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            duration_s: 0.1,
        }
    }

    #[test]
    fn a_loss_is_recovered_by_the_next_generation() {
        let mut narration = JobHistory::default();
        let lost = Reason::GivenUp {
            losses: Vec::new(),
            generation: Generation(1),
        };
        assert_eq!(narration.say(Duration::ZERO, &lost, Generation(1)), None);
        let mut recovered = |step, generation, newest| {
            let event = committed(generation, step);
            let events = narration.recorded(Duration::from_secs(1), event, Generation(newest));
            events.len() == 2
        };
        assert!(!recovered(4, 1, 1), "the last step before the loss");
        assert!(!recovered(5, 1, 2), "reported late");
        assert!(recovered(6, 2, 2));
        assert!(!recovered(7, 2, 2), "only once");
    }

    #[test]
    fn late_events_from_before_a_start_from_a_checkpoint_are_ignored() {
        let mut narration = JobHistory::default();
        let mut is_new = |generation, step| {
            let newest = Generation(generation);
            let events = narration.recorded(Duration::ZERO, committed(generation, step), newest);
            !events.is_empty()
        };
        assert!(is_new(1, 7));
        assert!(!is_new(1, 7), "a repetition");
        let anew = Reason::StateLost {
            generation: Generation(3),
            workers: 1,
            checkpoint: Some(Step(5)),
        };
        narration.say(Duration::ZERO, &anew, Generation(3));
        let mut is_new = |generation, step| {
            let newest = Generation(3);
            let events = narration.recorded(Duration::ZERO, committed(generation, step), newest);
            !events.is_empty()
        };
        assert!(!is_new(2, 8), "from a lost state");
        assert!(is_new(3, 5) && is_new(3, 6) && !is_new(3, 6));
    }
}
