//! [`Mailbox`]: what callers and whoever drives the engine share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::{CollectiveError, GroupRank};

use super::ExecutorCommand;
use super::driver::DriverFlags;
use crate::flight::{FlightRecord, FlightRecorder, RecordedRequest};
use crate::program::GroupMember;
use crate::running::CollectiveRequest;
use crate::transport::Waker;

/// What is known of the group while waiting for a peer elsewhere than on the progress thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerHealth {
    /// Nothing is known to be wrong.
    Fine,
    /// The peer has left in good order.
    Left,
    /// The group has failed.
    Failed,
}

impl ExecutorCommand {
    /// Tells the recorder, which will hear of the end too.
    fn record(&mut self, flight: &Arc<FlightRecorder>) {
        let (asks, call, buffer, completion) = match self {
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
            Self::Limit(_) | Self::Fail { .. } => return,
        };
        let ticket = completion.ticket().unwrap_or_else(|| {
            let ticket = flight.issued(asks, *call, buffer.bytes().len());
            completion.recorded_by(flight, ticket);
            ticket
        });
        if asks == RecordedRequest::Collective {
            flight.streams(ticket);
        }
    }
}

#[derive(Default)]
struct MailboxState {
    commands: Vec<ExecutorCommand>,
    abort: Option<String>,
    leave: bool,
    failed: Option<CollectiveError>,
    /// Peers whose hosts acknowledged nothing then.
    unanswered: Vec<usize>,
    /// Peers that have left in good order.
    left: Vec<usize>,
}

/// What callers and the progress thread share.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mail: Mutex<MailboxState>,
    pub(super) signs: DriverFlags,
    pub(super) bytes: AtomicU64,
    pub(super) payload_bytes: AtomicU64,
    pub(super) flight: Arc<FlightRecorder>,
    shared_bytes: AtomicU64,
    shared_payload_bytes: AtomicU64,
    /// Somebody has left, or the group has failed.
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
            mail: Mutex::default(),
            signs: DriverFlags::new(waker),
            bytes: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            flight: Arc::new(FlightRecorder::new(member.rank, member.size)),
            shared_bytes: AtomicU64::new(0),
            shared_payload_bytes: AtomicU64::new(0),
            news: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a command, or says why the group is over.
    pub(crate) fn post(&self, command: ExecutorCommand) -> Result<(), CollectiveError> {
        self.leave_there(command)?;
        self.signs.call();
        Ok(())
    }

    /// As [`Mailbox::post`], for one who looks after the mail itself.
    pub(super) fn leave_there(&self, mut command: ExecutorCommand) -> Result<(), CollectiveError> {
        let mut mail = self.lock();
        if let Some(error) = &mail.failed {
            return Err(error.clone());
        }
        // Under the lock, so that the recorder numbers collectives as they will be run.
        command.record(&self.flight);
        mail.commands.push(command);
        Ok(())
    }

    /// What has come since the last look; whether the group was asked to abort, and to leave.
    pub(super) fn take(&self) -> (Vec<ExecutorCommand>, Option<String>, bool) {
        self.signs.heard();
        let mut mail = self.lock();
        let commands = std::mem::take(&mut mail.commands);
        (commands, mail.abort.take(), mail.leave)
    }

    pub(crate) fn abort(&self, reason: &str) {
        {
            let mut mail = self.lock();
            mail.abort = Some(reason.to_owned());
            // Also for those who do not wait for the progress thread.
            mail.failed.get_or_insert_with(|| CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: reason.to_owned(),
            });
        }
        self.news.store(true, Ordering::SeqCst);
        self.signs.call();
    }

    pub(crate) fn leave(&self) {
        self.lock().leave = true;
        self.signs.call();
    }

    /// The progress thread has ended, by whatever cause: nothing may wait for it any more.
    pub(crate) fn close(&self) {
        let commands = {
            let mut mail = self.lock();
            mail.failed.get_or_insert_with(|| CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "its progress thread has ended".to_owned(),
            });
            std::mem::take(&mut mail.commands)
        };
        self.news.store(true, Ordering::SeqCst);
        // Dropping them completes them with an error.
        drop(commands);
    }

    /// The recorder.
    pub(crate) fn flight(&self) -> &Arc<FlightRecorder> {
        &self.flight
    }

    /// The last operations, and why the group has failed if it has.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        let (failure, unanswered) = {
            let mail = self.lock();
            let failure = mail.failed.as_ref().map(ToString::to_string);
            (failure, mail.unanswered.clone())
        };
        let unanswered = unanswered.into_iter().map(|peer| GroupRank(peer as u32));
        FlightRecord {
            failure,
            unanswered: unanswered.collect(),
            ..self.flight.record()
        }
    }

    /// Whether [`Mailbox::verdict`] may have something to say. Cheap.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// What is known of the group and one peer.
    pub(crate) fn verdict(&self, peer: usize) -> PeerHealth {
        if !self.news.load(Ordering::Acquire) {
            return PeerHealth::Fine;
        }
        let mail = self.lock();
        match &mail.failed {
            Some(_) => PeerHealth::Failed,
            None if mail.left.contains(&peer) => PeerHealth::Left,
            None => PeerHealth::Fine,
        }
    }

    /// How the group has failed.
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

    /// Counts bytes that went to others elsewhere than through a stream.
    pub(crate) fn count(&self, bytes: u64, payload_bytes: u64) {
        // One thread at a time counts here: no need for one step.
        let add = |counter: &AtomicU64, bytes: u64| {
            counter.store(counter.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        };
        add(&self.shared_bytes, bytes);
        add(&self.shared_payload_bytes, payload_bytes);
    }

    /// Bytes sent, with and without headers.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            load(&self.bytes) + load(&self.shared_bytes),
            load(&self.payload_bytes) + load(&self.shared_payload_bytes),
        )
    }
}

/// Closes the mailbox when the progress thread ends, even by a panic.
pub(super) struct MailboxCloser(pub(super) Arc<Mailbox>);

impl Drop for MailboxCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}
