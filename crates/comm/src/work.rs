//! A pending operation: the progress thread completes it once, the caller waits for it.

use ronde_core::{Buffer, CollectiveError, Work};

use crate::flight::{FlightRecorder, RecordId};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type OperationResult = Result<Buffer, CollectiveError>;

#[derive(Default)]
struct PendingCell {
    outcome: Mutex<Option<OperationResult>>,
    changed: Condvar,
}

impl PendingCell {
    fn lock(&self) -> MutexGuard<'_, Option<OperationResult>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller's end of an operation.
pub(crate) struct PendingOperation(Arc<PendingCell>);

/// The progress thread's end. If it is dropped without an outcome it reports an abort, so no wait is endless.
pub(crate) struct Completion {
    cell: Option<Arc<PendingCell>>,
    /// The recorder that is notified of the end.
    recorder: Option<(Arc<FlightRecorder>, RecordId)>,
}

/// Returns both ends of a pending operation.
pub(crate) fn pending() -> (Completion, PendingOperation) {
    let cell = Arc::new(PendingCell::default());
    let completion = Completion {
        cell: Some(Arc::clone(&cell)),
        recorder: None,
    };
    (completion, PendingOperation(cell))
}

/// Returns an operation that is already complete.
pub(crate) fn finished(buffer: Buffer) -> Box<dyn Work> {
    let (completion, pending) = pending();
    completion.complete(Ok(buffer));
    Box::new(pending)
}

impl Completion {
    /// Sets the recorder that records the end.
    pub(crate) fn recorded_by(&mut self, flight: &Arc<FlightRecorder>, ticket: RecordId) {
        self.recorder = Some((Arc::clone(flight), ticket));
    }

    /// Returns the recorder's identifier of the operation.
    pub(crate) fn ticket(&self) -> Option<RecordId> {
        self.recorder.as_ref().map(|(_, ticket)| *ticket)
    }

    pub(crate) fn complete(mut self, outcome: OperationResult) {
        self.set(outcome);
    }

    fn set(&mut self, outcome: OperationResult) {
        if let Some((flight, ticket)) = self.recorder.take() {
            flight.ended(ticket, outcome.is_err());
        }
        if let Some(cell) = self.cell.take() {
            *cell.lock() = Some(outcome);
            cell.changed.notify_all();
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.set(Err(CollectiveError::Aborted {
            by: "this rank".to_owned(),
            reason: "the group ended before the operation did".to_owned(),
        }));
    }
}

impl PendingOperation {
    /// Returns whether the outcome is known.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Work for PendingOperation {
    fn is_finished(&self) -> bool {
        self.has_ended()
    }

    fn wait(self: Box<Self>) -> OperationResult {
        let mut outcome = self.0.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            // The progress thread owns the deadline, and when it ends it completes every operation.
            outcome = self
                .0
                .changed
                .wait(outcome)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
