//! Joining: how a [`ProcessGroup`] is made, over connections, in one process or alone.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ronde_core::{CollectiveError, GroupRank};
use ronde_peer_memory::{LendingMark, PeerMemory};
use ronde_schedule::{CostModel, Hosts};

use super::{Link, ProcessGroup, named};
use crate::choice::Chooser;
use crate::config::{GroupConfig, TransportChoice};
use crate::connect::{self, JoinFailure};
use crate::hello::JoinHello;
use crate::program::{GroupMember, invalid};
use crate::shared::{self, MemoryJoin};
use crate::split::{GroupOrigin, SplitRegistry};
use crate::stream_executor::{
    ExecutorCommand, ExecutorDriver, FailureReporter, Mailbox, StreamExecutor,
};
use crate::transport::{Transport, in_process};

impl ProcessGroup {
    /// Joins over TCP, with TLS if [`GroupConfig::security`] requires it. `peers` holds every rank's
    /// listening address by group rank, this member's own included. Higher ranks dial lower ones; one
    /// connection per pair. If all members are on one host, they share memory unless
    /// [`GroupConfig::transport`] is set otherwise: buffers from `Collectives::allocate` are reduced
    /// in place, others in pieces, and a blocking call runs on the calling thread. All other traffic uses the
    /// connections. With TLS, connections between members on one host are not encrypted after the members have
    /// authenticated each other, unless one of them requests [`TransportChoice::Tcp`]; without such a request, messages of
    /// 128 KiB and more between two of them, except for the first, are read by the receiver in the sender's memory if the
    /// system permits it.
    /// If the members are on several hosts, they exchange which host each is on and measure the cost of
    /// their connections for as long as [`GroupConfig::calibration`] allows; see
    /// [`ProcessGroup::calibrate`].
    ///
    /// # Errors
    /// [`CollectiveError::Unreachable`] when a peer cannot be reached before the deadline, with the peers that this member
    /// refused; [`CollectiveError::Connect`] when a peer refuses this member; [`CollectiveError::Invalid`] for plain
    /// connections to other hosts that were not requested explicitly;
    /// [`CollectiveError::OtherPlan`] on both sides when a setting differs.
    pub fn connect(
        config: GroupConfig,
        listener: TcpListener,
        peers: &[SocketAddr],
    ) -> Result<Self, CollectiveError> {
        Self::connect_by(config, listener, peers, None)
    }

    /// Joins as [`ProcessGroup::connect`] does, with the costs in `known` instead of measured ones if given.
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
        let hello = JoinHello::new(&config, peers.len(), connections);
        let keys = config.security.keys(peers.len())?;
        let is_tls = keys.is_some();
        let limit = config.connect_timeout;
        let give_up = config.give_up.as_ref();
        let keys = (keys, config.transport != TransportChoice::Tcp);
        let pool = config.connection_pool.clone();
        let kept = match &pool {
            Some(pool) => pool.take(peers),
            None => peers.iter().map(|_| None).collect(),
        };
        let mesh = connect::mesh(&hello, keys, listener, peers, kept, limit, give_up);
        let mesh = mesh.map_err(|JoinFailure { error, kept }| {
            if let Some(pool) = &pool {
                pool.keep(peers, kept.into_iter());
            }
            error
        })?;
        let within_host = mesh.within_host();
        let transport = connect::transport(mesh.streams, is_tls, connections)?;
        let origin = GroupOrigin::Sockets(peers[config.rank.index()].ip());
        let limit = config.timeout;
        config.timeout = limit.max(config.connect_timeout);
        let mut group = Self::over(config, peers.len(), transport)?.with_origin(origin);
        group.refused = mesh.refused;
        if let (Some(pool), Link::Others { mailbox, .. }) = (&pool, &group.link) {
            pool.lend_to(mailbox, peers);
        }
        let shared = group.share(limit, known, &within_host);
        if let (Err(_), Some(pool)) = (&shared, &pool) {
            pool.reclaim();
        }
        shared.map(|()| group)
    }

    /// Shares memory with the other members if requested and possible, or else settles the costs that
    /// algorithms are chosen by; later operations get the deadline `limit`. Lends messages to members `within_host`, by rank.
    /// All members call it first.
    fn share(
        &mut self,
        limit: Duration,
        known: Option<CostModel>,
        within_host: &[bool],
    ) -> Result<(), CollectiveError> {
        self.config.timeout = limit;
        let Link::Others { mailbox, .. } = &self.link else {
            return Ok(());
        };
        let mailbox = Arc::clone(mailbox);
        let hosts = Arc::clone(self.chooser.hosts());
        let lends_to = |rank: usize| {
            self.config.transport != TransportChoice::Tcp
                && within_host[rank]
                && hosts.of(rank) == hosts.of(self.member.rank.index())
        };
        let lends = (0..self.member.size).any(lends_to);
        let mark = lends.then(LendingMark::new).flatten();
        let terms = shared::JoinParameters {
            choice: match self.config.transport {
                TransportChoice::Auto if self.chooser.hosts().count() > 1 => TransportChoice::Tcp,
                choice => choice,
            },
            name: &self.config.name,
            limit,
            generation: self.config.generation,
            mailbox: &mailbox,
            lending: mark.as_ref(),
        };
        let MemoryJoin { queue, offers } = shared::join(self, &terms)?;
        if let Some(mark) = mark {
            let offers = offers.into_iter().enumerate();
            let memories =
                offers.map(|(rank, offer)| PeerMemory::open(offer.filter(|_| lends_to(rank))?));
            let memories = memories.collect();
            mailbox.post(ExecutorCommand::Lend { mark, memories })?;
        }
        let shared = queue;
        match known {
            _ if shared.is_some() => {}
            Some(model) => self.chooser.set_model(model),
            None => self.settle_costs()?,
        }
        mailbox.post(ExecutorCommand::Limit(limit))?;
        mailbox.flight().joined(shared.is_none());
        if let Link::Others { shared_queue, .. } = &mut self.link {
            *shared_queue = shared;
        }
        Ok(())
    }

    /// Joins threads of one process, one member per configuration, in the order of their ranks.
    ///
    /// An entry is an error when that member's rank is not its index, or when its settings differ
    /// from those of another member.
    #[must_use]
    pub fn in_process(configs: Vec<GroupConfig>) -> Vec<Result<Self, CollectiveError>> {
        let size = configs.len();
        let hellos: Vec<JoinHello> = configs.iter().map(|c| JoinHello::new(c, size, 1)).collect();
        let transports = in_process::connect(size);
        let nursery = Arc::new(SplitRegistry::default());
        let members = configs.into_iter().zip(transports).enumerate();
        members
            .map(|(place, (config, transport))| {
                if config.rank.index() != place {
                    let problem = format!("rank {} at index {place}", config.rank);
                    return Err(invalid("joining a group", problem));
                }
                for theirs in &hellos {
                    hellos[place].check(theirs)?;
                }
                if size == 1 {
                    return Ok(Self::alone(config));
                }
                let origin = GroupOrigin::Threads(Arc::clone(&nursery));
                Ok(Self::over(config, size, Box::new(transport))?.with_origin(origin))
            })
            .collect()
    }

    /// Runs a group of `size` over a transport whose streams are connected and whose members are
    /// known to agree. Starts the progress thread.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for a rank outside the group, [`CollectiveError::Connect`] when
    /// the system cannot start a thread.
    pub fn over(
        config: GroupConfig,
        size: usize,
        transport: Box<dyn Transport>,
    ) -> Result<Self, CollectiveError> {
        check_rank(&config, size)?;
        let rank = config.rank;
        let member = GroupMember { rank, size };
        let mailbox = Arc::new(Mailbox::new(transport.waker(), member));
        let engine = StreamExecutor::new(
            transport,
            Arc::clone(&mailbox),
            member,
            config.generation,
            config.timeout,
            reporter(&config),
        )
        .lingering(config.linger_failed);
        let driver = Arc::new(ExecutorDriver::new(engine, Arc::clone(&mailbox)));
        let attended = Arc::clone(&driver);
        let progress = thread::Builder::new()
            .name(format!("ronde {} {rank}", config.name))
            .spawn(move || attended.run_progress_thread())
            .map_err(|error| CollectiveError::Connect {
                what: "cannot start the progress thread".to_owned(),
                cause: error.to_string(),
            })?;
        let progress = Some(progress);
        Ok(Self {
            chooser: chooser(&config, size),
            origin: GroupOrigin::Foreign,
            splits: AtomicU64::new(0),
            divided: Mutex::default(),
            config,
            member,
            link: Link::Others {
                mailbox,
                driver,
                progress,
                shared_queue: None,
            },
            refused: Vec::new(),
        })
    }

    /// Returns a group of one: no thread, no socket. Every collective completes at once and returns
    /// its input; messages are refused because there is no receiver.
    #[must_use]
    pub fn alone(mut config: GroupConfig) -> Self {
        config.rank = GroupRank(0);
        let member = GroupMember {
            rank: config.rank,
            size: 1,
        };
        Self {
            chooser: chooser(&config, 1),
            origin: GroupOrigin::Alone,
            splits: AtomicU64::new(0),
            divided: Mutex::default(),
            config,
            member,
            link: Link::Alone(Mutex::new(None)),
            refused: Vec::new(),
        }
    }
}

fn chooser(config: &GroupConfig, size: usize) -> Chooser {
    let hosts = config.hosts.clone().filter(|hosts| hosts.size() == size);
    let hosts = hosts.unwrap_or_else(|| Hosts::one(size));
    Chooser::new(config.algorithm, hosts)
}

fn reporter(config: &GroupConfig) -> Option<FailureReporter> {
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
