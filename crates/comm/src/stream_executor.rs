//! [`StreamExecutor`]: runs the operations of a group over the streams of any transport.
//!
//! Collectives run one after the other in the order of their calls; messages run concurrently. Data
//! that arrives before it is needed is buffered, up to a limit, so that two members that both send
//! before they receive do not deadlock. The first failure ends everything and is sent to all members.

mod agreement;
mod contention;
mod driver;
mod driver_flags;
mod failure;
mod hand_over;
mod incoming;
mod lending;
mod mailbox;
mod outgoing;
mod peer;
mod progress;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contention::CoreContention;
pub(crate) use driver::ExecutorDriver;
use incoming::WaitMode;
pub(crate) use mailbox::{Mailbox, PeerHealth, Successor};
use peer::Peer;
use ronde_core::{Buffer, CollectiveError, DType, Generation};
use ronde_peer_memory::{LendingMark, PeerMemory};

use crate::flight::FlightRecord;
use crate::frame::{Call, FrameHeader, HEADER_BYTES};
use crate::notice::Notice;
use crate::program::GroupMember;
use crate::running::{CollectiveRequest, RunningCollective};
use crate::transport::Transport;
use crate::work::Completion;

/// How many past calls are kept, to name them when a peer disagrees late.
const HISTORY: usize = 256;
/// How long a leaving member flushes its sent bytes.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How long a leaving member waits for the other members to leave too.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// Commands of callers to the progress thread.
pub(crate) enum ExecutorCommand {
    Collective(CollectiveRequest),
    Send {
        to: usize,
        call: Call,
        buffer: Buffer,
        completion: Completion,
    },
    Receive {
        from: usize,
        call: Call,
        buffer: Buffer,
        completion: Completion,
    },
    /// Lends long messages from now on, and reads those of the peers with readable memory, by rank.
    Lend {
        mark: LendingMark,
        memories: Vec<Option<PeerMemory>>,
    },
    /// Sets the deadline of operations from now on.
    Limit(Duration),
    /// The group has failed outside the progress thread, which must notify the other members.
    Fail {
        error: CollectiveError,
        notice: Option<Notice>,
    },
}

/// A receive that waits for its message.
struct PostedMessage {
    call: Call,
    buffer: Buffer,
    completion: Completion,
    started: Instant,
    deadline: Instant,
}

/// A frame that arrived before it was expected.
struct EarlyFrame {
    header: FrameHeader,
    bytes: Vec<u8>,
}

impl EarlyFrame {
    /// Returns the frame's share of the limit on early bytes.
    fn weight(header: &FrameHeader) -> u64 {
        header.payload_bytes().saturating_add(HEADER_BYTES as u64)
    }
}

/// Peer and tag.
type MessageAddress = (usize, u64);

/// The progress thread's state.
pub(crate) struct StreamExecutor {
    /// While it exists, peers may read lent messages. The first field: dropped before the messages.
    lending: Option<LendingMark>,
    transport: Box<dyn Transport>,
    mailbox: Arc<Mailbox>,
    member: GroupMember,
    generation: Generation,
    timeout: Duration,
    peers: Vec<Peer>,
    queue: VecDeque<CollectiveRequest>,
    running: Option<RunningCollective>,
    next_sequence: u64,
    history: VecDeque<(u64, Call)>,
    posted: BTreeMap<MessageAddress, VecDeque<PostedMessage>>,
    early_messages: BTreeMap<MessageAddress, VecDeque<EarlyFrame>>,
    scratch: Option<Buffer>,
    contention: CoreContention,
    /// Whether the group has failed and everything here has ended with the mailbox's error.
    has_failed: bool,
    /// The mismatch behind a failure, to send both calls to the other members.
    disagreement: Option<Notice>,
    leaving: bool,
    /// Receives the streams instead of closing them when this rank leaves.
    successor: Option<Successor>,
    has_said_goodbye: bool,
    /// How long the other members may take to leave after the group has failed.
    linger_failed: Duration,
    /// Called once on failure.
    reporter: Option<FailureReporter>,
}

/// Receives the flight record when the group fails.
pub(crate) type FailureReporter = Box<dyn FnOnce(FlightRecord, &CollectiveError) + Send>;

impl StreamExecutor {
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        mailbox: Arc<Mailbox>,
        member: GroupMember,
        generation: Generation,
        timeout: Duration,
        reporter: Option<FailureReporter>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            lending: None,
            transport,
            mailbox,
            member,
            generation,
            timeout,
            peers: (0..member.size).map(|_| Peer::default()).collect(),
            queue: VecDeque::new(),
            running: None,
            next_sequence: 0,
            history: VecDeque::new(),
            posted: BTreeMap::new(),
            early_messages: BTreeMap::new(),
            scratch: Some(Buffer::host(DType::U8, 0)),
            contention: CoreContention::new(member.size, cores),
            has_failed: false,
            disagreement: None,
            leaving: false,
            successor: None,
            has_said_goodbye: false,
            linger_failed: LINGER,
            reporter,
        }
    }

    /// Returns the error with which everything here has ended.
    fn failure(&self) -> Option<CollectiveError> {
        self.has_failed.then(|| self.mailbox.error()).flatten()
    }

    /// Sets how long to wait for the other members after the group has failed.
    pub(crate) fn lingering(mut self, linger_failed: Duration) -> Self {
        self.linger_failed = linger_failed;
        self
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.member.rank.index();
        (0..self.member.size).filter(move |&peer| peer != me)
    }

    /// Does everything that is possible without new input.
    fn act(&mut self) {
        self.take_commands();
        self.run_until_idle();
        self.send_call();
        self.flush();
        self.check_deadlines();
        if self.has_failed {
            // The peers must be notified now, not at the next event here.
            self.flush();
        }
        self.report();
    }

    /// Waits for input from other members or callers, and processes it.
    fn await_news(&mut self, wait_mode: WaitMode) {
        let limit = self.next_deadline().map(ronde_clock::left);
        self.wait_and_read(limit, wait_mode);
    }

    /// Returns whether there is work or an expected event that no caller may be waiting for.
    fn is_busy(&self) -> bool {
        self.leaving
            || self.running.is_some()
            || !self.queue.is_empty()
            || self.waits_for_messages()
            || (self.peers.iter()).any(|peer| peer.has_to_send() || peer.has_to_read())
            || (self.has_failed && self.reporter.is_some())
    }

    /// Passes on the flight record after a failure, once, when all peers were notified.
    fn report(&mut self) {
        if let Some(error) = self.failure()
            && !self
                .peers
                .iter()
                .any(|peer| peer.has_to_send() && !peer.blocked)
            && let Some(reporter) = self.reporter.take()
        {
            reporter(self.mailbox.flight_record(), &error);
        }
    }

    /// Starts, advances and sends until nothing moves without new input.
    fn run_until_idle(&mut self) {
        loop {
            let mut moved = self.advance();
            moved |= self.flush();
            if !moved {
                break;
            }
        }
    }

    fn take_commands(&mut self) {
        let (commands, abort, leave) = self.mailbox.take();
        self.successor = self.mailbox.take_successor().or(self.successor.take());
        for command in commands {
            self.accept(command);
        }
        if let Some(reason) = abort {
            self.fail(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason,
            });
        }
        self.leaving |= leave;
    }

    /// Leaves in good order: sent data arrives, pending operations fail.
    fn depart(mut self) {
        let pending = self.running.is_some() || !self.queue.is_empty() || self.waits_for_messages();
        if pending && !self.has_failed {
            self.fail(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "the group was dropped while operations were pending".to_owned(),
            });
        }
        if let Some(successor) = self.successor.take() {
            return self.hand_over(&successor);
        }
        if !self.has_failed {
            self.say_goodbye();
        }
        let end = ronde_clock::deadline(FLUSH_MAX.min(self.timeout));
        let is_unsent = |peer: &Peer| peer.has_to_send() || peer.has_to_read();
        while self.peers.iter().any(is_unsent) && !ronde_clock::left(end).is_zero() {
            self.flush();
            self.wait_and_read(Some(ronde_clock::left(end).min(LINGER)), WaitMode::Asleep);
        }
        self.report();
        for peer in self.others() {
            self.transport.finish(peer);
        }
        let linger = if self.has_failed {
            self.linger_failed
        } else {
            LINGER
        };
        let end = ronde_clock::deadline(linger);
        while self.others().any(|p| self.peers[p].is_open()) && !ronde_clock::left(end).is_zero() {
            self.wait_and_read(Some(ronde_clock::left(end)), WaitMode::Asleep);
        }
    }
}

#[cfg(test)]
mod tests;
