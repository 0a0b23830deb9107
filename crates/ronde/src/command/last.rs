//! [`LastCheckpoint`]: the newest checkpoint of a run, and how the run goes on from it.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::{Event, Step, Tracker};

/// The newest checkpoint of a run; looks at the events.
#[derive(Clone)]
pub(crate) struct LastCheckpoint {
    /// What `--resume` takes.
    resume: String,
    address: String,
    step: Arc<Mutex<Option<Step>>>,
}

impl LastCheckpoint {
    pub(super) fn new(resume: String, address: String, step: Option<Step>) -> Self {
        Self {
            resume,
            address,
            step: Arc::new(Mutex::new(step)),
        }
    }

    /// Tells a user whose run has ended early how it goes on.
    pub(super) fn tell(&self) {
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = step {
            eprintln!(
                "the last checkpoint is that of step {step}, in {}",
                self.address
            );
            eprintln!("  go on with: ronde train --resume {}", self.resume);
        }
    }
}

impl Tracker for LastCheckpoint {
    fn record(&self, event: Event) {
        let newest = match event {
            Event::CheckpointSaved { step, .. } | Event::CheckpointLoaded { step, .. } => step,
            _ => return,
        };
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(newest);
    }
}
