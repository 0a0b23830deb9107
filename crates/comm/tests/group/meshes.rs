//! Groups of all transports for tests.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, SystemTime};

use ronde_comm::testing::in_process_groups;
use ronde_comm::{GroupConfig, ProcessGroup, Security, TransportChoice, bind};
use ronde_core::{CollectiveError, GroupRank, Rank};
use ronde_identity::{Authority, Member, Validity};
use ronde_schedule::Hosts;

/// The transport of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    InProcess,
    Tcp,
    Tls,
    /// TLS over several connections to each member.
    Several,
    Shared,
    /// As if on two hosts: memory is shared within each.
    TwoHosts,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::InProcess,
        Self::Tcp,
        Self::Tls,
        Self::Several,
        Self::Shared,
        Self::TwoHosts,
    ];
}

/// Returns a validity of about an hour for certificates.
pub(crate) fn now() -> Validity {
    Validity::from_now(SystemTime::now(), Duration::from_secs(3600))
}

/// Gives every member a certificate of one authority.
pub(crate) fn secure(configs: &mut [GroupConfig]) -> Authority {
    let authority = Authority::new("job", now()).expect("an authority can be made");
    for (rank, config) in configs.iter_mut().enumerate() {
        let member = Member::Rank(Rank(rank as u32));
        let identity = authority.issue(&member, now());
        config.security = Security::tls(identity.expect("an identity can be issued"));
    }
    authority
}

pub(crate) fn configs(size: usize, timeout: Duration) -> Vec<GroupConfig> {
    (0..size)
        .map(|rank| {
            let mut config = GroupConfig::new("test", "job", GroupRank(rank as u32));
            config.timeout = timeout;
            config
        })
        .collect()
}

pub(crate) fn groups(kind: Kind, size: usize, timeout: Duration) -> Vec<ProcessGroup> {
    groups_with_timeouts(kind, &vec![timeout; size])
}

/// Returns groups as [`groups`] does, with each member's own deadline of operations.
pub(crate) fn groups_with_timeouts(kind: Kind, timeouts: &[Duration]) -> Vec<ProcessGroup> {
    let mut configs = configs(timeouts.len(), Duration::ZERO);
    for (config, timeout) in configs.iter_mut().zip(timeouts) {
        config.timeout = *timeout;
        config.transport = match kind {
            Kind::Shared => TransportChoice::SharedMemory,
            Kind::TwoHosts => TransportChoice::Auto,
            _ => TransportChoice::Tcp,
        };
    }
    if matches!(kind, Kind::Tls | Kind::Several) {
        secure(&mut configs);
    }
    if matches!(kind, Kind::TwoHosts) {
        let hosts: Vec<bool> = (0..configs.len()).map(|r| 2 * r >= configs.len()).collect();
        for config in &mut configs {
            config.hosts = Some(Hosts::new(&hosts));
        }
    }
    if matches!(kind, Kind::Several) {
        for config in &mut configs {
            config.connections = Some(3);
        }
    }
    match kind {
        Kind::InProcess => in_process_groups(configs),
        Kind::Tcp | Kind::Tls | Kind::Several | Kind::Shared | Kind::TwoHosts => join(configs)
            .into_iter()
            .map(|group| group.expect("members that agree can join"))
            .collect(),
    }
}

/// Joins every member over TCP on its own thread.
pub(crate) fn join(configs: Vec<GroupConfig>) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let bound: Vec<_> = configs
        .iter()
        .map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("loopback can be listened on"))
        .collect();
    let peers: Vec<_> = bound.iter().map(|(_, at)| *at).collect();
    let joining: Vec<_> = configs
        .into_iter()
        .zip(bound)
        .map(|(config, (listener, _))| {
            let peers = peers.clone();
            thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
        })
        .collect();
    joining
        .into_iter()
        .map(|thread| thread.join().expect("joining does not panic"))
        .collect()
}
