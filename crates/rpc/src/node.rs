//! [`RpcNode`]: this process as a worker that calls others and is called by them.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_clock::Stopwatch;
use rustix::event::{EventfdFlags, eventfd};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::callee::CalleeSession;
use crate::caller::{CallEnd, CallerAction, CallerLink};
use crate::connection::RpcConnection;
use crate::error::{RpcError, StartProblem};
use crate::frame::{FrameBody, RpcFrameKind};
use crate::function::FunctionRegistry;
use crate::handlers::{self, FunctionRun, HandlerQueue};
use crate::io_thread;
use crate::lease::{LeaseTable, ProcessName};
use crate::limits::RpcLimits;
use crate::peers::{CallTarget, RpcPeer};
use crate::references::{self, HeldObjects, ReferenceTicket};
use crate::security::{RpcKeys, RpcSecurity};
use crate::values::ValuePool;

/// The most calls in flight that fit into the list of a new connection.
const CALLS_MAX: usize = 100_000;
/// How long closing waits for the last bytes.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct RpcConfig {
    /// The job; workers of other jobs are refused.
    pub job: String,
    /// The name of this worker, unique in the job.
    pub name: String,
    /// How the workers authenticate to each other.
    pub security: RpcSecurity,
    /// The bounds.
    pub limits: RpcLimits,
}

impl RpcConfig {
    /// Returns settings with the default bounds.
    #[must_use]
    pub fn new(job: &str, name: &str, security: RpcSecurity) -> Self {
        Self {
            job: job.to_owned(),
            name: name.to_owned(),
            security,
            limits: RpcLimits::default(),
        }
    }
}

/// The slot for the result of a call.
#[derive(Default)]
pub(crate) struct CallSlot {
    pub(crate) end: Mutex<Option<CallEnd>>,
    pub(crate) is_set: Condvar,
}

/// The caller's side of one peer.
pub(crate) struct PeerState {
    pub(crate) peer: RpcPeer,
    pub(crate) link: CallerLink<Option<Arc<CallSlot>>>,
    /// The connection that was opened for calls to this peer.
    pub(crate) connection: Option<Arc<RpcConnection>>,
    pub(crate) is_dialling: bool,
    pub(crate) next_dial: Duration,
    /// The peer's process, once connected.
    pub(crate) process: Option<u64>,
}

/// The callee's side of one caller process.
pub(crate) struct SessionState {
    pub(crate) session: CalleeSession,
    pub(crate) connection: Option<Arc<RpcConnection>>,
    /// Since when there has been no connection.
    pub(crate) lost_at: Duration,
}

/// Everything that threads change together.
pub(crate) struct NodeState {
    pub(crate) peers: Vec<PeerState>,
    pub(crate) sessions: BTreeMap<ProcessName, SessionState>,
    pub(crate) objects: LeaseTable<Arc<dyn Any + Send + Sync>>,
    pub(crate) held: HeldObjects,
}

/// The shared state of a node's threads.
pub(crate) struct NodeShared {
    pub(crate) job: String,
    /// This process.
    pub(crate) me: ProcessName,
    pub(crate) keys: RpcKeys,
    pub(crate) limits: RpcLimits,
    pub(crate) clock: Stopwatch,
    pub(crate) functions: FunctionRegistry,
    pub(crate) handlers: HandlerQueue,
    pub(crate) pool: Arc<ValuePool>,
    state: Mutex<NodeState>,
    /// A call has ended, so that another one may have room.
    pub(crate) has_room: Condvar,
    pub(crate) waker: OwnedFd,
    /// Objects that this process no longer holds; their owners are notified.
    pub(crate) released: Mutex<Vec<(ReferenceTicket, u64)>>,
    /// A connection is not read until received calls have been executed.
    pub(crate) is_paused: AtomicBool,
    /// Calls fail from now on.
    pub(crate) is_closing: AtomicBool,
    /// No function runs any more.
    pub(crate) has_no_handlers: AtomicBool,
}

/// The threads of a node, which end with its last handle.
struct NodeThreads {
    shared: Arc<NodeShared>,
    polling: Option<JoinHandle<()>>,
    handlers: Vec<JoinHandle<()>>,
}

/// This process as a worker that calls others and is called by them. Clones are handles of the same node, which closes
/// with the last one: open calls fail, and running functions are waited for.
///
/// A node has one thread for all connections and [`RpcLimits::threads`] that run functions. A call is written by the
/// thread that makes it.
///
/// # Guarantees
/// A function is executed at most once for a call, also when the connection is lost and established again in between.
/// A call that returns was executed exactly once. After [`RpcError::PeerLost`] and [`RpcError::DeadlinePassed`] it was
/// executed once or not at all; after every other error it was not executed, or its own error is reported.
#[derive(Clone)]
pub struct RpcNode {
    pub(crate) shared: Arc<NodeShared>,
    /// `None` in the hands of a function, which must not wait for its own thread.
    _threads: Option<Arc<NodeThreads>>,
}

impl RpcNode {
    /// Opens a node that accepts calls at `listener` and may call `peers`. Only peers in this list, or added later
    /// ([`RpcNode::add_peer`]), may call this node.
    ///
    /// # Errors
    /// [`RpcError::Start`] for plain connections beyond loopback, names that are used twice, and errors of the system.
    pub fn open(
        config: RpcConfig,
        listener: TcpListener,
        peers: Vec<RpcPeer>,
        mut functions: FunctionRegistry,
    ) -> Result<Self, RpcError> {
        references::register(&mut functions);
        let listening = listener.set_nonblocking(true);
        let address = listening.and_then(|()| listener.local_addr());
        let address = address.map_err(StartProblem::system("set up the listener"))?;
        check_addresses(&config.security, std::iter::once(&address))?;
        let mut limits = config.limits;
        limits.calls_in_flight_max = limits.calls_in_flight_max.clamp(1, CALLS_MAX);
        limits.threads = limits.threads.max(1);
        let process = random_number().map_err(StartProblem::system("draw a random number"))?;
        let keys = config.security.keys();
        let shared = Arc::new(NodeShared {
            job: config.job,
            me: (config.name, process),
            keys: keys.map_err(StartProblem::system("use the certificate"))?,
            clock: Stopwatch::start(),
            functions,
            handlers: HandlerQueue::default(),
            pool: Arc::default(),
            state: Mutex::new(NodeState {
                peers: Vec::new(),
                sessions: BTreeMap::new(),
                objects: LeaseTable::new(limits.lease),
                held: HeldObjects::default(),
            }),
            has_room: Condvar::new(),
            waker: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(StartProblem::system("create an eventfd"))?,
            released: Mutex::default(),
            is_paused: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            has_no_handlers: AtomicBool::new(false),
            limits,
        });
        for peer in peers {
            shared.add_peer(peer)?;
        }
        let mut threads = NodeThreads {
            shared: Arc::clone(&shared),
            polling: None,
            handlers: Vec::new(),
        };
        let polling = Arc::clone(&shared);
        let polling = thread::Builder::new()
            .name("ronde-rpc-io".to_owned())
            .spawn(move || io_thread::run(&polling, listener));
        threads.polling = Some(polling.map_err(StartProblem::system("start a thread"))?);
        for number in 0..shared.limits.threads {
            let running = Arc::clone(&shared);
            let running = thread::Builder::new()
                .name(format!("ronde-rpc-{number}"))
                .spawn(move || handlers::run_all(&running));
            threads
                .handlers
                .push(running.map_err(StartProblem::system("start a thread"))?);
        }
        Ok(Self {
            shared,
            _threads: Some(Arc::new(threads)),
        })
    }

    /// Returns a handle that does not keep the node open.
    pub(crate) fn without_threads(shared: &Arc<NodeShared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            _threads: None,
        }
    }

    /// Adds a peer, or replaces the address of the one with the same name, whose process may have been replaced.
    ///
    /// # Errors
    /// [`RpcError::Start`] for an address beyond loopback without TLS, or this worker's own name.
    pub fn add_peer(&self, peer: RpcPeer) -> Result<(), RpcError> {
        self.shared.add_peer(peer)
    }

    /// Returns this worker's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.me.0
    }

    /// Returns the number of objects that other workers or this one hold references to.
    #[must_use]
    pub fn shared_objects(&self) -> usize {
        self.shared.lock().objects.len()
    }
}

impl Drop for NodeThreads {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.handlers.close();
        self.shared.wake();
        let this = thread::current().id();
        let join = |thread: JoinHandle<()>| {
            if thread.thread().id() != this {
                let _panicked = thread.join();
            }
        };
        self.handlers.drain(..).for_each(join);
        self.shared.has_no_handlers.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.polling.take().into_iter().for_each(join);
    }
}

impl NodeShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts the wait of the polling thread.
    pub(crate) fn wake(&self) {
        // It can only fail when it is signalled already.
        let _signalled = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    fn add_peer(&self, peer: RpcPeer) -> Result<(), RpcError> {
        if let RpcKeys::Token(_) = self.keys
            && !peer.address.ip().is_loopback()
        {
            return Err(beyond_loopback(&peer.address));
        }
        let mut state = self.lock();
        if peer.name == self.me.0 {
            let cause = StartProblem::OwnName { name: peer.name };
            return Err(RpcError::Start { cause });
        }
        if let Some(known) = state.peers.iter_mut().find(|p| p.peer.name == peer.name) {
            if known.peer.address != peer.address
                && let Some(connection) = &known.connection
            {
                connection.close();
            }
            known.peer = peer;
            known.next_dial = Duration::ZERO;
        } else {
            state.peers.push(PeerState {
                peer,
                link: CallerLink::new(),
                connection: None,
                is_dialling: false,
                next_dial: Duration::ZERO,
                process: None,
            });
        }
        Ok(())
    }

    /// Carries out the actions of the link of peer `index`. The caller writes to its connection afterwards.
    pub(crate) fn carry_out(
        &self,
        peer: &PeerState,
        actions: Vec<CallerAction<Option<Arc<CallSlot>>>>,
    ) {
        let mut has_ended = false;
        for action in actions {
            match action {
                CallerAction::Transmit(frame) => {
                    if let Some(connection) = &peer.connection {
                        connection.queue(frame);
                    }
                }
                CallerAction::Finish(slot, end) => {
                    has_ended = true;
                    if let Some(slot) = slot {
                        *slot.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                        slot.is_set.notify_one();
                    }
                }
            }
        }
        if has_ended {
            self.has_room.notify_all();
        }
    }

    /// Writes to a connection; the polling thread continues if the socket is full.
    pub(crate) fn write(&self, connection: &RpcConnection) {
        if connection.write_patiently() {
            self.wake();
        }
    }

    /// Returns whether a received call still has to be executed.
    pub(crate) fn expects_answer(&self, run: &FunctionRun) -> bool {
        run.frame.kind == RpcFrameKind::Send
            || self
                .lock()
                .sessions
                .get(&*run.caller)
                .is_some_and(|session| session.session.is_open(run.frame.call))
    }

    /// Queues the answer of a call of `caller`; returns the connection to write to.
    pub(crate) fn answer(
        &self,
        caller: &ProcessName,
        answer: FrameBody,
    ) -> Option<Arc<RpcConnection>> {
        let mut state = self.lock();
        let session = state.sessions.get_mut(caller)?;
        let answer = session
            .session
            .finished(answer, self.limits.kept_answer_bytes_max);
        let (answer, connection) = answer.zip(session.connection.clone())?;
        connection.queue(answer);
        Some(connection)
    }

    /// Returns the peer of a target.
    pub(crate) fn find(&self, state: &NodeState, target: CallTarget<'_>) -> Option<usize> {
        match target {
            CallTarget::Worker(name) => state.peers.iter().position(|p| p.peer.name == name),
            CallTarget::Role(role) => {
                let peers = state.peers.iter().enumerate();
                let peers = peers.filter(|(_, peer)| peer.peer.role == role);
                let load = |peer: &PeerState| (peer.link.is_lost(), peer.link.in_flight());
                peers
                    .min_by_key(|(_, peer)| load(peer))
                    .map(|(index, _)| index)
            }
        }
    }
}

/// The call that a function runs for, and the node that it runs on.
pub struct CallContext {
    node: RpcNode,
    caller: Arc<ProcessName>,
    deadline: Duration,
}

impl CallContext {
    pub(crate) fn new(
        shared: &Arc<NodeShared>,
        caller: &Arc<ProcessName>,
        deadline: Duration,
    ) -> Self {
        Self {
            node: RpcNode::without_threads(shared),
            caller: Arc::clone(caller),
            deadline,
        }
    }

    /// Returns this worker's node, for further calls. Keep no clone beyond the function: it does not keep the node open.
    #[must_use]
    pub fn node(&self) -> &RpcNode {
        &self.node
    }

    /// Returns the name of the worker that called.
    #[must_use]
    pub fn caller(&self) -> &str {
        &self.caller.0
    }

    /// Returns the time until the caller stops waiting.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.deadline
            .saturating_sub(self.node.shared.clock.elapsed())
    }

    pub(crate) fn caller_process(&self) -> &ProcessName {
        &self.caller
    }
}

fn check_addresses<'a>(
    security: &RpcSecurity,
    mut addresses: impl Iterator<Item = &'a std::net::SocketAddr>,
) -> Result<(), RpcError> {
    if matches!(security, RpcSecurity::Tls(_)) {
        return Ok(());
    }
    match addresses.find(|address| !address.ip().is_loopback()) {
        Some(address) => Err(beyond_loopback(address)),
        None => Ok(()),
    }
}

fn beyond_loopback(address: &std::net::SocketAddr) -> RpcError {
    let cause = StartProblem::Plain { address: *address };
    RpcError::Start { cause }
}

fn random_number() -> Result<u64, rustix::io::Errno> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
