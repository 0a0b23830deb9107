//! [`on_local_ranks`]: connects some threads of this process as the ranks of a group, to measure what workers of one host take.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::{CollectiveError, GroupRank};

use crate::config::CommSection;
use crate::error::TrainError;

/// Runs a function as each of a number of ranks, which are connected by a run file, and returns the results by rank.
///
/// # Errors
/// When the ranks cannot be connected, the error of any rank, and a rank that panics.
pub(crate) fn on_local_ranks<T: Send>(
    section: &CommSection,
    ranks: usize,
    run: impl Fn(ProcessGroup) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bound = (0..ranks)
        .map(|_| bind(loopback))
        .collect::<Result<Vec<_>, _>>();
    let bound = bound.map_err(|source| TrainError::Connect { rank: 0, source })?;
    let peers: Vec<SocketAddr> = bound.iter().map(|(_, address)| *address).collect();
    thread::scope(|scope| {
        let (peers, run) = (&peers, &run);
        let ranks = (0..).zip(bound).map(|(rank, (listener, _))| {
            scope.spawn(move || {
                let group = connect(section, rank, listener, peers);
                run(group.map_err(|source| TrainError::Connect { rank, source })?)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let joined = ranks.into_iter().map(|rank| {
            rank.join().unwrap_or_else(|_| {
                Err(TrainError::Impossible {
                    problem: "a measured worker has panicked".to_owned(),
                    hint: "this is a bug of ronde; please report it".to_owned(),
                })
            })
        });
        joined.collect()
    })
}

fn connect(
    section: &CommSection,
    rank: u32,
    listener: TcpListener,
    peers: &[SocketAddr],
) -> Result<ProcessGroup, CollectiveError> {
    let job = format!("measure-{}", std::process::id());
    let mut config = GroupConfig::new("measure", job, GroupRank(rank));
    config.security = Security::PlainLoopbackOnly;
    config.transport = section.transport;
    config.algorithm = section.algorithm;
    ProcessGroup::connect(config, listener, peers)
}
