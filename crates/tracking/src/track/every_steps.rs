//! [`EverySteps`]: passes the events of only some steps to a tracker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ronde_core::{Event, Tracker};

use super::committed;

/// Passes the events of every `every` steps and of the last step to another tracker, and all events that do not belong
/// to one step.
pub struct EverySteps {
    every: u64,
    /// The number of steps of the run; 0 until it is known.
    steps: AtomicU64,
    inner: Arc<dyn Tracker>,
}

impl EverySteps {
    /// Passes events to `inner`; `every` is at least 1.
    #[must_use]
    pub fn new(every: u64, inner: Arc<dyn Tracker>) -> Self {
        Self {
            every: every.max(1),
            steps: AtomicU64::new(0),
            inner,
        }
    }
}

impl Tracker for EverySteps {
    fn record(&self, event: Event) {
        match &event {
            Event::RunStarted { steps, .. } => self.steps.store(*steps, Ordering::Relaxed),
            Event::StepCommitted { step, .. } | Event::StepTimes { step, .. } => {
                let step = committed(*step);
                let is_last = step == self.steps.load(Ordering::Relaxed);
                if !step.is_multiple_of(self.every) && !is_last {
                    return;
                }
            }
            _ => {}
        }
        self.inner.record(event);
    }
}
