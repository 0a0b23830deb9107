//! [`Narration`]: what people hear of a job: each event once, each decision in one sentence. Pure.

use std::time::Duration;

use ronde_core::{Epoch, Event, Generation, Step};
use ronde_elastic::Reason;

/// What was told already, and the loss that is not made good yet.
#[derive(Default)]
pub(crate) struct Narration {
    /// When the loss was noticed that is not made good yet, and in which generation.
    recovering: Option<(Duration, Generation)>,
    seen: Seen,
}

/// What was recorded already: a rank 0 that takes another one's place says some things again.
#[derive(Default)]
struct Seen {
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
            Event::StepCommitted { step, .. } => newer(&mut self.step, *step),
            Event::EpochFinished { epoch, .. } => newer(&mut self.epoch, *epoch),
            Event::Evaluated { step, .. } => newer(&mut self.evaluated, *step),
            _ => true,
        }
    }
}

impl Narration {
    /// What an event of a worker comes to: itself unless it was told before, and the news that a
    /// loss is made good.
    pub(crate) fn recorded(&mut self, now: Duration, event: Event) -> Vec<Event> {
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
            // A step of before the loss may come late.
            .take_if(|(_, lost)| generation > *lost)
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
                let since = self.recovering.map_or(now, |(since, _)| since);
                self.recovering = Some((since, *generation));
                return None;
            }
            Reason::StateLost {
                generation,
                workers,
                checkpoint,
            } => {
                // Steps are committed again, from there.
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
    use ronde_elastic::{Loss, LossCause, WorkerId};

    use super::*;

    fn committed(step: u64, generation: u64) -> Event {
        Event::StepCommitted {
            step: Step(step),
            epoch: Epoch(0),
            generation: Generation(generation),
            loss: 0.5,
            samples: 8,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            duration_s: 0.01,
        }
    }

    #[test]
    fn a_step_of_before_the_loss_that_comes_late_makes_nothing_good() {
        let mut narration = Narration::default();
        let ms = Duration::from_millis;
        let loss = Loss {
            rank: ronde_core::Rank(1),
            worker: WorkerId(2),
            host: "b".to_owned(),
            cause: LossCause::Signal(9),
        };
        let given_up = Reason::GivenUp {
            losses: vec![loss],
            generation: Generation(3),
        };
        assert!(narration.say(ms(100), &given_up, Generation(3)).is_none());
        let told = narration.recorded(ms(105), committed(7, 3));
        assert_eq!(told, [committed(7, 3)]);
        let told = narration.recorded(ms(150), committed(8, 4));
        let recovered = Event::Recovered {
            generation: Generation(4),
            step: Step(8),
            duration_s: 0.05,
        };
        assert_eq!(told, [committed(8, 4), recovered]);
        assert_eq!(narration.recorded(ms(160), committed(9, 4)).len(), 1);
    }
}
