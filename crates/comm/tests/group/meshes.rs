//! Groups of both transports for tests.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use ronde_comm::testing::in_process_groups;
use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
use ronde_core::{CollectiveError, GroupRank};

/// Which transport.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    InProcess,
    Tcp,
    Shared,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::InProcess, Self::Tcp, Self::Shared];
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
    let mut configs = configs(size, timeout);
    for config in &mut configs {
        config.transport = match kind {
            Kind::Shared => TransportChoice::SharedMemory,
            _ => TransportChoice::Tcp,
        };
    }
    match kind {
        Kind::InProcess => in_process_groups(configs),
        Kind::Tcp | Kind::Shared => join(configs)
            .into_iter()
            .map(|group| group.expect("members that agree can join"))
            .collect(),
    }
}

/// Every member joins over TCP on its own thread.
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
