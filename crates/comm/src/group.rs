//! [`ProcessGroup`]: connected ranks that run collectives and exchange messages.

mod join;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use ronde_core::spans::TimeSpan;
use ronde_core::{Buffer, CollectiveError, Collectives, DType, GroupRank, Operation, Work};
use ronde_schedule::Hosts;

use crate::choice::Chooser;
use crate::config::GroupConfig;
use crate::flight::{FlightRecord, FlightRecorder};
use crate::frame::{Call, CallKind};
use crate::program::{GroupMember, invalid, out_of_memory};
use crate::running::CollectiveRequest;
use crate::shared::{self, SharedQueue};
use crate::split::GroupOrigin;
use crate::stream_executor::{ExecutorCommand, ExecutorDriver, Mailbox};
use crate::work::{finished, pending};

/// Connected ranks that run collectives and exchange messages.
///
/// One progress thread per group owns the connections and runs collectives in the order of their
/// calls; it sleeps when there is nothing to do. The first failure ends the group on all ranks: every
/// pending and later operation returns it. Dropping a group notifies the other members; operations
/// that are still pending fail on all of them.
#[derive(Debug)]
pub struct ProcessGroup {
    config: GroupConfig,
    member: GroupMember,
    chooser: Chooser,
    /// How sub-groups are made, and the number of splits so far.
    pub(crate) origin: GroupOrigin,
    pub(crate) splits: AtomicU64,
    /// The sub-groups of this rank, for its flight records.
    divided: Mutex<Vec<SubGroupRecorder>>,
    link: Link,
    refused: Vec<String>,
}

/// Where the operations of a sub-group are recorded, as long as it exists.
#[derive(Debug)]
struct SubGroupRecorder {
    mailbox: Weak<Mailbox>,
    config: GroupConfig,
}

/// How the other members are reached.
#[derive(Debug)]
enum Link {
    /// The group has one member. Holds the reason after an abort.
    Alone(Mutex<Option<String>>),
    /// Through a progress thread.
    Others {
        mailbox: Arc<Mailbox>,
        /// Drives the streams.
        driver: Arc<ExecutorDriver>,
        progress: Option<JoinHandle<()>>,
        /// Shared memory, if all members have it.
        shared_queue: Option<Arc<SharedQueue>>,
    },
}

impl ProcessGroup {
    /// Returns whether the members share memory.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.shared_queue().is_some()
    }

    /// Returns whether a call runs over shared memory.
    pub(crate) fn is_by_shared_memory(&self, operation: &Operation, call: &Call) -> bool {
        self.shares_memory() && shared::is_direct(operation, call)
    }

    pub(crate) fn member(&self) -> GroupMember {
        self.member
    }

    pub(crate) fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// Replaces the assignment of members to hosts that algorithms are chosen by.
    pub(crate) fn set_hosts(&mut self, hosts: Hosts) {
        self.chooser = Chooser::new(self.config.algorithm, hosts);
    }

    fn shared_queue(&self) -> Option<&Arc<SharedQueue>> {
        match &self.link {
            Link::Others { shared_queue, .. } => shared_queue.as_ref(),
            Link::Alone(_) => None,
        }
    }

    pub(crate) fn with_origin(mut self, origin: GroupOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// Returns this member's settings.
    #[must_use]
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Returns the connections that were refused while the group joined, with causes; at most 16. They
    /// did no harm, but may be of interest to an operator.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns the last operations of this rank. Can be called from any thread at any time, also during
    /// a hang. A group of one records nothing. Merge the records of several ranks with [`crate::merge_report`].
    #[must_use]
    pub fn flight_record(&self) -> FlightRecord {
        let record = match &self.link {
            Link::Alone(_) => FlightRecorder::new(self.member.rank, 1).record(),
            Link::Others { mailbox, .. } => mailbox.flight_record(),
        };
        named(record, &self.config)
    }

    /// Returns the records of this group and of the sub-groups of this rank that still exist, as [`ProcessGroup::flight_record`]
    /// does; sub-groups of sub-groups are left out.
    #[must_use]
    pub fn flight_records(&self) -> Vec<FlightRecord> {
        let divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        let of_divided = divided.iter().filter_map(|group| {
            let mailbox = group.mailbox.upgrade()?;
            Some(named(mailbox.flight_record(), &group.config))
        });
        std::iter::once(self.flight_record())
            .chain(of_divided)
            .collect()
    }

    /// Remembers a sub-group for [`ProcessGroup::flight_records`], and forgets those that have ended.
    pub(crate) fn remember_sub_group(&self, group: &Self) {
        let mut divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        divided.retain(|group| group.mailbox.strong_count() > 0);
        if let Link::Others { mailbox, .. } = &group.link {
            divided.push(SubGroupRecorder {
                mailbox: Arc::downgrade(mailbox),
                config: group.config.clone(),
            });
        }
    }

    /// Adds the collectives that have ended to `spans`, as [`SpanKind::Collective`](ronde_core::spans::SpanKind), from the
    /// position `from` on; 0: all that are recorded. Returns the position for the next call, and the number of collectives
    /// that are no longer recorded. Can be called from any thread; costs nothing to those that run operations.
    pub fn ended_since(&self, from: u64, spans: &mut Vec<TimeSpan>) -> (u64, u64) {
        match &self.link {
            Link::Alone(_) => (0, 0),
            Link::Others { mailbox, .. } => mailbox.flight().ended_since(from, spans),
        }
    }

    /// Returns the payload bytes sent to other members so far, without headers.
    #[must_use]
    pub fn payload_bytes_sent(&self) -> u64 {
        self.sent().1
    }

    fn sent(&self) -> (u64, u64) {
        match &self.link {
            Link::Alone(_) => (0, 0),
            Link::Others { mailbox, .. } => mailbox.bytes_sent(),
        }
    }

    /// Runs an operation that was checked and described, and waits for it.
    pub(crate) fn run_call(
        &self,
        operation: Operation,
        call: Call,
        buffer: Buffer,
    ) -> Result<Buffer, CollectiveError> {
        let Link::Others {
            driver,
            shared_queue,
            ..
        } = &self.link
        else {
            return self.start_call(operation, call, buffer)?.wait();
        };
        if let Some(shared_queue) = shared_queue {
            return shared_queue.run(operation, call, buffer, self.chooser.hosts());
        }
        let (completion, work) = pending();
        let request = CollectiveRequest {
            operation,
            call,
            buffer,
            completion,
            hosts: Arc::clone(self.chooser.hosts()),
        };
        driver.run(ExecutorCommand::Collective(request), &work)?;
        Box::new(work).wait()
    }

    /// Starts an operation that was checked and described.
    pub(crate) fn start_call(
        &self,
        operation: Operation,
        call: Call,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        if let Link::Alone(aborted) = &self.link {
            let aborted = aborted.lock().unwrap_or_else(PoisonError::into_inner);
            return match &*aborted {
                None => Ok(finished(buffer)),
                Some(reason) => Err(CollectiveError::Aborted {
                    by: "this rank".to_owned(),
                    reason: reason.clone(),
                }),
            };
        }
        let (completion, work) = pending();
        let request = CollectiveRequest {
            operation,
            call,
            buffer,
            completion,
            hosts: Arc::clone(self.chooser.hosts()),
        };
        match self.shared_queue() {
            Some(shared_queue) => shared_queue.start(request)?,
            None => self.post(ExecutorCommand::Collective(request))?,
        }
        Ok(Box::new(work))
    }

    pub(crate) fn post(&self, command: ExecutorCommand) -> Result<(), CollectiveError> {
        match &self.link {
            Link::Others { mailbox, .. } => mailbox.post(command),
            Link::Alone(_) => Err(invalid("message", "the group has one member".to_owned())),
        }
    }
}

/// Adds the group's name to a record.
fn named(mut record: FlightRecord, config: &GroupConfig) -> FlightRecord {
    record.job.clone_from(&config.job);
    record.group.clone_from(&config.name);
    record.generation = config.generation;
    record.members.clone_from(&config.members);
    record
}

impl Collectives for ProcessGroup {
    fn rank(&self) -> GroupRank {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError> {
        let allocated = match self.shared_queue() {
            Some(shared_queue) => shared_queue.allocate(dtype, len),
            None => Buffer::try_host(dtype, len),
        };
        allocated.map_err(|error| {
            let error = out_of_memory(CallKind::Nothing, self.member.rank, error);
            if let Link::Others { mailbox, .. } = &self.link {
                mailbox.fail(error.clone(), None);
            }
            error
        })
    }

    fn release_free_memory(&self) {
        if let Some(shared_queue) = self.shared_queue() {
            shared_queue.release_free_memory();
        }
    }

    fn start(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let call = self.describe(&operation, &buffer)?;
        self.start_call(operation, call, buffer)
    }

    fn start_and_wait(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Buffer, CollectiveError> {
        let call = self.describe(&operation, &buffer)?;
        self.run_call(operation, call, buffer)
    }

    fn abort(&self, reason: &str) {
        match &self.link {
            Link::Others { mailbox, .. } => mailbox.abort(reason),
            Link::Alone(aborted) => {
                let mut aborted = aborted.lock().unwrap_or_else(PoisonError::into_inner);
                aborted.get_or_insert_with(|| reason.to_owned());
            }
        }
    }

    fn bytes_sent(&self) -> u64 {
        self.sent().0
    }

    fn failure(&self) -> Option<CollectiveError> {
        match &self.link {
            Link::Alone(_) => None,
            Link::Others { mailbox, .. } => mailbox.error(),
        }
    }

    fn hosts(&self) -> Vec<usize> {
        let hosts = self.chooser.hosts();
        (0..hosts.size()).map(|rank| hosts.of(rank)).collect()
    }

    fn under_way_s(&self) -> f64 {
        match &self.link {
            Link::Alone(_) => 0.0,
            Link::Others { mailbox, .. } => mailbox.flight().under_way_s(),
        }
    }

    fn called_at_ns(&self) -> Option<u64> {
        match &self.link {
            Link::Alone(_) => None,
            Link::Others { mailbox, .. } => mailbox.flight().called_at_ns(),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Link::Others {
            mailbox,
            progress,
            shared_queue,
            ..
        } = &mut self.link
        {
            if let Some(shared_queue) = shared_queue {
                shared_queue.leave();
            }
            mailbox.leave();
            if let Some(progress) = progress.take() {
                // A progress thread that panicked has already failed all operations.
                let _ended = progress.join();
            }
        }
    }
}
