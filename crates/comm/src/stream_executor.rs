//! [`StreamExecutor`]: what runs the operations of a group, over any transport.
//!
//! Collectives run one after the other in the order of their calls; messages run beside them. What
//! arrives before it is wanted is kept, up to a bound, so that two members that first send and then
//! receive do not wait for each other. The first failure ends everything and is told to all.

mod agreement;
mod contention;
mod driver;
mod failure;
mod incoming;
mod mailbox;
mod outgoing;
mod peer;
mod progress;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Buffer, CollectiveError, DType, Generation};

use crate::clock;
use crate::flight::FlightRecord;
use crate::frame::{Call, FrameHeader, HEADER_BYTES};
use crate::notice::Notice;
use crate::program::GroupMember;
use crate::running::{CollectiveRequest, RunningCollective};
use crate::transport::Transport;
use crate::work::Completion;
use contention::CoreContention;
pub(crate) use driver::ExecutorDriver;
use incoming::WaitMode;
pub(crate) use mailbox::{Mailbox, PeerHealth};
use peer::Peer;

/// How many past calls are remembered to name them when a peer disagrees late.
const HISTORY: usize = 256;
/// How long a leaving member flushes what it has sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How long a leaving member waits for the others to leave too.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// What callers ask of the progress thread.
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
    /// From now on operations may take this long.
    Limit(Duration),
    /// The group has failed elsewhere than on the progress thread, which is to tell the others.
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

/// A frame that came before it was wanted.
struct EarlyFrame {
    header: FrameHeader,
    bytes: Vec<u8>,
}

impl EarlyFrame {
    /// What it counts for in the bound on what is kept.
    fn weight(header: &FrameHeader) -> u64 {
        header.bytes.saturating_add(HEADER_BYTES as u64)
    }
}

/// Peer and tag.
type MessageAddress = (usize, u64);

/// The progress thread's state.
pub(crate) struct StreamExecutor {
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
    letters: BTreeMap<MessageAddress, VecDeque<EarlyFrame>>,
    scratch: Option<Buffer>,
    crowd: CoreContention,
    failed: Option<CollectiveError>,
    /// The disagreement behind a failure, to tell the others both calls.
    disagreement: Option<Notice>,
    leaving: bool,
    /// How long the others may take to leave when the group has failed.
    linger_failed: Duration,
    /// Told once of the failure.
    reporter: Option<FailureReporter>,
}

/// What is done with the flight record when the group fails.
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
            letters: BTreeMap::new(),
            scratch: Some(Buffer::host(DType::U8, 0)),
            crowd: CoreContention::new(member.size, cores),
            failed: None,
            disagreement: None,
            leaving: false,
            linger_failed: LINGER,
            reporter,
        }
    }

    /// The same with another time to wait for the others when the group has failed.
    pub(crate) fn lingering(mut self, linger_failed: Duration) -> Self {
        self.linger_failed = linger_failed;
        self
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.member.rank.index();
        (0..self.member.size).filter(move |&peer| peer != me)
    }

    /// Does everything that can be done without news from outside.
    fn act(&mut self) {
        self.take_mail();
        self.work_off();
        self.tell_call();
        self.flush();
        self.check_deadlines();
        if self.failed.is_some() {
            // The others hear of it now, not when something else happens here.
            self.flush();
        }
        self.report();
    }

    /// Waits for news of the other members or of callers, and takes in what has come.
    fn await_news(&mut self, patience: WaitMode) {
        let limit = self.next_deadline().map(clock::left);
        self.wait_and_read(limit, patience);
    }

    /// Whether there is something to do or to wait for that nobody may be waiting for here.
    fn is_busy(&self) -> bool {
        self.leaving
            || self.running.is_some()
            || !self.queue.is_empty()
            || self.waits_for_messages()
            || self.peers.iter().any(Peer::has_to_send)
            || (self.failed.is_some() && self.reporter.is_some())
    }

    /// Hands out the flight record after a failure, once, when all others have been told.
    fn report(&mut self) {
        if let Some(error) = &self.failed
            && !self
                .peers
                .iter()
                .any(|peer| peer.has_to_send() && !peer.blocked)
            && let Some(reporter) = self.reporter.take()
        {
            reporter(self.mailbox.flight_record(), error);
        }
    }

    /// Starts, advances and sends until nothing moves without news from outside.
    fn work_off(&mut self) {
        loop {
            let mut moved = self.advance();
            moved |= self.flush();
            if !moved {
                break;
            }
        }
    }

    fn take_mail(&mut self) {
        let (commands, abort, leave) = self.mailbox.take();
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

    /// Leaves in good order: what was sent arrives, pending operations fail.
    fn depart(mut self) {
        let pending = self.running.is_some() || !self.queue.is_empty() || self.waits_for_messages();
        if pending && self.failed.is_none() {
            self.fail(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "the group was dropped while operations were pending".to_owned(),
            });
        }
        if self.failed.is_none() {
            self.say_goodbye();
        }
        let end = clock::deadline(FLUSH_MAX.min(self.timeout));
        while self.peers.iter().any(Peer::has_to_send) && !clock::left(end).is_zero() {
            self.flush();
            self.wait_and_read(Some(clock::left(end).min(LINGER)), WaitMode::Asleep);
        }
        self.report();
        for peer in self.others() {
            self.transport.finish(peer);
        }
        let linger = match self.failed {
            Some(_) => self.linger_failed,
            None => LINGER,
        };
        let end = clock::deadline(linger);
        while self.others().any(|p| self.peers[p].is_open()) && !clock::left(end).is_zero() {
            self.wait_and_read(Some(clock::left(end)), WaitMode::Asleep);
        }
    }
}

#[cfg(test)]
mod tests;
