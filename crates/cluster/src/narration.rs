//! [`Narration`]: what people hear of a job: each event once, each decision in one sentence. Pure.

use std::time::Duration;

use ronde_core::{Epoch, Event, Generation, Step};
use ronde_elastic::Reason;

/// What was told already, and the loss that is not made good yet.
#[derive(Default)]
pub(crate) struct Narration {
    /// When the loss was noticed that is not made good yet, and of which generation.
    recovering: Option<(Duration, Generation)>,
    seen: Seen,
}

/// What was recorded already: a rank 0 that takes another one's place says some things again.
#[derive(Default)]
struct Seen {
    /// The generation in which the job began anew from a checkpoint: what is told of older ones later is void.
    anew: Generation,
    step: Option<Step>,
    epoch: Option<Epoch>,
    evaluated: Option<Step>,
    started: bool,
    finished: bool,
}

impl Seen {
    /// Whether an event tells something new.
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

impl Narration {
    /// What an event of a worker comes to: itself unless it was told before, and the news that a
    /// loss is made good.
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

    /// Takes note of an event that was told before this coordinator began.
    pub(crate) fn remember(&mut self, event: &Event) {
        self.seen.admits(event);
    }

    /// What people hear of a decision. `generation`: the newest one.
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
            // They are only just being started.
            Reason::TooFew { .. } if newest == Generation(0) => return None,
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
                // Steps are committed again, from there.
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
            learning_rate: 0.1,
            gradient_norm: 1.0,
            duration_s: 0.1,
        }
    }

    #[test]
    fn a_loss_is_made_good_by_the_next_generation() {
        let mut narration = Narration::default();
        let lost = Reason::GivenUp {
            losses: Vec::new(),
            generation: Generation(1),
        };
        assert_eq!(narration.say(Duration::ZERO, &lost, Generation(1)), None);
        let mut recovered = |step, generation, newest| {
            let event = committed(generation, step);
            let told = narration.recorded(Duration::from_secs(1), event, Generation(newest));
            told.len() == 2
        };
        assert!(!recovered(4, 1, 1), "its last step");
        assert!(!recovered(5, 1, 2), "told late");
        assert!(recovered(6, 2, 2));
        assert!(!recovered(7, 2, 2), "once");
    }

    #[test]
    fn what_comes_late_from_before_a_new_beginning_is_void() {
        let mut narration = Narration::default();
        let mut tells = |generation, step| {
            let newest = Generation(generation);
            let told = narration.recorded(Duration::ZERO, committed(generation, step), newest);
            !told.is_empty()
        };
        assert!(tells(1, 7));
        assert!(!tells(1, 7), "told before");
        let anew = Reason::StateLost {
            generation: Generation(3),
            workers: 1,
            checkpoint: Some(Step(5)),
        };
        narration.say(Duration::ZERO, &anew, Generation(3));
        let mut tells = |generation, step| {
            let newest = Generation(3);
            let told = narration.recorded(Duration::ZERO, committed(generation, step), newest);
            !told.is_empty()
        };
        assert!(!tells(2, 8), "of a state that is lost");
        assert!(tells(3, 5) && tells(3, 6) && !tells(3, 6));
    }
}
