//! [`WorkerLink`]: a worker's connection to its supervisor.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::{Assignment, Event, Generation, Membership, Rank, Tracker};
use ronde_identity::{Identity, Member};

use crate::clock;
use crate::error::ClusterError;
use crate::membership_client::MembershipClient;
use crate::queue::EventQueue;
use crate::wire::{
    self, ElasticTerms, FromSupervisor, FromWorker, MessageReader, PROTOCOL, ReadError,
    SUPERVISOR_BYTES_MAX, WORKER_BYTES_MAX,
};

/// Why the job is over for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopNotice {
    /// The reason.
    pub reason: String,
    /// Whether another worker has failed, so that this one records what it knows about the failure.
    pub has_failed: bool,
}

/// A callback that is called once when the supervisor is lost or requests a stop.
pub type OnLoss = Box<dyn FnOnce(&StopNotice) + Send>;

/// Pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time that [`WorkerLink::finish`] waits for the events to be written.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Maximum length of an error message in [`Event::WorkerFailed`], in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A worker's connection to its supervisor: receives the assignment, sends events, and reports the
/// end of the job.
///
/// Two threads, a reader and a writer, run as long as the connection.
pub struct WorkerLink {
    stream: Arc<TcpStream>,
    queue: Arc<EventQueue>,
    assignments: Receiver<Assignment>,
    loss: Arc<Mutex<LossState>>,
    /// The membership data of an elastic job.
    membership: Option<ElasticMembership>,
}

/// The members of this worker's generations.
#[derive(Clone)]
pub struct Peers(Arc<MembershipClient>);

impl Peers {
    /// Returns the ids of a generation's members by rank; empty unless it is one of the newest
    /// eight.
    #[must_use]
    pub fn workers(&self, generation: Generation) -> Vec<u64> {
        self.0.members(generation)
    }
}

/// The membership data of a worker in an elastic job.
struct ElasticMembership {
    terms: ElasticTerms,
    worker: u64,
    slot: Rank,
    identity: Option<Identity>,
    placement: Arc<OnceLock<Arc<MembershipClient>>>,
}

/// Whether the supervisor is lost, and the callback to notify.
#[derive(Default)]
struct LossState {
    end: Option<StopNotice>,
    finished: bool,
    call: Option<OnLoss>,
}

impl WorkerLink {
    /// Connects to the supervisor at `control` and authenticates with the job's token. Retries
    /// until `timeout` while the supervisor is not listening or too busy. `worker` is the id that
    /// the supervisor assigned to this process, if any.
    ///
    /// # Errors
    /// Returns [`ClusterError::Connect`] if the supervisor cannot be reached in time,
    /// [`ClusterError::Refused`] if it rejects this worker.
    pub fn connect(
        control: SocketAddr,
        token: &str,
        rank: Rank,
        worker: Option<u64>,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let deadline = clock::now() + timeout;
        loop {
            match greet(control, token, (rank, worker), deadline) {
                Ok((stream, terms, identity)) => {
                    let membership = terms.zip(worker).map(|(terms, worker)| {
                        ElasticMembership::new(terms, worker, rank, identity.as_deref())
                    });
                    return Ok(Self::start(stream, membership.transpose()?));
                }
                Err(ConnectError::Final(error)) => return Err(error),
                Err(ConnectError::Retry(cause)) => {
                    if clock::now() + RETRY_PAUSE >= deadline {
                        return Err(ClusterError::Connect {
                            address: control,
                            limit: timeout,
                            cause,
                        });
                    }
                    clock::pause(RETRY_PAUSE);
                }
            }
        }
    }

    fn start(stream: TcpStream, membership: Option<ElasticMembership>) -> Self {
        let placement = membership.as_ref().map(|m| Arc::clone(&m.placement));
        let (assigned, assignments) = sync_channel(1);
        let link = Self {
            stream: Arc::new(stream),
            queue: Arc::default(),
            assignments,
            loss: Arc::default(),
            membership,
        };
        let (stream, loss) = (Arc::clone(&link.stream), Arc::clone(&link.loss));
        thread::spawn(move || read(&stream, &assigned, &loss, placement.as_deref()));
        let (stream, queue) = (Arc::clone(&link.stream), Arc::clone(&link.queue));
        thread::spawn(move || write(&stream, &queue));
        link
    }

    /// Reports the address of this worker's data plane to the supervisor, and waits at most
    /// `timeout` for all other workers to do the same. Cost: one message each way.
    ///
    /// # Errors
    /// Returns [`ClusterError::RendezvousTimeout`], or [`ClusterError::Lost`] if the job ends
    /// meanwhile.
    pub fn rendezvous(
        &self,
        data_address: SocketAddr,
        timeout: Duration,
    ) -> Result<Assignment, ClusterError> {
        if let Some(elastic) = &self.membership {
            return elastic.client(data_address, &self.queue)?.first(timeout);
        }
        wire::send(&self.stream, &FromWorker::Ready { data_address }).map_err(|error| {
            ClusterError::Lost {
                reason: error.to_string(),
            }
        })?;
        self.assignments
            .recv_timeout(timeout)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => ClusterError::RendezvousTimeout { limit: timeout },
                RecvTimeoutError::Disconnected => ClusterError::Lost {
                    reason: lock(&self.loss)
                        .end
                        .as_ref()
                        .map_or("the connection was closed", |end| &end.reason)
                        .to_owned(),
                },
            })
    }

    /// Returns the membership of an elastic job, through which this worker enters later
    /// generations. Available after [`WorkerLink::rendezvous`].
    #[must_use]
    pub fn membership(&self) -> Option<Arc<dyn Membership>> {
        let placement = self.membership.as_ref()?.placement.get()?;
        Some(Arc::clone(placement) as Arc<dyn Membership>)
    }

    /// Returns the address at which this worker's data plane must listen so that its peers can
    /// reach it.
    #[must_use]
    pub fn interface(&self) -> IpAddr {
        let terms = self.membership.as_ref().map(|elastic| &elastic.terms);
        terms.map_or(Ipv4Addr::LOCALHOST.into(), |terms| terms.interface)
    }

    /// Returns the members of this worker's generations, in an elastic job, after
    /// [`WorkerLink::rendezvous`].
    #[must_use]
    pub fn peers(&self) -> Option<Peers> {
        let placement = self.membership.as_ref()?.placement.get()?;
        Some(Peers(Arc::clone(placement)))
    }

    /// Returns this worker's certificate for connections to peers on other hosts, if the job has an
    /// authority.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.membership.as_ref()?.identity.as_ref()
    }

    /// Returns the tracker that sends this worker's events. Recording never blocks; at most 65,536
    /// events are queued, and further ones are dropped and counted.
    #[must_use]
    pub fn tracker(&self) -> Arc<dyn Tracker> {
        Arc::clone(&self.queue) as Arc<dyn Tracker>
    }

    /// Returns the number of events dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Calls `call` once from a thread of the link when the supervisor is lost or requests a stop;
    /// immediately if that has already happened. Replaces the previous callback.
    pub fn on_loss(&self, call: OnLoss) {
        let mut loss = lock(&self.loss);
        match loss.end.clone() {
            None => loss.call = Some(call),
            Some(_) if loss.finished => {}
            Some(end) => {
                drop(loss);
                call(&end);
            }
        }
    }

    /// Sends all recorded events and closes the connection; the supervisor's end is then no longer
    /// reported. Waits at most five seconds. Returns true if everything was sent.
    pub fn finish(&self) -> bool {
        lock(&self.loss).finished = true;
        let dropped = self.queue.dropped();
        if dropped > 0 {
            self.queue.record(Event::Notice {
                rank: None,
                message: format!("a worker dropped {dropped} events because its queue was full"),
            });
        }
        self.queue.close();
        let flushed = self.queue.flush(clock::now() + FLUSH_MAX);
        // An error means that the supervisor is gone.
        let _ = self.stream.shutdown(Shutdown::Write);
        flushed && self.queue.dropped() == dropped
    }
}

impl ElasticMembership {
    fn new(
        terms: ElasticTerms,
        worker: u64,
        slot: Rank,
        identity: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let read = |text| Identity::from_pem(&terms.job, Member::Worker(worker), text);
        Ok(Self {
            identity: identity.map(read).transpose()?,
            terms,
            worker,
            slot,
            placement: Arc::default(),
        })
    }

    /// Requests an assignment, once.
    fn client(
        &self,
        address: SocketAddr,
        queue: &Arc<EventQueue>,
    ) -> Result<&Arc<MembershipClient>, ClusterError> {
        let (terms, queue) = (self.terms.clone(), Arc::clone(queue));
        let placement = MembershipClient::ask(terms, self.worker, self.slot, address, queue)?;
        let placement = self.placement.get_or_init(|| placement);
        // Started only now, so that the answer finds the client.
        placement.begin();
        let ticking = Arc::clone(placement);
        thread::spawn(move || ticking.tick());
        Ok(placement)
    }
}

impl Drop for WorkerLink {
    fn drop(&mut self) {
        if let Some(placement) = self.membership.as_ref().and_then(|m| m.placement.get()) {
            placement.lose("this worker has ended");
        }
        lock(&self.loss).finished = true;
        self.queue.close();
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn lock(loss: &Mutex<LossState>) -> MutexGuard<'_, LossState> {
    loss.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a handshake failed.
enum ConnectError {
    Retry(std::io::Error),
    Final(ClusterError),
}

/// A connection, the settings of an elastic job, and the worker's certificate.
type WelcomeData = (TcpStream, Option<ElasticTerms>, Option<String>);

fn greet(
    control: SocketAddr,
    token: &str,
    (rank, worker): (Rank, Option<u64>),
    deadline: Instant,
) -> Result<WelcomeData, ConnectError> {
    let left = deadline
        .saturating_duration_since(clock::now())
        .max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&control, left).map_err(ConnectError::Retry)?;
    stream.set_nodelay(true).map_err(ConnectError::Retry)?;
    let hello = FromWorker::Hello {
        protocol: PROTOCOL,
        token: token.to_owned(),
        rank: rank.0,
        pid: std::process::id(),
        worker,
    };
    wire::send(&stream, &hello).map_err(ConnectError::Retry)?;
    // The supervisor sends nothing after a welcome until this worker is ready, so the reader holds
    // no bytes.
    let answer = MessageReader::new(&stream).next(SUPERVISOR_BYTES_MAX, Some(deadline));
    match answer {
        Ok(FromSupervisor::Welcome {
            terms, identity, ..
        }) => Ok((stream, terms.map(|terms| *terms), identity)),
        Ok(FromSupervisor::Refused { reason }) => {
            Err(ConnectError::Final(ClusterError::Refused { reason }))
        }
        Ok(FromSupervisor::Stop { reason, .. }) => {
            Err(ConnectError::Final(ClusterError::Lost { reason }))
        }
        Ok(other) => Err(ConnectError::Final(ClusterError::Protocol {
            problem: format!("unexpected answer to a hello: {other:?}"),
        })),
        Err(ReadError::Broken(problem)) => {
            Err(ConnectError::Final(ClusterError::Protocol { problem }))
        }
        Err(ReadError::Closed) => Err(ConnectError::Retry(
            std::io::ErrorKind::ConnectionReset.into(),
        )),
        Err(ReadError::Late) => Err(ConnectError::Retry(std::io::ErrorKind::TimedOut.into())),
        Err(ReadError::Io(error)) => Err(ConnectError::Retry(error)),
    }
}

/// Runs the reading thread: passes on the assignment, then waits for the end.
fn read(
    stream: &TcpStream,
    assigned: &SyncSender<Assignment>,
    loss: &Mutex<LossState>,
    placement: Option<&OnceLock<Arc<MembershipClient>>>,
) {
    let mut reader = MessageReader::new(stream);
    let mut has_failed = false;
    let reason = loop {
        match reader.next::<FromSupervisor>(SUPERVISOR_BYTES_MAX, None) {
            Ok(FromSupervisor::Assignment(wire)) => match Assignment::try_from(wire) {
                // There is only one assignment, so one entry is enough; a second one is ignored.
                Ok(assignment) => drop(assigned.try_send(assignment)),
                Err(problem) => break problem,
            },
            Ok(FromSupervisor::Coordinator { body }) => {
                // Messages that arrive before this worker has requested an assignment are repeated
                // later.
                if let Some(placement) = placement.and_then(OnceLock::get) {
                    placement.receive(body);
                }
            }
            Ok(FromSupervisor::Stop { reason, failed }) => {
                has_failed = failed;
                break reason;
            }
            Ok(FromSupervisor::Refused { reason }) => break reason,
            Ok(FromSupervisor::Welcome { .. }) => {}
            Err(error) => break error.to_string(),
        }
    };
    let end = StopNotice { reason, has_failed };
    let call = {
        let mut loss = lock(loss);
        loss.end = Some(end.clone());
        loss.call.take().filter(|_| !loss.finished)
    };
    if let Some(placement) = placement.and_then(OnceLock::get) {
        placement.lose(&end.reason);
    }
    if let Some(call) = call {
        call(&end);
    }
}

/// Runs the writing thread: one write for all queued events.
fn write(mut stream: &TcpStream, queue: &EventQueue) {
    let mut lost = false;
    while let Some(batch) = queue.take() {
        let count = batch.events.len() as u64;
        let (mut lines, unfit) = encode(batch.events);
        if let Some(body) = batch.report
            && serde_json::to_writer(&mut lines, &FromWorker::Report { body }).is_ok()
        {
            lines.push(b'\n');
        }
        lost = lost || stream.write_all(&lines).is_err();
        queue.add_dropped(if lost { count } else { unfit });
    }
}

/// Encodes events as lines, and counts those that exceed the maximum line length.
fn encode(batch: impl IntoIterator<Item = Event>) -> (Vec<u8>, u64) {
    let (mut lines, mut unfit) = (Vec::new(), 0);
    for mut body in batch {
        if let Event::WorkerFailed { message, .. } | Event::Notice { message, .. } = &mut body {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        }
        match serde_json::to_vec(&FromWorker::Event { body }) {
            Ok(line) if line.len() <= WORKER_BYTES_MAX => {
                lines.extend_from_slice(&line);
                lines.push(b'\n');
            }
            _ => unfit += 1,
        }
    }
    (lines, unfit)
}
