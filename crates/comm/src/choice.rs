//! [`Choice`]: which way an operation of a group goes, and why.

use std::time::Duration;

use ronde_core::{Collectives, DType, Operation};
use ronde_schedule::{self as schedule, Algorithm};

use crate::ProcessGroup;

/// Which way an operation of a group goes, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The algorithm over the group's connections; `None` over shared memory, in a group of one, and
    /// for operations that have one schedule.
    pub algorithm: Option<Algorithm>,
    /// Why, in words, with the predicted times of the best two where there was a choice.
    pub reason: String,
    /// How long it should take; `None` where nothing was measured or assumed.
    pub predicted: Option<Duration>,
    /// Whether it runs over shared memory, where there is one way for each operation.
    pub by_shared_memory: bool,
}

impl ProcessGroup {
    /// Which way `operation` on operands of `len` elements of `dtype` would go now, and why: the same
    /// on all ranks. `len` is that of the buffer, or of one subtree of an exact sum.
    ///
    /// Nothing is sent. Cost: a look into a table, and at most some milliseconds the first time.
    #[must_use]
    pub fn choice(&self, operation: &Operation, dtype: DType, len: usize) -> Choice {
        let mut choice = Choice {
            algorithm: None,
            reason: "a group of one sends nothing".to_owned(),
            predicted: None,
            by_shared_memory: false,
        };
        if self.size() == 1 {
            return choice;
        }
        if self.by_shared_memory(operation) {
            choice.reason = "shared memory has one way for each operation".to_owned();
            choice.by_shared_memory = true;
            return choice;
        }
        let bytes = len * dtype.size();
        let (preferred, hosts) = (self.config().algorithm, self.hosts());
        let (algorithm, reason) = schedule::choose_on(preferred, operation, hosts, bytes);
        choice.reason = reason;
        choice.algorithm = has_several(operation).then_some(algorithm);
        choice
    }
}

/// Whether there are several ways to run an operation.
fn has_several(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::AllReduce(_)
            | Operation::ExactSum(_)
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. }
    )
}
