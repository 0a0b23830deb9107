//! [`Groups`]: one group of all ranks per transport and algorithm, derived from a first one.

use std::net::TcpListener;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, Security, TransportChoice};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation, Rank,
};
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_protocol::Assignment;
use ronde_schedule::{Algorithm, Hosts};

use crate::cases::{OperationCase, OperationCases};
use crate::error::BenchError;
use crate::hub::START_MAX;
use crate::settings::{BenchTransport, Settings};

/// The time limit of a measured operation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for waiting between turns, while competitors are measured.
const BETWEEN_TURNS: Duration = Duration::from_secs(15 * 60);
/// The time for which the costs of TLS are measured.
const CALIBRATION: Duration = Duration::from_millis(30);
/// The validity of a run's certificates.
const CERTIFICATES: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A transport and a requested algorithm.
type GroupKey = (BenchTransport, Option<Algorithm>);

/// The groups of one rank.
pub(crate) struct Groups {
    /// The group for coordination and for waiting between turns, over TCP so that waiting ranks
    /// sleep.
    first: ProcessGroup,
    /// The host of each rank: simulated, or as found.
    hosts: Hosts,
    groups: Vec<(GroupKey, ProcessGroup)>,
}

impl Groups {
    /// Connects all ranks once per transport and algorithm that a run needs.
    ///
    /// # Errors
    /// The ranks cannot reach each other, or a transport is not available.
    pub(crate) fn connect(
        assignment: &Assignment,
        listener: Option<TcpListener>,
        security: Security,
        settings: &Settings,
    ) -> Result<Self, BenchError> {
        let rank = GroupRank(assignment.rank.0);
        let mut config = GroupConfig::new("bench", &assignment.job, rank);
        config.generation = assignment.generation;
        config.transport = TransportChoice::Tcp;
        config.timeout = BETWEEN_TURNS;
        config.security = security;
        if settings.against.iter().any(|one| one.is_foreign()) {
            // Where another launcher starts the ranks, rank 0 starts the competitors while the others connect.
            config.connect_timeout += START_MAX;
        }
        let listener = listener.ok_or_else(|| {
            BenchError::channel("join the group", "this worker was started without peers")
        })?;
        let first =
            ProcessGroup::connect(config, listener, &assignment.peers).map_err(|source| {
                BenchError::Connect {
                    what: "all ranks".to_owned(),
                    source,
                }
            })?;
        let hosts = match settings.hosts {
            0 | 1 => Hosts::new(&first.hosts()),
            _ => settings.layout(assignment.world_size.len()),
        };
        let mut all = Self {
            first,
            hosts,
            groups: Vec::new(),
        };
        all.split(assignment, settings)?;
        Ok(all)
    }

    fn split(&mut self, assignment: &Assignment, settings: &Settings) -> Result<(), BenchError> {
        let hosts = self.hosts.clone();
        let mut keys: Vec<GroupKey> = Vec::new();
        for &kind in &settings.operations {
            let cases = OperationCases::of(settings, kind, &hosts).cases;
            for key in cases.iter().map(key) {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        let tls = keys
            .iter()
            .any(|(transport, _)| *transport == BenchTransport::Tls);
        let identity = if tls {
            Some(self.identity(assignment)?)
        } else {
            None
        };
        for key @ (transport, algorithm) in keys {
            let group = self.first.split_with(Some(0), assignment.rank.0, |config| {
                config.name = format!(
                    "bench-{transport}-{}",
                    algorithm.map_or("auto", |a| a.name())
                );
                config.timeout = TIMEOUT;
                config.algorithm = algorithm;
                config.hosts = Some(hosts.clone());
                config.transport = match transport {
                    BenchTransport::Auto => TransportChoice::Auto,
                    BenchTransport::SharedMemory => TransportChoice::SharedMemory,
                    BenchTransport::Tcp | BenchTransport::Tls => TransportChoice::Tcp,
                };
                match (transport, &identity) {
                    (BenchTransport::Tls, Some(identity)) => {
                        config.security = Security::tls(identity.clone());
                    }
                    (BenchTransport::Tcp, _) => config.security = Security::Plain,
                    _ => {}
                }
            });
            let what = format!(
                "{transport} with algorithm {}",
                algorithm.map_or("auto", |a| a.name())
            );
            let group = group.map_err(|source| BenchError::Connect {
                what: what.clone(),
                source,
            })?;
            let group = group.ok_or_else(|| {
                BenchError::channel(format!("connect {what}"), "no group was created")
            })?;
            if transport == BenchTransport::Tls {
                // Sub-groups inherit the measured costs of plain connections.
                let calibrated = group.calibrate(CALIBRATION);
                calibrated.map_err(|source| BenchError::Connect { what, source })?;
            }
            self.groups.push((key, group));
        }
        Ok(())
    }

    /// Returns this rank's certificate, issued by an authority that rank 0 creates for this run
    /// only.
    fn identity(&self, assignment: &Assignment) -> Result<Identity, BenchError> {
        let (job, rank) = (&assignment.job, assignment.rank);
        let mut texts = Vec::new();
        if rank == Rank(0) {
            let validity = Validity::from_now(ronde_clock::date(), CERTIFICATES);
            let authority = Authority::new(job, validity)?;
            for rank in assignment.world_size.ranks() {
                let identity = authority.issue(&Member::Rank(rank), validity)?;
                texts.push(identity.to_pem().expose().as_bytes().to_vec());
            }
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let len = self.agree(longest as u64)? as usize;
        let mut all = Vec::new();
        for mut text in texts {
            // The rest of the buffer after the last line is unused.
            text.resize(len, b'\n');
            all.extend(text);
        }
        let mut mine = vec![0_u8; len];
        self.first
            .scatter(&all, &mut mine, GroupRank(0))
            .map_err(between)?;
        let text = String::from_utf8_lossy(&mine);
        Ok(Identity::from_pem(job, Member::Rank(rank), &text)?)
    }

    /// Returns the group in which a case is measured.
    pub(crate) fn of(&self, case: &OperationCase) -> Option<&ProcessGroup> {
        let wanted = key(case);
        let found = self.groups.iter().find(|(key, _)| *key == wanted);
        found.map(|(_, group)| group)
    }

    /// Sends rank 0's number to every rank.
    pub(crate) fn agree(&self, number: u64) -> Result<u64, BenchError> {
        let mut number = [number.cast_signed()];
        let told = self.first.broadcast(&mut number, GroupRank(0));
        told.map(|()| number[0].cast_unsigned()).map_err(between)
    }

    /// Waits, sleeping, until all ranks have arrived.
    pub(crate) fn wait(&self) -> Result<(), BenchError> {
        let nothing = Buffer::host(DType::U8, 0);
        let waited = self.first.run(Operation::Barrier, nothing);
        waited.map(drop).map_err(between)
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub(crate) fn rank(&self) -> usize {
        self.first.rank().index()
    }
}

fn key(case: &OperationCase) -> GroupKey {
    (case.transport, case.algorithm.0)
}

fn between(source: CollectiveError) -> BenchError {
    BenchError::Operation {
        case: "between two turns".to_owned(),
        source,
    }
}
