//! Measures messages between two members on one host: plain TCP, TLS, and TLS that continues without encryption
//! within the host.
//!
//! `host_messages [ROUNDS]` alternates between three groups and prints, by size, the median and the minimum of the
//! time of a message and its answer in microseconds.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ronde_comm::{Calibration, GroupConfig, ProcessGroup, Security, TransportChoice, bind};
use ronde_core::{Buffer, CollectiveError, Collectives, DType, GroupRank, PointToPoint, Rank, Tag};
use ronde_identity::{Authority, Member, Validity};

type ExampleResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SIZES: [usize; 6] = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// Name of each group, its transport, and whether it uses TLS.
const KINDS: [(&str, TransportChoice, bool); 3] = [
    ("tcp", TransportChoice::Tcp, false),
    ("tls", TransportChoice::Tcp, true),
    ("tls, plain within the host", TransportChoice::Auto, true),
];

#[expect(clippy::disallowed_methods, reason = "an example that measures")]
fn now() -> Instant {
    Instant::now()
}

/// Joins a group of two threads over loopback.
fn join(transport: TransportChoice, is_tls: bool) -> ExampleResult<Vec<ProcessGroup>> {
    let validity = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
    let authority = Authority::new("job", validity)?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bound = [bind(loopback)?, bind(loopback)?];
    let peers = [bound[0].1, bound[1].1];
    let mut joining = Vec::new();
    for (rank, (listener, _)) in (0_u32..).zip(bound) {
        let mut config = GroupConfig::new("messages", "job", GroupRank(rank));
        config.transport = transport;
        config.calibration = Calibration::Off;
        if is_tls {
            let identity = authority.issue(&Member::Rank(Rank(rank)), validity)?;
            config.security = Security::tls(identity);
        }
        joining.push(thread::spawn(move || {
            ProcessGroup::connect(config, listener, &peers)
        }));
    }
    let joined = joining.into_iter().map(|thread| thread.join());
    let joined = joined.map(|group| Ok(group.map_err(|_| "joining panicked")??));
    joined.collect()
}

/// Sends a message and receives its answer, or the opposite on rank 1.
fn exchange(group: &ProcessGroup, bytes: usize) -> Result<(), CollectiveError> {
    let rank = group.rank();
    let peer = GroupRank(1 - rank.0);
    let buffer = Buffer::host(DType::U8, bytes);
    let send = |buffer| group.send(peer, Tag(rank.0), buffer)?.wait();
    let receive = |buffer| group.receive(peer, Tag(peer.0), buffer)?.wait();
    match rank.0 {
        0 => receive(send(buffer)?),
        _ => send(receive(buffer)?),
    }
    .map(drop)
}

/// Returns the sorted seconds of an exchange, by size and kind.
fn measure(groups: &[ProcessGroup], rounds: usize) -> Result<Vec<Vec<Vec<f64>>>, CollectiveError> {
    let mut table = Vec::new();
    for bytes in SIZES {
        let batch = ((1 << 20) / bytes).clamp(1, 50);
        let mut times = vec![Vec::new(); groups.len()];
        for _ in 0..rounds {
            for (group, times) in groups.iter().zip(&mut times) {
                let begin = now();
                for _ in 0..batch {
                    exchange(group, bytes)?;
                }
                times.push(now().duration_since(begin).as_secs_f64() / batch as f64);
            }
        }
        for times in &mut times {
            times.sort_by(f64::total_cmp);
        }
        table.push(times);
    }
    Ok(table)
}

fn main() -> ExampleResult<()> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(25), |text| text.parse())?;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (_, transport, is_tls) in KINDS {
        let mut groups = join(transport, is_tls)?.into_iter();
        first.extend(groups.next());
        second.extend(groups.next());
    }
    let peer = thread::spawn(move || measure(&second, rounds).map(|_| second));
    let table = measure(&first, rounds)?;
    let _second = peer.join().map_err(|_| "the peer panicked")??;
    let mut out = io::stdout();
    for (bytes, times) in SIZES.iter().zip(table) {
        for ((name, ..), times) in KINDS.iter().zip(times) {
            let [median, least] = [times[times.len() / 2], times[0]].map(|s| s * 1e6);
            writeln!(
                out,
                "{bytes:>9} bytes  median {median:>9.1}  minimum {least:>9.1}  {name}"
            )?;
        }
    }
    Ok(())
}
