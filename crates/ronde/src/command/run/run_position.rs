//! [`RunPosition`]: how far a run is and what its newest checkpoint is, for the message at its end.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::{Event, Step, Tracker};
use ronde_submit::shell_word;
use ronde_tracking::render::count;

/// The progress of a run and its newest checkpoint, from its events.
#[derive(Clone)]
pub(crate) struct RunPosition {
    /// The argument of `--resume`.
    resume: String,
    reached: Arc<Mutex<Reached>>,
}

#[derive(Clone, Copy, Default)]
struct Reached {
    /// Number of committed steps; `None` until training has begun.
    steps: Option<u64>,
    /// Number of steps in the whole run.
    of: u64,
    /// Number of committed steps in the newest checkpoint.
    checkpoint: Option<u64>,
    /// Whether this run has loaded or saved that checkpoint, so that it is known to be usable.
    is_usable: bool,
}

impl RunPosition {
    /// Creates the position of a run whose newest checkpoint is that of `checkpoint`.
    pub(crate) fn new(resume: String, checkpoint: Option<Step>) -> Self {
        let reached = Reached {
            checkpoint: checkpoint.map(|step| step.0),
            ..Reached::default()
        };
        Self {
            resume,
            reached: Arc::new(Mutex::new(reached)),
        }
    }

    /// Returns the message for a run that was interrupted: its last step and how to resume.
    pub(crate) fn interrupted(&self) -> String {
        let reached = self.reached();
        let at = match reached.steps {
            Some(steps) => format!(
                "interrupted at step {} of {}",
                count(steps),
                count(reached.of)
            ),
            None => "interrupted before the first step".to_owned(),
        };
        match reached.checkpoint {
            Some(step) if Some(step) == reached.steps => {
                format!("{at}; checkpoint saved; {}", self.resume_with())
            }
            Some(step) => format!(
                "{at}; last checkpoint at step {}; {}",
                count(step),
                self.resume_with()
            ),
            None => format!("{at}; no checkpoint"),
        }
    }

    /// Returns the message for a run that failed, if it has a checkpoint. A checkpoint that could not be loaded is no
    /// reason to resume again.
    pub(crate) fn failed(&self) -> Option<String> {
        let reached = self.reached();
        let step = reached.checkpoint?;
        if !reached.is_usable {
            return Some(format!(
                "help: `ronde checkpoint verify {}` checks the checkpoints",
                shell_word(&self.resume)
            ));
        }
        Some(format!(
            "last checkpoint at step {}; {}",
            count(step),
            self.resume_with()
        ))
    }

    fn resume_with(&self) -> String {
        format!(
            "resume with `ronde train --resume {}`",
            shell_word(&self.resume)
        )
    }

    fn reached(&self) -> Reached {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracker for RunPosition {
    fn record(&self, event: Event) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::RunStarted { steps, .. } => reached.of = steps,
            Event::StepCommitted { step, .. } => reached.steps = Some(step.0.saturating_add(1)),
            Event::CheckpointSaved { step, .. } => {
                reached.checkpoint = Some(step.0);
                reached.is_usable = true;
            }
            Event::CheckpointLoaded { step, address, .. } => {
                reached.steps = Some(step.0);
                // Copies in memory end with the workers.
                if address.is_some() {
                    reached.checkpoint = Some(step.0);
                    reached.is_usable = true;
                }
            }
            Event::RunRestarted { .. } => reached.steps = Some(0),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::{Epoch, Generation};

    use super::*;

    fn committed(step: u64) -> Event {
        Event::StepCommitted {
            step: Step(step),
            epoch: Epoch(0),
            generation: Generation(0),
            loss: 0.5,
            samples: 64,
            targets: 64,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            skipped_update: None,
            duration_s: 0.25,
        }
    }

    fn saved(step: u64) -> Event {
        Event::CheckpointSaved {
            step: Step(step),
            generation: Generation(0),
            bytes: 1,
            held_up_s: 0.0,
            total_s: 0.1,
            address: "runs/x/checkpoints".into(),
        }
    }

    #[test]
    fn the_message_names_the_last_step_and_the_newest_checkpoint() {
        let position = RunPosition::new("runs/x".into(), None);
        assert_eq!(
            position.interrupted(),
            "interrupted before the first step; no checkpoint"
        );
        position.reached.lock().unwrap().of = 4600;
        position.record(committed(199));
        assert_eq!(
            position.interrupted(),
            "interrupted at step 200 of 4,600; no checkpoint"
        );
        assert_eq!(position.failed(), None);
        position.record(Event::CheckpointLoaded {
            step: Step(150),
            world_size: 3,
            bytes: 1,
            duration_s: 0.1,
            address: None,
            skipped: Vec::new(),
        });
        assert_eq!(position.failed(), None, "copies end with the workers");
        position.record(committed(199));
        let listed = RunPosition::new("runs/x".into(), Some(Step(5)));
        let message = listed.failed().unwrap();
        assert!(message.contains("checkpoint verify runs/x"), "{message}");
        position.record(saved(200));
        position.record(committed(208));
        assert_eq!(
            position.interrupted(),
            "interrupted at step 209 of 4,600; last checkpoint at step 200; \
             resume with `ronde train --resume runs/x`"
        );
        position.record(saved(209));
        assert_eq!(
            position.interrupted(),
            "interrupted at step 209 of 4,600; checkpoint saved; \
             resume with `ronde train --resume runs/x`"
        );
        assert_eq!(
            position.failed().unwrap(),
            "last checkpoint at step 209; resume with `ronde train --resume runs/x`"
        );
    }
}
