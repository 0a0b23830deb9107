//! [`JobHistory`]: reports each event of a job once and each decision as one sentence. Pure.
//!
//! The repetitions of a new rank 0 are dropped. A job that returns to an earlier step (`run_restarted`, `checkpoint_loaded`)
//! computes steps again, and their events are reported again.

use std::time::Duration;

use ronde_core::{Epoch, Event, Generation, Step};
use ronde_protocol::{LossCause, Reason, StartFrom};

use crate::straggler::StragglerDetector;

/// Time that workers may take to start before it is reported.
const START_QUIET: Duration = Duration::from_secs(2);

/// The events reported so far and an unrecovered loss.
#[derive(Default)]
pub(crate) struct JobHistory {
    /// When the unrecovered loss was noticed, and the generation that had it.
    recovering: Option<(Duration, Generation)>,
    /// The newest generation whose formation was reported. The first one is reported by the start of
    /// the run.
    reported: Option<Generation>,
    seen: RecordedProgress,
    stragglers: StragglerDetector,
}

/// The recorded progress: a new rank 0 repeats some events of its predecessor.
#[derive(Default)]
struct RecordedProgress {
    /// The first generation that may commit steps again, after the job returned to an earlier step; steps of older ones are
    /// ignored from then on.
    anew: Option<Generation>,
    step: Option<Step>,
    /// The generation that committed `step`.
    committed_in: Option<Generation>,
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
            } => {
                let is_new = Some(*generation) >= self.anew && newer(&mut self.step, *step);
                if is_new {
                    self.committed_in = Some(*generation);
                }
                is_new
            }
            Event::EpochFinished { epoch, .. } => newer(&mut self.epoch, *epoch),
            Event::Evaluated { step, .. } => newer(&mut self.evaluated, *step),
            Event::CheckpointLoaded { step, .. } => self.returns_to(Some(*step)),
            Event::RunRestarted { .. } => self.returns_to(None),
            _ => true,
        }
    }

    /// Expects the steps from a checkpoint on again, which the workers have loaded together after the newest step.
    fn returns_to(&mut self, checkpoint: Option<Step>) -> bool {
        let later = self
            .committed_in
            .map(|Generation(newest)| Generation(newest + 1));
        self.start_from(later, checkpoint);
        true
    }

    /// Expects the steps from a checkpoint on again, committed in `generation` or later.
    fn start_from(&mut self, generation: Option<Generation>, checkpoint: Option<Step>) {
        self.anew = self.anew.max(generation);
        self.step = checkpoint.and_then(|next| next.0.checked_sub(1)).map(Step);
        (self.epoch, self.evaluated) = (None, None);
    }
}

impl JobHistory {
    /// Returns the events to record for an event of a worker: the event itself unless it is a
    /// repetition, and possibly the recovery from a loss or a change of the straggler.
    pub(crate) fn recorded(
        &mut self,
        now: Duration,
        event: Event,
        newest: Option<Generation>,
    ) -> Vec<Event> {
        if !self.seen.admits(&event) {
            return Vec::new();
        }
        let straggler = self.stragglers.take(&event);
        let Event::StepCommitted {
            step, generation, ..
        } = event
        else {
            return std::iter::once(event).chain(straggler).collect();
        };
        let recovered = self
            .recovering
            .take_if(|(_, lost)| Some(generation) == newest && generation > *lost)
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
        // It has recorded its decisions.
        let _known = self.stragglers.take(event);
        if let Event::MembershipChanged { generation, .. } = event {
            self.reported = self.reported.max(Some(*generation));
        }
    }

    /// Returns the events that report a decision. `newest` is the newest generation.
    pub(crate) fn say(
        &mut self,
        now: Duration,
        reason: &Reason,
        newest: Option<Generation>,
    ) -> Vec<Event> {
        let restarted = match reason {
            Reason::StateLost {
                checkpoint: None, ..
            } => self.seen.step,
            _ => None,
        };
        let restarted = restarted.map(|Step(last)| Event::RunRestarted {
            lost: Step(last + 1),
            reason: reason.to_string(),
        });
        let said = self.sentence(now, reason, newest);
        said.into_iter().chain(restarted).collect()
    }

    fn sentence(
        &mut self,
        now: Duration,
        reason: &Reason,
        newest: Option<Generation>,
    ) -> Option<Event> {
        let message = message_of(reason);
        let (generation, world_size) = match reason {
            Reason::Begun { .. } | Reason::Finished { .. } => return None,
            Reason::Leads { .. } if newest.is_none() => return None,
            Reason::Starts { after: None, .. } => return None,
            // The workers are only just being started.
            Reason::Waiting { waited, .. } if newest.is_none() && *waited < START_QUIET => {
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
                self.seen.start_from(Some(*generation), *checkpoint);
                (*generation, *workers)
            }
            Reason::Adopted { generation, .. } if self.is_reported(*generation) => return None,
            Reason::Adopted {
                generation,
                workers,
                start,
            } => {
                if let StartFrom::Checkpoint(checkpoint) = start {
                    self.seen.start_from(Some(*generation), *checkpoint);
                }
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
        self.reported = self.reported.max(Some(generation));
        let event = Event::MembershipChanged {
            generation,
            world_size,
            reason: message,
        };
        let _none = self.stragglers.take(&event);
        Some(event)
    }

    fn is_reported(&self, generation: Generation) -> bool {
        generation <= self.reported.unwrap_or(Generation::FIRST)
    }
}

/// Returns the sentence about a decision, with the usual cause of a worker that is killed again and again.
fn message_of(reason: &Reason) -> String {
    let hint = match reason {
        Reason::SlotGivenUp {
            cause: LossCause::Signal(9),
            ..
        } => "; the kernel kills processes when memory runs out, and `dmesg` shows it",
        _ => "",
    };
    format!("{reason}{hint}")
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
            targets: 8,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            skipped_update: None,
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
        assert_eq!(
            narration.say(Duration::ZERO, &lost, Some(Generation(1))),
            []
        );
        let mut recovered = |step, generation, newest| {
            let event = committed(generation, step);
            let events =
                narration.recorded(Duration::from_secs(1), event, Some(Generation(newest)));
            events.len() == 2
        };
        assert!(!recovered(4, 1, 1), "the last step before the loss");
        assert!(!recovered(5, 1, 2), "reported late");
        assert!(recovered(6, 2, 2));
        assert!(!recovered(7, 2, 2), "only once");
    }

    #[test]
    fn a_generation_that_its_coordinator_did_not_report_is_reported_once() {
        let adopted = |generation, start| Reason::Adopted {
            generation: Generation(generation),
            workers: 2,
            start,
        };
        let mut narration = JobHistory::default();
        let mut say = |reason: &Reason, newest| {
            let events = narration.say(Duration::ZERO, reason, Some(Generation(newest)));
            events.into_iter().next().map(|event| match event {
                Event::MembershipChanged { generation, .. } => generation.0,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(say(&adopted(1, StartFrom::Peers), 1), None, "the first one");
        assert_eq!(say(&adopted(3, StartFrom::Peers), 3), Some(3));
        assert_eq!(say(&adopted(3, StartFrom::Peers), 3), None);

        // The previous coordinator formed generation 4 from a checkpoint and ended.
        let mut narration = JobHistory::default();
        narration.remember(&Event::MembershipChanged {
            generation: Generation(3),
            world_size: 2,
            reason: String::new(),
        });
        narration.remember(&committed(3, 9));
        let from = StartFrom::Checkpoint(Some(Step(5)));
        for (reason, is_reported) in [(adopted(3, from), false), (adopted(4, from), true)] {
            let events = narration.say(Duration::ZERO, &reason, Some(Generation(4)));
            assert_eq!(!events.is_empty(), is_reported, "{reason:?}");
        }
        let events = narration.recorded(Duration::ZERO, committed(4, 5), Some(Generation(4)));
        assert_eq!(events.len(), 1, "committed again");
    }

    #[test]
    fn late_events_from_before_a_start_from_a_checkpoint_are_ignored() {
        let mut narration = JobHistory::default();
        let mut is_new = |generation, step| {
            let newest = Some(Generation(generation));
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
        narration.say(Duration::ZERO, &anew, Some(Generation(3)));
        let mut is_new = |generation, step| {
            let newest = Some(Generation(3));
            let events = narration.recorded(Duration::ZERO, committed(generation, step), newest);
            !events.is_empty()
        };
        assert!(!is_new(2, 8), "from a lost state");
        assert!(is_new(3, 5) && is_new(3, 6) && !is_new(3, 6));
    }

    #[test]
    fn steps_that_workers_compute_again_are_recorded_again() {
        let mut narration = JobHistory::default();
        let mut records = |event: Event, newest| {
            let events = narration.recorded(Duration::ZERO, event, Some(Generation(newest)));
            !events.is_empty()
        };
        let restarted = || Event::RunRestarted {
            lost: Step(3),
            reason: String::new(),
        };
        assert!(records(committed(1, 1), 1) && records(committed(1, 2), 1));
        assert!(records(restarted(), 2));
        assert!(!records(committed(1, 3), 2), "late, of the lost state");
        assert!(records(committed(2, 0), 2) && !records(committed(2, 0), 2));
        let loaded = Event::CheckpointLoaded {
            step: Step(1),
            world_size: 2,
            bytes: 8,
            duration_s: 0.1,
            address: None,
            skipped: Vec::new(),
        };
        assert!(records(committed(2, 1), 2) && records(loaded, 3));
        assert!(!records(committed(2, 2), 3) && records(committed(3, 1), 3));
    }

    #[test]
    fn a_job_whose_workers_all_lost_the_state_before_a_checkpoint_reports_a_restart() {
        let lost = |generation| Reason::StateLost {
            generation: Generation(generation),
            workers: 2,
            checkpoint: None,
        };
        let mut narration = JobHistory::default();
        let say = |narration: &mut JobHistory, reason| {
            narration.say(Duration::ZERO, &reason, Some(Generation(2)))
        };
        let [Event::MembershipChanged { .. }] = say(&mut narration, lost(1))[..] else {
            panic!("no step was committed");
        };
        narration.recorded(Duration::ZERO, committed(1, 6), Some(Generation(1)));
        let events = say(&mut narration, lost(2));
        let [
            Event::MembershipChanged { .. },
            Event::RunRestarted { lost, .. },
        ] = events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(lost, Step(7));
    }
}
