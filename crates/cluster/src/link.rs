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
use crate::placement::Placement;
use crate::queue::EventQueue;
use crate::wire::{
    self, FromSupervisor, FromWorker, MessageReader, PROTOCOL, ReadError, SUPERVISOR_BYTES_MAX,
    Terms, WORKER_BYTES_MAX,
};

/// Why a worker's job is over for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    /// In words.
    pub reason: String,
    /// Whether another worker has failed: then this one writes down what it knows of that.
    pub has_failed: bool,
}

/// What is called once when the supervisor is lost or says stop.
pub type OnLoss = Box<dyn FnOnce(&JobEnd) + Send>;

/// Pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long [`WorkerLink::finish`] waits for the events to be written.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Most bytes of an error message that travel in [`Event::WorkerFailed`].
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A worker's connection to its supervisor: brings the assignment, takes the events, and tells when
/// the job is over.
///
/// Two threads live as long as the connection: one reads, one writes.
pub struct WorkerLink {
    stream: Arc<TcpStream>,
    queue: Arc<EventQueue>,
    assignments: Receiver<Assignment>,
    loss: Arc<Mutex<Loss>>,
    /// For a job that goes on when workers die.
    membership: Option<Elastic>,
}

/// Who the members of this worker's generations are.
#[derive(Clone)]
pub struct Peers(Arc<Placement>);

impl Peers {
    /// The names of a generation's members by rank; empty when it is none of the newest eight.
    #[must_use]
    pub fn workers(&self, generation: Generation) -> Vec<u64> {
        self.0.members(generation)
    }
}

/// What a worker brings into a job that goes on when workers die.
struct Elastic {
    terms: Terms,
    worker: u64,
    slot: Rank,
    identity: Option<Identity>,
    placement: Arc<OnceLock<Arc<Placement>>>,
}

/// Whether the supervisor is lost, and who wants to know.
#[derive(Default)]
struct Loss {
    end: Option<JobEnd>,
    finished: bool,
    call: Option<OnLoss>,
}

impl WorkerLink {
    /// Connects to the supervisor at `control` and shows the job's secret. Tries again until
    /// `timeout` while nobody listens or the supervisor is too busy. `worker`: the name that the
    /// supervisor gave this process, if it did.
    ///
    /// # Errors
    /// [`ClusterError::Connect`] when it cannot be reached in time, [`ClusterError::Refused`] when
    /// it does not want this worker.
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
                        Elastic::new(terms, worker, rank, identity.as_deref())
                    });
                    return Ok(Self::start(stream, membership.transpose()?));
                }
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Again(cause)) => {
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

    fn start(stream: TcpStream, membership: Option<Elastic>) -> Self {
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

    /// Tells the supervisor where this worker's data plane listens, and waits at most `timeout`
    /// for all others to have done so. Cost: one message each way.
    ///
    /// # Errors
    /// [`ClusterError::RendezvousTimeout`], or [`ClusterError::Lost`] when the job ends meanwhile.
    pub fn rendezvous(
        &self,
        data_address: SocketAddr,
        timeout: Duration,
    ) -> Result<Assignment, ClusterError> {
        if let Some(elastic) = &self.membership {
            return elastic.ask(data_address, &self.queue)?.first(timeout);
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

    /// How this worker gets into later generations, in a job that goes on when workers die: after
    /// [`WorkerLink::rendezvous`].
    #[must_use]
    pub fn membership(&self) -> Option<Arc<dyn Membership>> {
        let placement = self.membership.as_ref()?.placement.get()?;
        Some(Arc::clone(placement) as Arc<dyn Membership>)
    }

    /// The address at which this worker's data plane must listen for its peers to reach it.
    #[must_use]
    pub fn interface(&self) -> IpAddr {
        let terms = self.membership.as_ref().map(|elastic| &elastic.terms);
        terms.map_or(Ipv4Addr::LOCALHOST.into(), |terms| terms.interface)
    }

    /// Tells who the members of a generation are: after [`WorkerLink::rendezvous`], in a job that goes on
    /// when workers die.
    #[must_use]
    pub fn peers(&self) -> Option<Peers> {
        let placement = self.membership.as_ref()?.placement.get()?;
        Some(Peers(Arc::clone(placement)))
    }

    /// This worker's certificate, where the job has an authority: what it shows to peers on other hosts.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.membership.as_ref()?.identity.as_ref()
    }

    /// Where this worker's events go. Recording never blocks; at most 65,536 events wait, more are
    /// dropped and counted.
    #[must_use]
    pub fn tracker(&self) -> Arc<dyn Tracker> {
        Arc::clone(&self.queue) as Arc<dyn Tracker>
    }

    /// Events that were dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Calls `call` once when the supervisor goes away or says stop, from a thread
    /// of the link; at once when that has happened already. Replaces the call before.
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

    /// Sends all events that were recorded and closes the connection; afterwards the supervisor's
    /// end is no loss. Waits at most five seconds. True when everything was sent.
    pub fn finish(&self) -> bool {
        lock(&self.loss).finished = true;
        let dropped = self.queue.dropped();
        if dropped > 0 {
            self.queue.record(Event::Notice {
                rank: None,
                message: format!("{dropped} events of a worker were dropped: its queue was full"),
            });
        }
        self.queue.close();
        let flushed = self.queue.flush(clock::now() + FLUSH_MAX);
        // An error means that the supervisor is gone: then there is nobody to close for.
        let _ = self.stream.shutdown(Shutdown::Write);
        flushed && self.queue.dropped() == dropped
    }
}

impl Elastic {
    fn new(
        terms: Terms,
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

    /// Asks for a place, once.
    fn ask(
        &self,
        address: SocketAddr,
        queue: &Arc<EventQueue>,
    ) -> Result<&Arc<Placement>, ClusterError> {
        let (terms, queue) = (self.terms.clone(), Arc::clone(queue));
        let placement = Placement::ask(terms, self.worker, self.slot, address, queue)?;
        let placement = self.placement.get_or_init(|| placement);
        // Only now, so that the answer finds it.
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

fn lock(loss: &Mutex<Loss>) -> MutexGuard<'_, Loss> {
    loss.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a greeting did not succeed.
enum Attempt {
    Again(std::io::Error),
    Final(ClusterError),
}

/// A connection, what a worker has to know of an elastic job, and its certificate.
type Greeted = (TcpStream, Option<Terms>, Option<String>);

fn greet(
    control: SocketAddr,
    token: &str,
    (rank, worker): (Rank, Option<u64>),
    deadline: Instant,
) -> Result<Greeted, Attempt> {
    let left = deadline
        .saturating_duration_since(clock::now())
        .max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&control, left).map_err(Attempt::Again)?;
    stream.set_nodelay(true).map_err(Attempt::Again)?;
    let hello = FromWorker::Hello {
        protocol: PROTOCOL,
        token: token.to_owned(),
        rank: rank.0,
        pid: std::process::id(),
        worker,
    };
    wire::send(&stream, &hello).map_err(Attempt::Again)?;
    // Nothing follows a welcome before this worker is ready, so no byte is lost with the reader.
    let answer = MessageReader::new(&stream).next(SUPERVISOR_BYTES_MAX, Some(deadline));
    match answer {
        Ok(FromSupervisor::Welcome {
            terms, identity, ..
        }) => Ok((stream, terms.map(|terms| *terms), identity)),
        Ok(FromSupervisor::Refused { reason }) => {
            Err(Attempt::Final(ClusterError::Refused { reason }))
        }
        Ok(FromSupervisor::Stop { reason, .. }) => {
            Err(Attempt::Final(ClusterError::Lost { reason }))
        }
        Ok(other) => Err(Attempt::Final(ClusterError::Protocol {
            problem: format!("{other:?} in answer to a hello"),
        })),
        Err(ReadError::Broken(problem)) => Err(Attempt::Final(ClusterError::Protocol { problem })),
        Err(ReadError::Closed) => Err(Attempt::Again(std::io::ErrorKind::ConnectionReset.into())),
        Err(ReadError::Late) => Err(Attempt::Again(std::io::ErrorKind::TimedOut.into())),
        Err(ReadError::Io(error)) => Err(Attempt::Again(error)),
    }
}

/// The reading thread: hands on the assignment, then waits for the end.
fn read(
    stream: &TcpStream,
    assigned: &SyncSender<Assignment>,
    loss: &Mutex<Loss>,
    placement: Option<&OnceLock<Arc<Placement>>>,
) {
    let mut reader = MessageReader::new(stream);
    let mut has_failed = false;
    let reason = loop {
        match reader.next::<FromSupervisor>(SUPERVISOR_BYTES_MAX, None) {
            Ok(FromSupervisor::Assignment(wire)) => match Assignment::try_from(wire) {
                // One place is enough: there is one assignment, a second one is not looked at.
                Ok(assignment) => drop(assigned.try_send(assignment)),
                Err(problem) => break problem,
            },
            Ok(FromSupervisor::Told { body }) => {
                // What comes before this worker has asked for a place is said again later.
                if let Some(placement) = placement.and_then(OnceLock::get) {
                    placement.hear(body);
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
    let end = JobEnd { reason, has_failed };
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

/// The writing thread: one write for all events that wait.
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

/// Events as lines, and how many do not fit in one.
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
