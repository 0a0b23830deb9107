//! Speed of plain TCP and of TLS on loopback, in turns: two ranks as threads, one core each.

#![expect(clippy::print_stdout, reason = "the table is what it is for")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::{
    Buffer, CollectiveError, Collectives, DType, GroupRank, Operation, PointToPoint, Rank,
    ReduceOp, Tag,
};
use ronde_identity::{Authority, Member, Validity};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 7;

fn groups(secure: bool) -> Result<Vec<ProcessGroup>, Failure> {
    let day = Validity::from_now(SystemTime::now(), Duration::from_secs(86_400));
    let authority = Authority::new("measure", day)?;
    let bound = [
        bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?,
        bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?,
    ];
    let peers = [bound[0].1, bound[1].1];
    let mut joining = Vec::new();
    for (rank, (listener, _)) in (0..).zip(bound) {
        let mut config = GroupConfig::new("measure", "measure", GroupRank(rank));
        if secure {
            let identity = authority.issue(&Member::Rank(Rank(rank)), day)?;
            config.security = Security::tls(identity);
        }
        joining.push(thread::spawn(move || {
            ProcessGroup::connect(config, listener, &peers)
        }));
    }
    let joined = joining.into_iter().map(|joining| joining.join());
    let joined = joined.map(|group| Ok(group.map_err(|_| "joining panicked")??));
    joined.collect()
}

/// Seconds of one message of `bytes` from rank 0 to rank 1.
fn message(groups: &[ProcessGroup], bytes: usize) -> Result<f64, CollectiveError> {
    let received = groups[1].receive(GroupRank(0), Tag(0), Buffer::host(DType::U8, bytes))?;
    let buffer = Buffer::host(DType::U8, bytes);
    let start = Instant::now();
    let sent = groups[0].send(GroupRank(1), Tag(0), buffer)?;
    received.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    sent.wait().map(|_| seconds)
}

/// Seconds of one all_reduce of `bytes`.
fn all_reduce(groups: &[ProcessGroup], bytes: usize) -> Result<f64, CollectiveError> {
    let buffers = [0, 1].map(|_| Buffer::host(DType::F32, bytes / 4));
    let start = Instant::now();
    let mut works = Vec::new();
    for (group, buffer) in groups.iter().zip(buffers) {
        works.push(group.start(Operation::AllReduce(ReduceOp::Sum), buffer)?);
    }
    for work in works {
        work.wait()?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> Result<(), Failure> {
    type Measured = fn(&[ProcessGroup], usize) -> Result<f64, CollectiveError>;
    let (plain, secure) = (groups(false)?, groups(true)?);
    println!("operation      bytes   plain MB/s   TLS MB/s   TLS/plain");
    let measured: [(&str, Measured); 2] = [("message", message), ("all_reduce", all_reduce)];
    for (name, run) in measured {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20] {
            let (mut plain_s, mut secure_s) = (Vec::new(), Vec::new());
            for _ in 0..=ROUNDS {
                plain_s.push(run(&plain, bytes)?);
                secure_s.push(run(&secure, bytes)?);
            }
            let speed = |seconds| bytes as f64 / 1e6 / median(seconds);
            let (plain, secure) = (speed(plain_s), speed(secure_s));
            let ratio = secure / plain;
            println!("{name:10} {bytes:9} {plain:12.0} {secure:10.0} {ratio:11.2}");
        }
    }
    Ok(())
}
