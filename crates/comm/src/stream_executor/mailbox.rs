//! [`Mailbox`]: the state shared by callers and the thread that drives the stream executor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use ronde_core::{CollectiveError, GroupRank};

use super::ExecutorCommand;
use super::driver_flags::DriverFlags;
use crate::connect::KeptStream;
use crate::flight::{FlightRecord, FlightRecorder, RecordedRequest};
use crate::notice::Notice;
use crate::program::GroupMember;
use crate::running::CollectiveRequest;
use crate::transport::Waker;

/// The state of the group and a peer, as seen by a wait outside the progress thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerHealth {
    /// No problem is known.
    Fine,
    /// The peer has left in good order.
    Left,
    /// The group has failed.
    Failed,
}

impl ExecutorCommand {
    /// Adds the operation to the flight recorder, which also records its end.
    fn record(&mut self, flight: &Arc<FlightRecorder>) {
        let (kind, call, buffer, completion) = match self {
            Self::Collective(CollectiveRequest {
                call,
                buffer,
                completion,
                ..
            }) => (RecordedRequest::Collective, call, buffer, completion),
            Self::Send {
                to,
                call,
                buffer,
                completion,
            } => (
                RecordedRequest::SendTo(*to as u32),
                call,
                buffer,
                completion,
            ),
            Self::Receive {
                from,
                call,
                buffer,
                completion,
            } => (
                RecordedRequest::ReceiveFrom(*from as u32),
                call,
                buffer,
                completion,
            ),
            Self::Lend { .. } | Self::Limit(_) | Self::Fail { .. } => return,
        };
        let ticket = completion.ticket().unwrap_or_else(|| {
            let ticket = flight.issued(kind, *call, buffer.bytes().len());
            completion.recorded_by(flight, ticket);
            ticket
        });
        if kind == RecordedRequest::Collective {
            flight.streams(ticket);
        }
    }
}

/// Receives the streams of a group that ends, by group rank.
pub(crate) type Successor = mpsc::Sender<Vec<(usize, KeptStream)>>;

#[derive(Default)]
struct MailboxState {
    commands: Vec<ExecutorCommand>,
    abort: Option<String>,
    leave: bool,
    /// The receiver of this rank's streams when it leaves.
    successor: Option<Successor>,
    /// The progress thread has ended.
    is_closed: bool,
    /// The error with which the group has failed; stored only here.
    failed: Option<CollectiveError>,
    /// Peers whose hosts acknowledged nothing at the time of the failure.
    unanswered: Vec<usize>,
    /// Peers that have left in good order.
    left: Vec<usize>,
}

/// The state shared by callers and the progress thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    pub(super) flags: DriverFlags,
    bytes: AtomicU64,
    payload_bytes: AtomicU64,
    pub(super) flight: Arc<FlightRecorder>,
    shared_bytes: AtomicU64,
    shared_payload_bytes: AtomicU64,
    /// A peer has left, or the group has failed.
    news: AtomicBool,
}

impl std::fmt::Debug for MailboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mail({} commands)", self.commands.len())
    }
}

impl Mailbox {
    pub(crate) fn new(waker: Arc<dyn Waker>, member: GroupMember) -> Self {
        Self {
            state: Mutex::default(),
            flags: DriverFlags::new(waker),
            bytes: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            flight: Arc::new(FlightRecorder::new(member.rank, member.size)),
            shared_bytes: AtomicU64::new(0),
            shared_payload_bytes: AtomicU64::new(0),
            news: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a command, or returns the error that ended the group.
    pub(crate) fn post(&self, command: ExecutorCommand) -> Result<(), CollectiveError> {
        self.post_unsignalled(command)?;
        self.flags.call();
        Ok(())
    }

    /// Posts a command as [`Mailbox::post`] does, without waking a thread: the caller reads it itself.
    pub(super) fn post_unsignalled(
        &self,
        mut command: ExecutorCommand,
    ) -> Result<(), CollectiveError> {
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        // Under the lock, so that the recorder numbers collectives in the order in which they run.
        command.record(&self.flight);
        state.commands.push(command);
        Ok(())
    }

    /// Fails the group outside the progress thread, which then sends the notice to the other members. Does nothing if
    /// the group has failed already.
    pub(crate) fn fail(&self, error: CollectiveError, notice: Option<Notice>) {
        {
            let mut state = self.lock();
            if state.failed.is_some() {
                return;
            }
            state.failed = Some(error.clone());
            state.commands.push(ExecutorCommand::Fail { error, notice });
        }
        self.news.store(true, Ordering::SeqCst);
        self.flags.call();
    }

    /// Takes the commands since the last call, the reason of an abort, and whether to leave.
    pub(super) fn take(&self) -> (Vec<ExecutorCommand>, Option<String>, bool) {
        self.flags.clear();
        let mut state = self.lock();
        let commands = std::mem::take(&mut state.commands);
        (commands, state.abort.take(), state.leave)
    }

    pub(crate) fn abort(&self, reason: &str) {
        {
            let mut state = self.lock();
            state.abort = Some(reason.to_owned());
            // Also for waits outside the progress thread.
            state
                .failed
                .get_or_insert_with(|| CollectiveError::Aborted {
                    by: "this rank".to_owned(),
                    reason: reason.to_owned(),
                });
        }
        self.news.store(true, Ordering::SeqCst);
        self.flags.call();
    }

    /// Leaves the group as [`Mailbox::leave`] does, except that its streams are not closed: they can be received. Nothing is
    /// received if the progress thread has ended.
    pub(crate) fn hand_over(&self) -> mpsc::Receiver<Vec<(usize, KeptStream)>> {
        let (successor, streams) = mpsc::channel();
        {
            let mut state = self.lock();
            if !state.is_closed {
                state.leave = true;
                state.successor = Some(successor);
            }
        }
        self.flags.call();
        streams
    }

    /// Takes the receiver of this rank's streams, if it hands them over.
    pub(super) fn take_successor(&self) -> Option<Successor> {
        self.lock().successor.take()
    }

    pub(crate) fn leave(&self) {
        self.lock().leave = true;
        self.flags.call();
    }

    /// Records that the progress thread has ended, for any cause: no operation may wait for it any more.
    pub(crate) fn close(&self) {
        let commands = {
            let mut state = self.lock();
            state.is_closed = true;
            state.successor = None;
            state
                .failed
                .get_or_insert_with(|| CollectiveError::Aborted {
                    by: "this rank".to_owned(),
                    reason: "its progress thread has ended".to_owned(),
                });
            std::mem::take(&mut state.commands)
        };
        self.news.store(true, Ordering::SeqCst);
        // Dropping the commands completes them with an error.
        drop(commands);
    }

    /// Returns the flight recorder.
    pub(crate) fn flight(&self) -> &Arc<FlightRecorder> {
        &self.flight
    }

    /// Returns the last operations, and the error of the group if it has failed.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        let (failure, unanswered) = {
            let state = self.lock();
            let failure = state.failed.as_ref().map(ToString::to_string);
            (failure, state.unanswered.clone())
        };
        let unanswered = unanswered.into_iter().map(|peer| GroupRank(peer as u32));
        FlightRecord {
            failure,
            unanswered: unanswered.collect(),
            ..self.flight.record()
        }
    }

    /// Returns whether [`Mailbox::verdict`] may return a problem. Cheap.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Returns the state of the group and of one peer.
    pub(crate) fn verdict(&self, peer: usize) -> PeerHealth {
        if !self.news.load(Ordering::Acquire) {
            return PeerHealth::Fine;
        }
        let state = self.lock();
        match &state.failed {
            Some(_) => PeerHealth::Failed,
            None if state.left.contains(&peer) => PeerHealth::Left,
            None => PeerHealth::Fine,
        }
    }

    /// Returns the error with which the group has failed.
    pub(crate) fn error(&self) -> Option<CollectiveError> {
        self.lock().failed.clone()
    }

    pub(super) fn note_left(&self, peer: usize) {
        self.lock().left.push(peer);
        self.news.store(true, Ordering::SeqCst);
    }

    pub(super) fn note_unanswered(&self, peers: Vec<usize>) {
        self.lock().unanswered = peers;
    }

    pub(super) fn note_failed(&self, error: &CollectiveError) {
        self.lock().failed = Some(error.clone());
        self.news.store(true, Ordering::SeqCst);
    }

    /// Counts bytes that are sent to peers by a stream.
    pub(super) fn count_streamed(&self, bytes: u64, payload_bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.payload_bytes
            .fetch_add(payload_bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were sent to peers by other means than a stream.
    pub(crate) fn count(&self, bytes: u64, payload_bytes: u64) {
        // Only one thread counts at a time, so no atomic addition is needed.
        let add = |counter: &AtomicU64, bytes: u64| {
            counter.store(counter.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        };
        add(&self.shared_bytes, bytes);
        add(&self.shared_payload_bytes, payload_bytes);
    }

    /// Returns the bytes sent, with and without headers.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            load(&self.bytes) + load(&self.shared_bytes),
            load(&self.payload_bytes) + load(&self.shared_payload_bytes),
        )
    }
}

/// Closes the mailbox when the progress thread ends, also by a panic.
pub(super) struct MailboxCloser(pub(super) Arc<Mailbox>);

impl Drop for MailboxCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}
