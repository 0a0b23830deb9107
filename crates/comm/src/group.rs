//! [`ProcessGroup`]: connected ranks that run collectives and exchange messages.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Buffer, CollectiveError, Collectives, DType, GroupRank, Operation, Work};

use ronde_schedule::{CostModel, Hosts};

use crate::choice::Chooser;
use crate::clock;
use crate::connect;
use crate::engine::{Command, Engine, Mailbox, Reporter, Seat};
use crate::flight::{Flight, FlightRecord};
use crate::frame::Call;
use crate::hello::Hello;
use crate::program::{Member, invalid};
use crate::running::Asked;
use crate::shared::{self, Lane};
use crate::split::{Nursery, Origin};
use crate::transport::near::introduce;
use crate::transport::{Transport, in_process};
use crate::work::{finished, pending};
use crate::{GroupConfig, TransportChoice};

/// Connected ranks that run collectives and exchange messages.
///
/// One progress thread per group owns the connections and runs collectives in the order of their
/// calls; it sleeps when there is nothing to do. The first failure ends the group on all ranks: every
/// pending and later operation reports it. Dropping a group says goodbye to the others; operations
/// that are pending then fail, here and there.
#[derive(Debug)]
pub struct ProcessGroup {
    config: GroupConfig,
    member: Member,
    chooser: Chooser,
    /// How sub-groups are made, and how many times that was asked for.
    pub(crate) origin: Origin,
    pub(crate) splits: AtomicU64,
    link: Link,
    refused: Vec<String>,
}

/// How the others are reached.
#[derive(Debug)]
enum Link {
    /// There are none. Holds the reason after an abort.
    Alone(Mutex<Option<String>>),
    /// Through a progress thread.
    Others {
        mailbox: Arc<Mailbox>,
        /// From which the streams are driven.
        seat: Arc<Seat>,
        progress: Option<JoinHandle<()>>,
        /// Shared memory, where all members have it.
        lane: Option<Arc<Lane>>,
    },
}

impl ProcessGroup {
    /// Joins over TCP, by TLS where [`GroupConfig::security`] says so; `peers` holds every rank's
    /// listening address by group rank, this member's own included. Higher ranks dial lower ones; one
    /// connection per pair. Members that are all on one host then share memory, unless
    /// [`GroupConfig::transport`] says otherwise: buffers from [`Collectives::allocate`] are reduced
    /// in place, others in pieces, and a blocking call runs on the thread that makes it. Messages, operations
    /// that are not run in this way, and all that members of one host say to each other in a group of
    /// several hosts go through rings of shared memory; what goes to other hosts, through the connections.
    /// Members that are not all on one host find out who sits on which host, and measure what their connections cost, for as
    /// long as [`GroupConfig::calibration`] says; [`ProcessGroup::calibrate`] tells more.
    ///
    /// # Errors
    /// [`CollectiveError::Connect`] when a peer cannot be reached before the limit or refuses this
    /// member, naming those whom this member turned away; [`CollectiveError::Invalid`] for plain
    /// connections to other hosts that nobody asked for;
    /// [`CollectiveError::OtherPlan`] when one brings something else, on both sides.
    pub fn connect(
        config: GroupConfig,
        listener: TcpListener,
        peers: &[SocketAddr],
    ) -> Result<Self, CollectiveError> {
        Self::connect_by(config, listener, peers, None)
    }

    /// As [`ProcessGroup::connect`], by costs that are known where `known` brings them.
    pub(crate) fn connect_by(
        mut config: GroupConfig,
        listener: TcpListener,
        peers: &[SocketAddr],
        known: Option<CostModel>,
    ) -> Result<Self, CollectiveError> {
        check_rank(&config, peers.len())?;
        if peers.len() == 1 {
            return Ok(Self::alone(config));
        }
        let listening = listener.local_addr().map_err(|error| {
            let what = "listening".to_owned();
            let cause = error.to_string();
            CollectiveError::Connect { what, cause }
        })?;
        config.security.check_addresses(listening, peers)?;
        let connections = connect::connections(&config, peers)?;
        let hello = Hello::new(&config, peers.len(), connections);
        let keys = config.security.keys(peers.len())?;
        let is_tls = keys.is_some();
        let limit = config.connect_timeout;
        let give_up = config.give_up.as_ref();
        let mesh = connect::mesh(&hello, keys, listener, peers, limit, give_up)?;
        let transport = connect::transport(mesh.wires, is_tls, connections)?;
        let me = config.rank.index();
        let here = |peer| config.hosts.as_ref().is_none_or(|h| h.of(peer) == h.of(me));
        let wants = |peer| config.transport != TransportChoice::Tcp && here(peer);
        let wants: Vec<bool> = (0..peers.len()).map(wants).collect();
        let transport = introduce(transport, me, (&wants, clock::deadline(limit)), give_up)?;
        let origin = Origin::Sockets(peers[config.rank.index()].ip());
        let limit = config.timeout;
        config.timeout = limit.max(config.connect_timeout);
        let mut group = Self::over(config, peers.len(), transport)?.with_origin(origin);
        group.refused = mesh.refused;
        group.share(limit, known)
    }

    /// Shares memory with the others where that is wanted and possible, or else settles by which costs
    /// is chosen; then operations may take `limit`. All members call it before anything else.
    fn share(mut self, limit: Duration, known: Option<CostModel>) -> Result<Self, CollectiveError> {
        self.config.timeout = limit;
        let Link::Others { mailbox, .. } = &self.link else {
            return Ok(self);
        };
        let mailbox = Arc::clone(mailbox);
        let terms = shared::Terms {
            choice: match self.config.transport {
                TransportChoice::Auto if self.chooser.hosts().count() > 1 => TransportChoice::Tcp,
                choice => choice,
            },
            name: &self.config.name,
            limit,
            generation: self.config.generation,
            mailbox: &mailbox,
        };
        let shared = shared::join(&self, &terms)?;
        match known {
            _ if shared.is_some() => {}
            Some(model) => self.chooser.set_model(model),
            None => self.settle_costs()?,
        }
        mailbox.post(Command::Limit(limit))?;
        mailbox.flight().joined(shared.is_none());
        if let Link::Others { lane, .. } = &mut self.link {
            *lane = shared;
        }
        Ok(self)
    }

    /// Whether the members share memory.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.lane().is_some()
    }

    /// Whether a call runs over shared memory.
    pub(crate) fn is_by_shared_memory(&self, operation: &Operation, call: &Call) -> bool {
        self.shares_memory() && shared::is_direct(operation, call)
    }

    pub(crate) fn member(&self) -> Member {
        self.member
    }

    pub(crate) fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// Chooses among members on other hosts than was known when it was made.
    pub(crate) fn set_hosts(&mut self, hosts: Hosts) {
        self.chooser = Chooser::new(self.config.algorithm, hosts);
    }

    fn lane(&self) -> Option<&Arc<Lane>> {
        match &self.link {
            Link::Others { lane, .. } => lane.as_ref(),
            Link::Alone(_) => None,
        }
    }

    /// Joins threads of one process, one member per configuration, in the order of their ranks.
    ///
    /// Each entry is an error when that member's rank is not its place, or when it brings something
    /// else than another member.
    #[must_use]
    pub fn in_process(configs: Vec<GroupConfig>) -> Vec<Result<Self, CollectiveError>> {
        let size = configs.len();
        let hellos: Vec<Hello> = configs.iter().map(|c| Hello::new(c, size, 1)).collect();
        let transports = in_process::connect(size);
        let nursery = Arc::new(Nursery::default());
        let members = configs.into_iter().zip(transports).enumerate();
        members
            .map(|(place, (config, transport))| {
                if config.rank.index() != place {
                    let problem = format!("rank {} in place {place}", config.rank);
                    return Err(invalid("joining a group", problem));
                }
                for theirs in &hellos {
                    hellos[place].check(theirs)?;
                }
                if size == 1 {
                    return Ok(Self::alone(config));
                }
                let origin = Origin::Threads(Arc::clone(&nursery));
                Ok(Self::over(config, size, Box::new(transport))?.with_origin(origin))
            })
            .collect()
    }

    /// Runs a group of `size` over a transport whose streams are connected and whose members are
    /// known to agree. Starts the progress thread.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for a rank outside the group, [`CollectiveError::Connect`] when
    /// the system has no thread left.
    pub fn over(
        config: GroupConfig,
        size: usize,
        transport: Box<dyn Transport>,
    ) -> Result<Self, CollectiveError> {
        check_rank(&config, size)?;
        let rank = config.rank;
        let member = Member { rank, size };
        let mailbox = Arc::new(Mailbox::new(transport.waker(), member));
        let engine = Engine::new(
            transport,
            Arc::clone(&mailbox),
            member,
            config.generation,
            config.timeout,
            reporter(&config),
        )
        .lingering(config.linger_failed);
        let seat = Arc::new(Seat::new(engine, Arc::clone(&mailbox)));
        let attended = Arc::clone(&seat);
        let progress = thread::Builder::new()
            .name(format!("ronde {} {rank}", config.name))
            .spawn(move || attended.attend())
            .map_err(|error| CollectiveError::Connect {
                what: "starting the progress thread".to_owned(),
                cause: error.to_string(),
            })?;
        let progress = Some(progress);
        Ok(Self {
            chooser: chooser(&config, size),
            origin: Origin::Foreign,
            splits: AtomicU64::new(0),
            config,
            member,
            link: Link::Others {
                mailbox,
                seat,
                progress,
                lane: None,
            },
            refused: Vec::new(),
        })
    }

    /// A group of one: no thread, no socket. Every collective is complete at once and gives back
    /// what it was given; messages are refused, for there is nobody to get them.
    #[must_use]
    pub fn alone(mut config: GroupConfig) -> Self {
        config.rank = GroupRank(0);
        let member = Member {
            rank: config.rank,
            size: 1,
        };
        Self {
            chooser: chooser(&config, 1),
            origin: Origin::Alone,
            splits: AtomicU64::new(0),
            config,
            member,
            link: Link::Alone(Mutex::new(None)),
            refused: Vec::new(),
        }
    }

    pub(crate) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// What this member brought.
    #[must_use]
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Who was turned away while the members met, and why: the first 16. They did no harm, but somebody
    /// may want to know.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// The last operations of this rank: from any thread, at any time, a hang included. A group of one
    /// records nothing. Merge those of several ranks with [`crate::merge_report`].
    #[must_use]
    pub fn flight_record(&self) -> FlightRecord {
        let record = match &self.link {
            Link::Alone(_) => Flight::new(self.member.rank, 1).record(),
            Link::Others { mailbox, .. } => mailbox.flight_record(),
        };
        named(record, &self.config)
    }

    /// Bytes of payload sent to others so far, without headers.
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

    /// Runs an operation that is checked and described, and waits for it.
    pub(crate) fn run_call(
        &self,
        operation: Operation,
        call: Call,
        buffer: Buffer,
    ) -> Result<Buffer, CollectiveError> {
        let Link::Others { seat, lane, .. } = &self.link else {
            return self.start_call(operation, call, buffer)?.wait();
        };
        if let Some(lane) = lane {
            return lane.run(operation, call, buffer, self.chooser.hosts());
        }
        let (completion, work) = pending();
        let asked = Asked {
            operation,
            call,
            buffer,
            completion,
            hosts: Arc::clone(self.chooser.hosts()),
        };
        seat.run(Command::Collective(asked), &work)?;
        Box::new(work).wait()
    }

    /// Starts an operation that is checked and described.
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
        let asked = Asked {
            operation,
            call,
            buffer,
            completion,
            hosts: Arc::clone(self.chooser.hosts()),
        };
        match self.lane() {
            Some(lane) => lane.start(asked)?,
            None => self.post(Command::Collective(asked))?,
        }
        Ok(Box::new(work))
    }

    pub(crate) fn post(&self, command: Command) -> Result<(), CollectiveError> {
        match &self.link {
            Link::Others { mailbox, .. } => mailbox.post(command),
            Link::Alone(_) => Err(invalid("message", "the group has one member".to_owned())),
        }
    }
}

fn chooser(config: &GroupConfig, size: usize) -> Chooser {
    let hosts = config.hosts.clone().filter(|hosts| hosts.size() == size);
    let hosts = hosts.unwrap_or_else(|| Hosts::one(size));
    Chooser::new(config.algorithm, hosts)
}

/// A record with what the group is called.
fn named(mut record: FlightRecord, config: &GroupConfig) -> FlightRecord {
    record.job.clone_from(&config.job);
    record.group.clone_from(&config.name);
    record.generation = config.generation;
    record
}

fn reporter(config: &GroupConfig) -> Option<Reporter> {
    let hook = config.on_failure.clone()?;
    let config = config.clone();
    Some(Box::new(move |record, error| {
        hook.call(&named(record, &config), error);
    }))
}

fn check_rank(config: &GroupConfig, size: usize) -> Result<(), CollectiveError> {
    if let Some(hosts) = &config.hosts
        && hosts.size() != size
    {
        let problem = format!("hosts of {} ranks for a group of {size}", hosts.size());
        return Err(invalid("joining a group", problem));
    }
    if config.rank.index() < size {
        return Ok(());
    }
    let problem = format!("rank {} is not in a group of {size}", config.rank);
    Err(invalid("joining a group", problem))
}

impl Collectives for ProcessGroup {
    fn rank(&self) -> GroupRank {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn allocate(&self, dtype: DType, len: usize) -> Buffer {
        match self.lane() {
            Some(lane) => lane.allocate(dtype, len),
            None => Buffer::host(dtype, len),
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

    fn under_way_s(&self) -> f64 {
        match &self.link {
            Link::Alone(_) => 0.0,
            Link::Others { mailbox, .. } => mailbox.flight().under_way_s(),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Link::Others {
            mailbox,
            progress,
            lane,
            ..
        } = &mut self.link
        {
            if let Some(lane) = lane {
                lane.leave();
            }
            mailbox.leave();
            if let Some(progress) = progress.take() {
                // A progress thread that panicked has failed all operations already.
                let _ended = progress.join();
            }
        }
    }
}
