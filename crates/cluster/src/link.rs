//! [`WorkerLink`]: a worker's connection to its supervisor.

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::{Event, Generation, Rank, Tracker};
use ronde_identity::{Identity, Member};
use ronde_protocol::JobMember;

use crate::error::ClusterError;
use crate::membership_client::MembershipClient;
use crate::queue::EventQueue;
use crate::wire::{
    self, FromSupervisor, FromWorker, JobTerms, MessageReader, PROTOCOL, ReadError,
    SUPERVISOR_BYTES_MAX, WORKER_BYTES_MAX,
};

/// Why the job is over for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopNotice {
    /// The reason.
    pub reason: String,
    /// Whether another worker has failed, so that this one records its knowledge about the failure.
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

/// A worker's connection to its supervisor: takes part in the job, sends events, and reports the end of
/// the job.
///
/// Two threads, a reader and a writer, run as long as the connection, and a third one sends reports.
pub struct WorkerLink {
    stream: Arc<TcpStream>,
    queue: Arc<EventQueue>,
    loss: Arc<Mutex<LossState>>,
    terms: JobTerms,
    worker: u64,
    slot: Rank,
    /// The worker's certificate, if the job has an authority.
    identity: Option<Identity>,
    member: Arc<OnceLock<Arc<MembershipClient>>>,
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
    /// the supervisor assigned to this process.
    ///
    /// # Errors
    /// Returns [`ClusterError::Connect`] if the supervisor cannot be reached in time,
    /// [`ClusterError::Refused`] if it rejects this worker.
    pub fn connect(
        control: SocketAddr,
        token: &str,
        rank: Rank,
        worker: u64,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let deadline = ronde_clock::now() + timeout;
        let hello = FromWorker::Hello {
            protocol: PROTOCOL,
            token: token.to_owned(),
            rank: rank.0,
            pid: std::process::id(),
            worker,
        };
        loop {
            match greet(control, &hello, deadline) {
                Ok(welcome) => return Self::start(welcome, rank, worker),
                Err(ConnectError::Final(error)) => return Err(error),
                Err(ConnectError::Retry(cause)) => {
                    if ronde_clock::now() + RETRY_PAUSE >= deadline {
                        return Err(ClusterError::Connect {
                            address: control,
                            limit: timeout,
                            cause,
                        });
                    }
                    ronde_clock::pause(RETRY_PAUSE);
                }
            }
        }
    }

    fn start(welcome: AcceptedHello, slot: Rank, worker: u64) -> Result<Self, ClusterError> {
        let AcceptedHello {
            stream,
            terms,
            identity,
        } = welcome;
        let read_identity =
            |text: &str| Identity::from_pem(&terms.job, Member::Worker(worker), text);
        let link = Self {
            stream: Arc::new(stream),
            queue: Arc::default(),
            loss: Arc::default(),
            identity: identity.as_deref().map(read_identity).transpose()?,
            terms,
            worker,
            slot,
            member: Arc::default(),
        };
        let (stream, loss) = (Arc::clone(&link.stream), Arc::clone(&link.loss));
        let member = Arc::clone(&link.member);
        thread::spawn(move || read(&stream, &loss, &member));
        let (stream, queue) = (Arc::clone(&link.stream), Arc::clone(&link.queue));
        thread::spawn(move || write(&stream, &queue));
        Ok(link)
    }

    /// Reports that this worker's data plane listens at an address, and returns its membership in the
    /// job. Later calls return the same one. Cost: one message.
    ///
    /// # Errors
    /// Returns [`ClusterError::Protocol`] if the settings of the job are invalid.
    pub fn member(&self, data_address: SocketAddr) -> Result<Arc<dyn JobMember>, ClusterError> {
        let (terms, queue) = (self.terms.clone(), Arc::clone(&self.queue));
        let client = MembershipClient::new(terms, self.worker, self.slot, data_address, queue)?;
        let is_new = self.member.get().is_none();
        let client = self.member.get_or_init(|| client);
        if is_new {
            // Started only now, so that the answer finds the client.
            client.begin();
            if let Some(end) = &lock(&self.loss).end {
                client.lose(&end.reason);
            }
            let ticking = Arc::clone(client);
            thread::spawn(move || ticking.tick());
        }
        Ok(Arc::clone(client) as Arc<dyn JobMember>)
    }

    /// Returns the address at which this worker's data plane must listen so that its peers can
    /// reach it.
    #[must_use]
    pub fn interface(&self) -> IpAddr {
        self.terms.interface
    }

    /// Returns the members of this worker's generations, after [`WorkerLink::member`].
    #[must_use]
    pub fn peers(&self) -> Option<Peers> {
        self.member.get().cloned().map(Peers)
    }

    /// Returns this worker's certificate for connections to peers on other hosts, if the job has an
    /// authority.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
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
        let flushed = self.queue.flush(ronde_clock::now() + FLUSH_MAX);
        // An error means that the supervisor is gone.
        let _ = self.stream.shutdown(Shutdown::Write);
        flushed && self.queue.dropped() == dropped
    }
}

impl Drop for WorkerLink {
    fn drop(&mut self) {
        if let Some(member) = self.member.get() {
            member.leave();
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

/// The supervisor's acceptance of a worker.
struct AcceptedHello {
    stream: TcpStream,
    terms: JobTerms,
    /// The worker's certificate, if the job has an authority.
    identity: Option<String>,
}

fn greet(
    control: SocketAddr,
    hello: &FromWorker,
    deadline: Instant,
) -> Result<AcceptedHello, ConnectError> {
    let left = deadline
        .saturating_duration_since(ronde_clock::now())
        .max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&control, left).map_err(ConnectError::Retry)?;
    stream.set_nodelay(true).map_err(ConnectError::Retry)?;
    wire::send(&stream, hello).map_err(ConnectError::Retry)?;
    // The supervisor sends nothing after a welcome until this worker reports, so the reader holds
    // no bytes.
    let answer = MessageReader::new(&stream).next(SUPERVISOR_BYTES_MAX, Some(deadline));
    match answer {
        Ok(FromSupervisor::Welcome {
            terms, identity, ..
        }) => Ok(AcceptedHello {
            stream,
            terms: *terms,
            identity,
        }),
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

/// Runs the reading thread: passes on the coordinator's messages until the end.
fn read(stream: &TcpStream, loss: &Mutex<LossState>, member: &OnceLock<Arc<MembershipClient>>) {
    let mut reader = MessageReader::new(stream);
    let mut has_failed = false;
    let reason = loop {
        match reader.next::<FromSupervisor>(SUPERVISOR_BYTES_MAX, None) {
            Ok(FromSupervisor::Coordinator { body }) => {
                // Messages that arrive before this worker has reported are repeated later.
                if let Some(member) = member.get() {
                    member.receive(body);
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
    let (call, is_finished) = {
        let mut loss = lock(loss);
        loss.end = Some(end.clone());
        (loss.call.take().filter(|_| !loss.finished), loss.finished)
    };
    match member.get() {
        // The supervisor closes the connection of a worker that has finished.
        Some(member) if is_finished => member.leave(),
        Some(member) => member.lose(&end.reason),
        None => {}
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
