//! Groups inside another program's process: nothing in the process changes, and nothing remains afterwards.
//!
//! A separate test program with one test, because it counts resources of the whole process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
use ronde_core::{Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp};

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: usize = 3;

#[expect(
    unsafe_code,
    reason = "the standard library does not expose signal handlers"
)]
// SAFETY: as declared by the C library; `old` is longer than its structure.
unsafe extern "C" {
    fn sigaction(signal: i32, new: *const u8, old: *mut [u64; 32]) -> i32;
}

/// Returns the action of each signal: handler, mask, flags and restorer as the kernel keeps them. The C
/// library's mask is longer than the kernel's, and the rest of it is undefined.
fn signals() -> Vec<[u64; 4]> {
    let of = |signal: i32| {
        let mut action = [0_u64; 32];
        #[expect(unsafe_code, reason = "see above")]
        // SAFETY: nothing is changed, and there is space for the result.
        let _unknown = unsafe { sigaction(signal, std::ptr::null(), &raw mut action) };
        let [handler, mask, flags, restorer] = [0, 1, 17, 18].map(|word| action[word]);
        [handler, mask, flags & u64::from(u32::MAX), restorer]
    };
    (1..=64).map(of).collect()
}

/// Properties of the process that the surrounding program could notice.
#[derive(Debug, PartialEq)]
struct Process {
    threads: usize,
    descriptors: usize,
    shared_mappings: usize,
    masks: Vec<String>,
    folder: std::path::PathBuf,
    variables: Vec<(std::ffi::OsString, std::ffi::OsString)>,
}

impl Process {
    fn now() -> Self {
        let count = |path| std::fs::read_dir(path).expect("Linux has /proc").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc");
        // Of this thread: the main thread may still be starting this one, with all signals blocked.
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux has /proc");
        let masks = status.lines().filter(|line| line.starts_with("Sig"));
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            shared_mappings: maps.lines().filter(|line| line.contains("memfd")).count(),
            // Pending signals are counted in the first of them.
            masks: masks
                .filter(|line| !line.starts_with("SigQ"))
                .map(str::to_owned)
                .collect(),
            folder: std::env::current_dir().expect("there is a current directory"),
            variables: std::env::vars_os().collect(),
        }
    }
}

/// Makes a group over loopback, each member on a thread made by its owner.
fn joined(name: &str, transport: TransportChoice) -> Vec<Arc<ProcessGroup>> {
    let bound: Vec<_> = (0..SIZE)
        .map(|_| bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("loopback can be listened on"))
        .collect();
    let peers: Vec<_> = bound.iter().map(|(_, at)| *at).collect();
    let members = (0..).zip(bound).map(|(rank, (listener, _))| {
        let mut config = GroupConfig::new(name, "job", GroupRank(rank));
        config.timeout = LIMIT;
        config.transport = transport;
        let peers = peers.clone();
        thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
    });
    let members: Vec<_> = members.collect();
    let joined = members.into_iter().map(|thread| {
        let group = thread.join().expect("joining does not panic");
        Arc::new(group.expect("members that agree can join"))
    });
    joined.collect()
}

/// Runs operations on one member, alternating between two threads that ronde did not start.
fn use_from_two_threads(group: &ProcessGroup) {
    for round in 0..20_u32 {
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let mut buffer = group.allocate(DType::U32, 1000).expect("there is memory");
                buffer.as_mut_slice::<u32>().fill(round);
                group.start(Operation::AllReduce(ReduceOp::Sum), buffer)
            });
            // Started on one thread, waited for on another.
            let work = first.join().expect("no panic").expect("it starts");
            let sum = work.wait().expect("all members take part");
            assert_eq!(sum.as_slice::<u32>(), [round * SIZE as u32; 1000]);
            let second = scope.spawn(|| group.all_gather(&[group.rank().0, round]));
            let all = second
                .join()
                .expect("no panic")
                .expect("all members take part");
            let expected: Vec<u32> = (0..SIZE as u32).flat_map(|rank| [rank, round]).collect();
            assert_eq!(all, expected);
        });
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "threads that have ended leave /proc a little later"
)]
fn groups_in_a_foreign_process_change_nothing_of_it_and_leave_nothing_behind() {
    let (signals_before, before) = (signals(), Process::now());
    assert!(signals_before.iter().any(|action| *action != [0; 4]));
    let groups = [
        joined("one", TransportChoice::Tcp),
        joined("two", TransportChoice::SharedMemory),
        joined("three", TransportChoice::SharedMemory),
    ]
    .concat();
    let meanwhile = Process::now();
    assert!(meanwhile.threads >= before.threads + groups.len());
    assert!(meanwhile.shared_mappings > before.shared_mappings);
    assert_eq!(meanwhile.masks, before.masks);
    let users = groups.into_iter().map(|group| {
        thread::spawn(move || {
            use_from_two_threads(&group);
            drop(group);
        })
    });
    let users: Vec<_> = users.collect();
    for user in users {
        user.join().expect("no panic");
    }
    for (signal, (now, before)) in (1..).zip(signals().iter().zip(&signals_before)) {
        assert_eq!(now, before, "the action of signal {signal} has changed");
    }
    let end = Instant::now() + LIMIT;
    while Process::now() != before && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Process::now(), before);
}
