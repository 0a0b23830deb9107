//! Connections that are kept from one generation to the next.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ronde_comm::testing::run_ranks;
use ronde_comm::{
    ConnectionPool, GroupConfig, JoinCancellation, ProcessGroup, Security, TransportChoice, bind,
};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, Generation, GroupRank,
    PointToPoint, Rank, ReduceOp, Tag,
};
use ronde_identity::{Authority, Member};

use crate::meshes::now;

const LIMIT: Duration = Duration::from_secs(60);

/// A process that takes part in several generations.
struct Worker {
    identity: u32,
    listener: TcpListener,
    address: SocketAddr,
    pool: ConnectionPool,
}

/// How the members of a job reach each other.
struct Job {
    authority: Option<Authority>,
    connections: usize,
    transport: TransportChoice,
}

impl Job {
    fn all() -> Vec<Self> {
        let authority = || Some(Authority::new("job", now()).unwrap());
        let job = |authority, connections, transport| Self {
            authority,
            connections,
            transport,
        };
        vec![
            job(None, 1, TransportChoice::Tcp),
            job(authority(), 1, TransportChoice::Tcp),
            job(authority(), 1, TransportChoice::Auto),
            job(authority(), 3, TransportChoice::Tcp),
            job(None, 2, TransportChoice::SharedMemory),
        ]
    }

    fn config(&self, generation: u64, rank: usize, members: &[&Worker], pool: bool) -> GroupConfig {
        let mut config = GroupConfig::new("dp", "job", GroupRank(rank as u32));
        config.generation = Generation(generation);
        config.timeout = LIMIT;
        config.connections = Some(self.connections);
        config.transport = self.transport;
        config.plan.set("run.seed", "42");
        if let Some(authority) = &self.authority {
            let member = |worker: &&Worker| Member::Rank(Rank(worker.identity));
            let identity = authority.issue(&member(&members[rank]), now()).unwrap();
            let all = members.iter().map(member).collect();
            config.security = Security::tls_among(identity, all);
        }
        config.connection_pool = pool.then(|| members[rank].pool.clone());
        config
    }

    /// Joins the members of a generation. If `is_closed`, dialling fails: they listen on other ports.
    fn join(
        &self,
        generation: u64,
        members: &[&Worker],
        is_closed: bool,
    ) -> Vec<Result<ProcessGroup, CollectiveError>> {
        let peers: Vec<SocketAddr> = members.iter().map(|worker| worker.address).collect();
        let joining: Vec<_> = (0..members.len())
            .map(|rank| {
                let mut config = self.config(generation, rank, members, true);
                let listener = if is_closed {
                    config.connect_timeout = Duration::from_secs(20);
                    bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().0
                } else {
                    members[rank].listener.try_clone().unwrap()
                };
                let peers = peers.clone();
                thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
            })
            .collect();
        let joined = joining.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    }
}

fn workers(count: u32) -> Vec<Worker> {
    let worker = |identity| {
        let (listener, address) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let pool = ConnectionPool::default();
        Worker {
            identity,
            listener,
            address,
            pool,
        }
    };
    (0..count).map(worker).collect()
}

/// Checks a collective, and messages of several lengths between all members.
fn check(groups: Vec<ProcessGroup>) -> Vec<ProcessGroup> {
    run_ranks(groups, LIMIT, |group| {
        let (rank, size) = (group.rank().0, group.size() as u32);
        for len in [1, 1000, 300_000] {
            let mut values = vec![rank; len];
            group.all_reduce(&mut values, ReduceOp::Sum)?;
            assert_eq!(values, vec![size * (size - 1) / 2; len]);
            let next = GroupRank((rank + 1) % size);
            let before = GroupRank((rank + size - 1) % size);
            let sent = group.send(next, Tag(3), Buffer::copy_of(&vec![rank; len]))?;
            let received = group.receive(before, Tag(3), Buffer::host(DType::U32, len))?;
            assert_eq!(received.wait()?.as_slice::<u32>(), vec![before.0; len]);
            sent.wait()?;
        }
        Ok::<_, CollectiveError>(group)
    })
}

fn unwrapped(groups: Vec<Result<ProcessGroup, CollectiveError>>) -> Vec<ProcessGroup> {
    let groups = groups.into_iter().map(|group| group.unwrap());
    groups.collect()
}

#[test]
fn survivors_continue_their_connections_with_all_that_is_under_way_on_them() {
    for job in Job::all() {
        let all = workers(4);
        let members: Vec<&Worker> = all.iter().collect();
        let mut groups = check(unwrapped(job.join(1, &members, false)));
        // A long message without a receive, and one that its sender has not finished.
        let unread = Buffer::copy_of(&vec![1_u32; 4 << 20]);
        let sent = groups[2].send(GroupRank(0), Tag(9), unread);
        let short = groups[3].send(GroupRank(0), Tag(8), Buffer::copy_of(&[1_u8; 100]));
        // Rank 1 dies; the others meet again, where they cannot be dialled.
        groups.remove(1).abort("it dies");
        for group in &groups {
            group.barrier().unwrap_err();
        }
        drop((sent, short));
        let members = [&all[3], &all[0], &all[2]];
        let next = check(unwrapped(job.join(2, &members, true)));
        // The groups of a generation that ended in good order hand over their connections too.
        let last = check(unwrapped(job.join(3, &members[1..], true)));
        drop((groups, next, last));
    }
}

#[test]
fn new_members_and_members_that_lost_their_connections_are_dialled() {
    for job in Job::all() {
        let mut all = workers(4);
        let members: Vec<&Worker> = all[..3].iter().collect();
        let mut groups = check(unwrapped(job.join(1, &members, false)));
        // One process is replaced by another that listens on the same address; another one joins.
        drop(groups.remove(1));
        all[1].pool = ConnectionPool::default();
        let members = [&all[3], &all[2], &all[1], &all[0]];
        let next = check(unwrapped(job.join(2, &members, false)));
        let members = [&all[0], &all[1], &all[2], &all[3]];
        let last = check(unwrapped(job.join(3, &members, true)));
        drop((groups, next, last));
    }
}

#[test]
fn connections_survive_a_generation_that_never_formed() {
    for job in Job::all() {
        let all = workers(3);
        let members: Vec<&Worker> = all.iter().collect();
        let mut groups = check(unwrapped(job.join(1, &members, false)));
        drop(groups.pop());
        // Two members try to meet the third one, until they learn of a newer generation. One tries twice.
        let peers: Vec<SocketAddr> = members.iter().map(|worker| worker.address).collect();
        for (rank, generations) in [(0, 2..4), (1, 2..3)] {
            for generation in generations {
                let checks = AtomicUsize::new(0);
                let mut config = job.config(generation, rank, &members, true);
                config.give_up = Some(JoinCancellation::when(move || {
                    checks.fetch_add(1, Ordering::SeqCst) == 3
                }));
                let listener = bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().0;
                ProcessGroup::connect(config, listener, &peers).unwrap_err();
            }
        }
        let last = check(unwrapped(job.join(4, &members[..2], true)));
        drop((groups, last));
    }
}

#[test]
fn a_kept_connection_to_another_member_than_expected_is_closed() {
    let job = &Job::all()[1];
    let mut all = workers(2);
    let mut groups = check(unwrapped(job.join(
        1,
        &all.iter().collect::<Vec<_>>(),
        false,
    )));
    // The address now belongs to another member, with another certificate.
    drop(groups.pop());
    all[1].identity = 7;
    all[1].pool = ConnectionPool::default();
    let members: Vec<&Worker> = all.iter().collect();
    let next = check(unwrapped(job.join(2, &members, false)));
    drop((groups, next));
}
