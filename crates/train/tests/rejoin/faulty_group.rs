//! A group that injects a fault at one of a worker's operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ronde_core::{
    Buffer, CollectiveError, Collectives, DType, Group, GroupRank, Operation, PointToPoint, Tag,
    Work,
};

/// A fault that is injected at one of a worker's operations, counted from 0.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum InjectedFault {
    /// The worker dies before it starts the operation.
    Dies(u32),
    /// The worker takes part but does not receive the outcome.
    MissesOutcome(u32),
    /// The worker is stopped at the operation, and continues after the remaining workers have trained without it.
    Stops(u32),
    /// The state that the worker copies is not received before the operation.
    ReceivesLate(u32),
}

/// A group that injects a fault.
pub(crate) struct FaultyGroup {
    pub(crate) inner: Arc<dyn Group>,
    pub(crate) fault: InjectedFault,
    pub(crate) operations: Arc<AtomicU32>,
    /// Waits until a stopped worker continues.
    pub(crate) stop: Arc<dyn Fn() + Send + Sync>,
}

/// A message that is not received before an operation.
struct LateMessage {
    inner: Box<dyn Work>,
    operations: Arc<AtomicU32>,
    until: u32,
}

impl Work for LateMessage {
    fn is_finished(&self) -> bool {
        self.operations.load(Ordering::SeqCst) >= self.until && self.inner.is_finished()
    }

    fn wait(self: Box<Self>) -> Result<Buffer, CollectiveError> {
        self.inner.wait()
    }
}

impl Collectives for FaultyGroup {
    fn rank(&self) -> GroupRank {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError> {
        self.inner.allocate(dtype, len)
    }

    fn start(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let number = self.begin();
        if self.fault == InjectedFault::Stops(number) {
            // The remaining workers notice it at the end of a time limit, which is not waited for here.
            self.inner.abort("a worker is stopped");
            (self.stop)();
        }
        let work = self.inner.start(operation, buffer)?;
        if self.fault == InjectedFault::MissesOutcome(number) {
            work.wait()?;
            return Err(CollectiveError::Aborted {
                by: "test".to_owned(),
                reason: "the outcome was not received".to_owned(),
            });
        }
        Ok(work)
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn bytes_sent(&self) -> u64 {
        self.inner.bytes_sent()
    }

    fn failure(&self) -> Option<CollectiveError> {
        self.inner.failure()
    }

    fn hosts(&self) -> Vec<usize> {
        self.inner.hosts()
    }
}

impl FaultyGroup {
    /// Counts an operation, at which the worker may die.
    fn begin(&self) -> u32 {
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        if self.fault == InjectedFault::Dies(number) {
            std::panic::resume_unwind(Box::new("dies"));
        }
        number
    }
}

impl Group for FaultyGroup {
    fn sub_group(
        &self,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Arc<dyn Group>>, CollectiveError> {
        self.begin();
        let inner = self.inner.sub_group(colour, key)?;
        let faulty = |inner| -> Arc<dyn Group> {
            Arc::new(Self {
                inner,
                fault: self.fault,
                operations: self.operations.clone(),
                stop: self.stop.clone(),
            })
        };
        Ok(inner.map(faulty))
    }
}

impl PointToPoint for FaultyGroup {
    fn send(
        &self,
        to: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.begin();
        self.inner.send(to, tag, buffer)
    }

    fn receive(
        &self,
        from: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.begin();
        let inner = self.inner.receive(from, tag, buffer)?;
        let InjectedFault::ReceivesLate(until) = self.fault else {
            return Ok(inner);
        };
        Ok(Box::new(LateMessage {
            inner,
            operations: self.operations.clone(),
            until,
        }))
    }
}
