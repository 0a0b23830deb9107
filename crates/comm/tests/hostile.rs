//! Peers that send arbitrary bytes: errors, never a panic, and no memory for announced bytes that do not arrive.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use ronde_comm::testing::run_ranks;
use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::{CollectiveError, CollectivesExt, GroupRank, Rank, ReduceOp};
use ronde_identity::{Authority, Member, Validity};

const LIMIT: Duration = Duration::from_secs(60);
/// Limit for threads, buffers and the allocator during the test; every announced size is far above it.
const RESERVED_MAX: u64 = 4 << 30;
const PREFIX_BYTES: usize = 16;

/// Returns the peak size of this process's address space, in bytes, used or not.
fn reserved() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("a number") << 10
}

fn config(rank: u32) -> GroupConfig {
    let mut config = GroupConfig::new("test", "job", GroupRank(rank));
    config.timeout = Duration::from_millis(40);
    // Joining continues after the hello: the members settle whether they share memory.
    config.connect_timeout = Duration::from_millis(100);
    config
}

type Joining = thread::JoinHandle<Result<ProcessGroup, CollectiveError>>;

/// Starts a member of a group of two whose peer is a bare connection that has sent its hello.
fn with_bare_peer() -> (Joining, TcpStream) {
    let (listener, at) =
        bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("loopback can be listened on");
    let nobody: SocketAddr = (Ipv4Addr::LOCALHOST, 9).into();
    let joining = thread::spawn(move || ProcessGroup::connect(config(0), listener, &[at, nobody]));
    let mut peer = TcpStream::connect(at).expect("the member listens");
    let mut prefix = [0; PREFIX_BYTES];
    peer.read_exact(&mut prefix)
        .expect("the member sends its hello first");
    let len = u32::from_le_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]);
    let mut hello = vec![0; len as usize];
    peer.read_exact(&mut hello).expect("a complete hello");
    // The same hello, from the other rank.
    hello[8..12].copy_from_slice(&1_u32.to_le_bytes());
    peer.write_all(&prefix).expect("the member reads it");
    peer.write_all(&hello).expect("the member reads it");
    (joining, peer)
}

/// Encodes a frame's header.
fn header(kind: u8, sequence: u64, call: [u8; 4], len: u64, bytes: u64) -> Vec<u8> {
    let mut out = b"rnd".to_vec();
    out.push(kind);
    out.extend(0_u64.to_le_bytes());
    out.extend(sequence.to_le_bytes());
    out.extend(call);
    out.extend(0_u64.to_le_bytes());
    out.extend(len.to_le_bytes());
    out.extend(bytes.to_le_bytes());
    out
}

fn promised() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1_u64..200, 1_u64 << 33..1 << 41, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn promises_take_no_memory_and_nothing_panics(
        frames in prop::collection::vec(
            (1_u8..6, 0_u64..4, (1_u8..9, 0_u8..9, 0_u8..5, 0_u8..5), promised(), promised(),
             prop::collection::vec(any::<u8>(), 0..200)),
            1..6,
        ),
    ) {
        let before = reserved();
        let (joining, mut peer) = with_bare_peer();
        for (kind, sequence, call, len, bytes, payload) in frames {
            let (what, dtype, op, algorithm) = call;
            let head = header(kind, sequence, [what, dtype, op, algorithm], len, bytes);
            // The member may close the connection at any time.
            let _gone = peer.write_all(&head).and_then(|()| peer.write_all(&payload));
        }
        let outcome = joining.join().expect("joining does not panic").and_then(|group| {
            group.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum)?;
            group.barrier()
        });
        let error = outcome.expect_err("a bare connection is not a member").to_string();
        prop_assert!(!error.contains("progress thread has ended"), "{}", error);
        drop(peer);
        prop_assert!(reserved() - before < RESERVED_MAX);
    }
}

/// Returns first bytes that an unknown peer may send.
fn greeting() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        bytes(),
        // A hello that announces more bytes than follow.
        (any::<u32>(), 70_000_u32.., bytes()).prop_map(|(version, len, bytes)| {
            let numbers = [version.to_le_bytes(), len.to_le_bytes()].concat();
            [b"rondehi\n".to_vec(), numbers, bytes].concat()
        }),
        // A TLS record, of a handshake or arbitrary.
        (20_u8..26, 0_u8..5, any::<u16>(), bytes()).prop_map(|(kind, minor, len, bytes)| {
            [vec![kind, 3, minor], len.to_be_bytes().to_vec(), bytes].concat()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn strangers_that_say_anything_are_waited_past(
        greetings in prop::collection::vec(greeting(), 1..12),
        is_tls in any::<bool>(),
    ) {
        let before = reserved();
        let hour = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new("job", hour).unwrap();
        let members: Vec<_> = (0..2)
            .map(|rank| {
                let mut config = config(rank);
                config.timeout = LIMIT;
                config.connect_timeout = LIMIT;
                if is_tls {
                    let identity = authority.issue(&Member::Rank(Rank(rank)), hour).unwrap();
                    config.security = Security::tls(identity);
                }
                (config, bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap())
            })
            .collect();
        let peers: Vec<SocketAddr> = members.iter().map(|(_, (_, at))| *at).collect();
        // They are in the listener's queue before the member is.
        let strangers: Vec<_> = greetings
            .iter()
            .map(|bytes| {
                let mut stranger = TcpStream::connect(peers[0]).unwrap();
                stranger.write_all(bytes).unwrap();
                stranger
            })
            .collect();
        let joining = members.into_iter().map(|(config, (listener, _))| {
            let peers = peers.clone();
            thread::spawn(move || ProcessGroup::connect(config, listener, &peers))
        });
        let joining: Vec<_> = joining.collect();
        let groups = joining.into_iter().map(|joining| joining.join().unwrap());
        let groups: Vec<ProcessGroup> = groups.collect::<Result<_, _>>().unwrap();
        prop_assert!(groups[0].refused().len() <= strangers.len());
        run_ranks(groups, LIMIT, |group| {
            let mut values = [1_u32; 9];
            group.all_reduce(&mut values, ReduceOp::Sum)?;
            assert_eq!(values, [2; 9]);
            Ok::<_, CollectiveError>(())
        });
        drop(strangers);
        prop_assert!(reserved() - before < RESERVED_MAX);
    }
}
