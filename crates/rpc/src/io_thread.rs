//! The thread that polls: it dials, accepts and reads all connections, and continues writes that a full socket has
//! interrupted.

mod greeting;
mod received;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ronde_wire::TlsRefusal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::RpcConnection;
use crate::frame_reader::FrameReader;
use crate::lease::ProcessName;
use crate::node::{LAST_WORDS, NodeShared};
use crate::references;

/// The interval of deadlines, leases and attempts to dial.
const TICK: Duration = Duration::from_millis(50);
/// Frames of one connection that are handled before the next connection has its turn.
const FRAMES_TOGETHER: usize = 256;
/// How often the rest of long values is looked for before the thread waits for it.
const YIELDS: u32 = 64;
/// How long a refused peer may take to read the reason.
const REFUSAL: Duration = Duration::from_secs(1);

/// Which side opened a connection.
enum ConnectionSide {
    /// This node, for calls to the peer of this index.
    Dialled(usize),
    /// The caller, once it has authenticated.
    Accepted(Option<Arc<ProcessName>>),
}

enum ConnectionPhase {
    /// The system connects.
    Connecting,
    /// The peer's first message is incomplete.
    Greeting(Vec<u8>),
    Open,
    /// Nothing more is read; the connection closes at its deadline.
    Refusing,
}

struct PolledConnection {
    connection: Arc<RpcConnection>,
    side: ConnectionSide,
    phase: ConnectionPhase,
    reader: FrameReader,
    /// When a connection that is not open is closed.
    deadline: Duration,
    /// Received bytes may wait although the socket has none.
    has_more: bool,
}

/// Why a connection ends.
pub(super) enum RpcConnectionEnd {
    /// It was lost, or the peer does not keep the protocol.
    Lost(String),
    /// One side does not accept the other.
    Refused(String),
}

impl From<io::Error> for RpcConnectionEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            _ if TlsRefusal::of(&error).is_some() => Self::Refused(error.to_string()),
            ErrorKind::UnexpectedEof => Self::Lost("it closed the connection".to_owned()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

struct PollingThread<'a> {
    shared: &'a Arc<NodeShared>,
    listener: TcpListener,
    connections: BTreeMap<u64, PolledConnection>,
    next_number: u64,
    next_tick: Duration,
    /// The listener is not polled before, because the system has no more file descriptors.
    accept_from: Duration,
    /// Connections are closed at this time, although not everything is written.
    close_at: Option<Duration>,
}

/// Runs until the node is closed.
pub(crate) fn run(shared: &Arc<NodeShared>, listener: TcpListener) {
    let mut thread = PollingThread {
        shared,
        listener,
        connections: BTreeMap::new(),
        next_number: 1,
        next_tick: Duration::ZERO,
        accept_from: Duration::ZERO,
        close_at: None,
    };
    while !thread.has_closed() {
        let now = shared.clock.elapsed();
        thread.dial(now);
        if now >= thread.next_tick {
            thread.tick(now);
        }
        thread.poll_once(now);
    }
    for polled in thread.connections.values() {
        polled.connection.close();
    }
}

impl PollingThread<'_> {
    /// Fails open calls once the node closes; returns whether everything was written, or its time has passed.
    fn has_closed(&mut self) -> bool {
        let shared = self.shared;
        if !shared.is_closing.load(Ordering::SeqCst) {
            return false;
        }
        let mut state = shared.lock();
        for peer in &mut state.peers {
            let mut actions = Vec::new();
            peer.link.close(&mut actions);
            shared.carry_out(peer, actions);
        }
        drop(state);
        shared.has_room.notify_all();
        let now = shared.clock.elapsed();
        if !shared.has_no_handlers.load(Ordering::SeqCst) {
            return false;
        }
        let close_at = *self.close_at.get_or_insert(now + LAST_WORDS);
        let mut connections = self.connections.values();
        now >= close_at || connections.all(|polled| polled.connection.is_idle())
    }

    fn tick(&mut self, now: Duration) {
        self.next_tick = now + TICK;
        let shared = self.shared;
        let mut to_write = Vec::new();
        let mut state = shared.lock();
        for peer in &mut state.peers {
            let mut actions = Vec::new();
            peer.link.tick(now, shared.limits.reconnect, &mut actions);
            if !actions.is_empty() {
                shared.carry_out(peer, actions);
                to_write.extend(peer.connection.clone());
            }
        }
        let keep = shared.limits.session_keep;
        state.sessions.retain(|_, session| {
            session.connection.is_some() || now.saturating_sub(session.lost_at) < keep
        });
        drop(state);
        for connection in to_write {
            connection.write();
        }
        for polled in self.connections.values() {
            if polled.connection.queue_returned() {
                polled.connection.write();
            }
        }
        references::tick(shared);
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, polled)| {
                !matches!(polled.phase, ConnectionPhase::Open) && now >= polled.deadline
            })
            .map(|(&number, _)| number)
            .collect();
        for number in late {
            let cause = "it did not authenticate in time".to_owned();
            self.end(number, RpcConnectionEnd::Lost(cause));
        }
    }

    /// Waits for events and handles them.
    fn poll_once(&mut self, now: Duration) {
        let mut is_paused = self.is_overloaded();
        if is_paused {
            self.shared.is_paused.store(true, Ordering::SeqCst);
            // The calls may have been executed in between.
            is_paused = self.is_overloaded();
        }
        let has_more = |polled: &PolledConnection| {
            polled.has_more && !is_paused_for(polled, is_paused, self.shared)
        };
        let at_once = self.connections.values().any(has_more);
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        let mut fds = Vec::with_capacity(numbers.len() + 2);
        fds.push(PollFd::new(&self.shared.waker, PollFlags::IN));
        let accepts = now >= self.accept_from;
        let accepting = if accepts {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        fds.push(PollFd::new(&self.listener, accepting));
        for polled in self.connections.values() {
            let flags = polled.interest(is_paused_for(polled, is_paused, self.shared));
            fds.push(PollFd::from_borrowed_fd(
                polled.connection.stream.fd(),
                flags,
            ));
        }
        let limit = if at_once {
            Duration::ZERO
        } else {
            self.next_tick
                .saturating_sub(now)
                .max(Duration::from_millis(1))
        };
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(limit.min(TICK).subsec_nanos()) as _,
        };
        // Interrupted or failed waits are repeated after the deadlines were checked.
        let _events = poll(&mut fds, Some(&limit));
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !events[0].is_empty() {
            let mut signals = [0; 8];
            let _silenced = rustix::io::read(&self.shared.waker, &mut signals);
        }
        for (number, event) in numbers.into_iter().zip(&events[2..]) {
            self.serve(number, *event, is_paused);
        }
        if !events[1].is_empty() {
            self.accept();
        }
    }

    /// Returns whether received calls have reached their bound of bytes.
    fn is_overloaded(&self) -> bool {
        self.shared.handlers.bytes() > self.shared.limits.queued_bytes_max
    }

    fn serve(&mut self, number: u64, event: PollFlags, is_overloaded: bool) {
        let Some(polled) = self.connections.get_mut(&number) else {
            return;
        };
        let outcome = polled.serve(self.shared, event, is_overloaded);
        let outcome = outcome.and_then(|()| match polled.connection.is_closed() {
            true => Err(RpcConnectionEnd::Lost("it was replaced".to_owned())),
            false => Ok(()),
        });
        if let Err(end) = outcome {
            self.end(number, end);
        }
    }

    /// Removes a connection.
    fn end(&mut self, number: u64, end: RpcConnectionEnd) {
        let Some(polled) = self.connections.remove(&number) else {
            return;
        };
        polled.connection.close();
        let now = self.shared.clock.elapsed();
        let mut state = self.shared.lock();
        match polled.side {
            ConnectionSide::Dialled(index) => {
                let peer = &mut state.peers[index];
                peer.is_dialling = false;
                peer.connection = None;
                peer.next_dial = now + TICK;
                match end {
                    RpcConnectionEnd::Lost(cause) => peer.link.disconnected(now, cause),
                    RpcConnectionEnd::Refused(cause) => {
                        let mut actions = Vec::new();
                        peer.link.refused(now, &cause, &mut actions);
                        let peer = &state.peers[index];
                        self.shared.carry_out(peer, actions);
                    }
                }
            }
            ConnectionSide::Accepted(Some(caller)) => {
                if let Some(session) = state.sessions.get_mut(&*caller)
                    && session
                        .connection
                        .as_ref()
                        .is_some_and(|connection| connection.number == number)
                {
                    session.connection = None;
                    session.lost_at = now;
                }
            }
            ConnectionSide::Accepted(None) => {}
        }
    }
}

/// Returns whether a connection is not read until earlier calls have been executed and their answers been written.
fn is_paused_for(polled: &PolledConnection, is_overloaded: bool, shared: &NodeShared) -> bool {
    let is_caller = matches!(polled.side, ConnectionSide::Accepted(Some(_)));
    let unsent = polled.connection.queued_bytes();
    is_caller && (is_overloaded || unsent > shared.limits.queued_bytes_max)
}

impl PolledConnection {
    fn interest(&self, is_paused: bool) -> PollFlags {
        let mut flags = PollFlags::empty();
        let connects = matches!(self.phase, ConnectionPhase::Connecting);
        let reads = matches!(
            self.phase,
            ConnectionPhase::Greeting(_) | ConnectionPhase::Open
        );
        flags.set(PollFlags::IN, reads && !is_paused);
        let is_blocked = self.connection.is_blocked.load(Ordering::SeqCst);
        let writes = is_blocked || self.connection.stream.has_unsent();
        flags.set(PollFlags::OUT, connects || writes);
        flags
    }

    fn serve(
        &mut self,
        shared: &Arc<NodeShared>,
        event: PollFlags,
        is_overloaded: bool,
    ) -> Result<(), RpcConnectionEnd> {
        let lost = PollFlags::ERR | PollFlags::HUP;
        if event.intersects(PollFlags::OUT | lost) {
            if matches!(self.phase, ConnectionPhase::Connecting) {
                self.connected(shared)?;
            }
            self.connection.write();
        }
        if matches!(self.phase, ConnectionPhase::Refusing) {
            return match self.connection.is_idle() || event.intersects(lost) {
                true => Err(RpcConnectionEnd::Lost("it was refused".to_owned())),
                false => Ok(()),
            };
        }
        let is_paused = is_paused_for(self, is_overloaded, shared) && !event.intersects(lost);
        if is_paused || !(self.has_more || event.intersects(PollFlags::IN | lost)) {
            return Ok(());
        }
        if matches!(self.phase, ConnectionPhase::Greeting(_)) {
            self.greet(shared)?;
        }
        if matches!(self.phase, ConnectionPhase::Open) {
            self.receive(shared)?;
        }
        Ok(())
    }

    /// Reads and handles frames.
    fn receive(&mut self, shared: &Arc<NodeShared>) -> Result<(), RpcConnectionEnd> {
        self.has_more = false;
        let mut received = 0;
        let (mut yields, mut progress) = (0, None);
        let outcome = loop {
            if received == FRAMES_TOGETHER {
                self.has_more = true;
                break Ok(());
            }
            let stream = &self.connection.stream;
            match self.reader.next(&mut |into| stream.read(into)) {
                // The rest of long values follows at once, sooner than a wait would end.
                Ok(None) if yields < YIELDS && self.reader.received_values().is_some() => {
                    let now = self.reader.received_values();
                    yields = if now == progress { yields + 1 } else { 0 };
                    progress = now;
                    thread::yield_now();
                }
                Ok(None) => {
                    self.has_more = stream.has_more();
                    break Ok(());
                }
                Ok(Some(frame)) => {
                    received += 1;
                    self.connection.to_return(self.reader.take_read_lent());
                    if let Err(end) = received::handle(shared, &self.connection, &self.side, frame)
                    {
                        break Err(end);
                    }
                }
                Err(error) => break Err(error.into()),
            }
        };
        self.connection.write();
        outcome
    }
}
