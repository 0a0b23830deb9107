//! Joining over TCP: refusals name the difference on both sides; unknown connections do no harm.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::meshes::{Kind, configs, groups, join};
use ronde_comm::testing::run_ranks;
use ronde_comm::{GroupConfig, JoinCancellation, ProcessGroup, bind};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, Generation, Operation, Recovery, ReduceOp,
};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn collectives_over_tcp_and_tls_equal_the_reference() {
    let plain = [2, 3, 4, 5, 8].map(|size| (Kind::Tcp, size));
    let secure = [2, 3, 5].map(|size| (Kind::Tls, size));
    for (kind, size) in plain.into_iter().chain(secure) {
        run_ranks(groups(kind, size, LIMIT), LIMIT, |group| {
            let (rank, size) = (group.rank().0, group.size() as u32);
            for len in [0_usize, 1, 65, 5000, 400_000] {
                let mut values = vec![rank; len];
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                assert_eq!(values, vec![size * (size - 1) / 2; len]);
                let mine = vec![rank; len * (rank as usize % 2)];
                let all: Vec<u32> = (0..size)
                    .flat_map(|r| vec![r; len * (r as usize % 2)])
                    .collect();
                assert_eq!(group.all_gather(&mine)?, all);
                let whole = Buffer::copy_of(&vec![rank; len * size as usize]);
                let part = group.run(Operation::ReduceScatter(ReduceOp::Max), whole)?;
                assert_eq!(part.as_slice::<u32>(), vec![size - 1; len]);
            }
            let (bytes, payload) = (group.bytes_sent(), group.payload_bytes_sent());
            assert!(payload > 0 && bytes > payload);
            group.barrier()
        });
    }
}

/// Checks that every member reports the difference when the settings of `odd` differ.
fn refused(size: usize, odd: usize, change: impl Fn(&mut GroupConfig), expected: [&str; 2]) {
    let mut configs = configs(size, LIMIT);
    for config in &mut configs {
        config.plan.set("run.seed", "42");
    }
    change(&mut configs[odd]);
    let in_process = ProcessGroup::in_process(configs.clone());
    for outcomes in [join(configs), in_process] {
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let text = match outcome.err() {
                Some(error @ CollectiveError::OtherPlan { .. }) => error.to_string(),
                other => panic!("rank {rank}: {other:?}"),
            };
            let [here, there] = expected;
            assert!(
                text.contains(here) && text.contains(there),
                "rank {rank}: {text}"
            );
        }
    }
}

#[test]
fn another_plan_or_job_is_refused_on_both_sides_by_name() {
    refused(
        2,
        1,
        |c| c.plan.set("run.seed", "43"),
        ["run.seed is 4", "there"],
    );
    refused(3, 0, |c| c.plan.set("cpu", "avx2"), ["cpu is", "avx2"]);
    refused(2, 0, |c| c.job = "other".to_owned(), ["job is", "other"]);
    let long = "x".repeat(100_000);
    refused(
        2,
        1,
        |c| c.plan.set("long", &long),
        ["long is", "xxx"].map(|_| "there"),
    );
}

/// Returns two listeners and their addresses.
fn two() -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let bound = (0..2).map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a port"));
    bound.unzip()
}

fn member(rank: usize, generation: u64) -> GroupConfig {
    let mut config = configs(2, LIMIT).remove(rank);
    config.generation = Generation(generation);
    config
}

#[test]
fn a_member_of_an_older_generation_learns_that_it_has_ended_and_does_no_harm() {
    // Once the older member dials, once it is dialled.
    for older in [0, 1] {
        let (listeners, peers) = two();
        let newer = 1 - older;
        let mine = listeners[newer].try_clone().unwrap();
        let to = peers.clone();
        let waiting =
            thread::spawn(move || ProcessGroup::connect(member(newer, 5), mine, &to).unwrap());
        let mine = listeners[older].try_clone().unwrap();
        let error = ProcessGroup::connect(member(older, 4), mine, &peers).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("group rank") && told.contains("generation 5"),
            "{told}"
        );
        assert_eq!(error.recovery(), Recovery::Rejoin);
        // It learns of the new generation and joins again, with the member that has waited.
        let mine = listeners[older].try_clone().unwrap();
        let group = ProcessGroup::connect(member(older, 5), mine, &peers).unwrap();
        let groups = vec![group, waiting.join().unwrap()];
        run_ranks(groups, LIMIT, |group| group.barrier());
    }
}

#[test]
fn joining_can_be_cancelled() {
    for rank in [0, 1] {
        let (listeners, peers) = two();
        let listener = listeners[rank].try_clone().unwrap();
        let wanted = Arc::new(AtomicBool::new(false));
        let mut config = member(rank, 0);
        let asked = Arc::clone(&wanted);
        config.give_up = Some(JoinCancellation::when(move || {
            asked.swap(true, Ordering::SeqCst)
        }));
        // The other member never connects; its listener accepts the connection and sends nothing.
        let error = ProcessGroup::connect(config, listener, &peers).unwrap_err();
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert!(wanted.load(Ordering::SeqCst));
    }
}

#[test]
fn unknown_connections_to_the_port_do_no_harm() {
    let bound: Vec<_> = (0..2)
        .map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap())
        .collect();
    let peers: Vec<_> = bound.iter().map(|(_, at)| *at).collect();
    // These are in the listener's queue before the member is.
    let mut rude = TcpStream::connect(peers[0]).unwrap();
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent = TcpStream::connect(peers[0]).unwrap();
    drop(TcpStream::connect(peers[0]).unwrap());
    let joining: Vec<_> = configs(2, LIMIT)
        .into_iter()
        .zip(bound)
        .map(|(config, (listener, _))| {
            let peers = peers.clone();
            thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
        })
        .collect();
    let groups = joining
        .into_iter()
        .map(|thread| thread.join().unwrap().unwrap())
        .collect();
    run_ranks(groups, LIMIT, |group| group.barrier());
    drop((rude, silent));
}

#[test]
fn a_peer_that_never_connects_is_named() {
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let (absent, nobody) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    drop(absent);
    for (rank, peers, expected) in [
        (0, [at, nobody], "group ranks 1"),
        (1, [nobody, at], "group rank 0"),
    ] {
        let mut config = configs(2, LIMIT).remove(rank);
        config.connect_timeout = Duration::from_millis(100);
        let listener = listener.try_clone().unwrap();
        match ProcessGroup::connect(config, listener, &peers) {
            Err(error @ CollectiveError::Unreachable { peer, .. }) => {
                assert_eq!(peer.index(), 1 - rank);
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}
