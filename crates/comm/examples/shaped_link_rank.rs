//! One rank of `benchmarks/shaped_links.py`: measures an all-reduce of random f32 between hosts.
//!
//! `shaped_link_rank RANK ADDRESS [--connections N] [--identity FILE] [--algorithm NAME]`
//! prints its listening address, reads the addresses of all ranks from one line, prints `joined` when the
//! group has measured its links, then reads lines `BYTES ROUNDS`, and answers each with the median seconds of a
//! blocking call and the group's choice. It uses TLS with an identity from
//! `shaped_link_rank identities RANKS DIRECTORY`.

use std::io::{self, Lines, StdinLock, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use ronde_comm::{GroupConfig, ProcessGroup, Security, bind};
use ronde_core::philox::Stream;
use ronde_core::{
    Buffer, Collectives, CollectivesExt, DType, GroupRank, Operation, Rank, ReduceOp,
};
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_schedule::Algorithm;

const JOB: &str = "shaped-links";

type RankResult<T> = Result<T, Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the value after `--name`.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).map(String::as_str)
}

/// Writes a new identity for each rank.
fn identities(ranks: u32, directory: &str) -> RankResult<()> {
    let day = Validity::from_now(SystemTime::now(), Duration::from_secs(86_400));
    let authority = Authority::new(JOB, day)?;
    for rank in 0..ranks {
        let pem = authority.issue(&Member::Rank(Rank(rank)), day)?.to_pem();
        std::fs::write(format!("{directory}/{rank}.pem"), pem.expose())?;
    }
    Ok(())
}

fn configuration(rank: u32, arguments: &[String]) -> RankResult<GroupConfig> {
    let mut config = GroupConfig::new("speed", JOB, GroupRank(rank));
    // Namespaces share a kernel, but count as hosts: memory is shared only within each.
    let connections = option(arguments, "--connections").map(str::parse);
    config.connections = connections.transpose()?;
    config.security = match option(arguments, "--identity") {
        Some(file) => {
            let pem = std::fs::read_to_string(file)?;
            Security::tls(Identity::from_pem(JOB, Member::Rank(Rank(rank)), &pem)?)
        }
        None => Security::Plain,
    };
    if let Some(name) = option(arguments, "--algorithm") {
        let found = Algorithm::ALL.into_iter().find(|a| a.name() == name);
        config.algorithm = Some(found.ok_or("no such algorithm")?);
    }
    Ok(config)
}

/// Returns the median seconds of an all-reduce.
fn measure(group: &ProcessGroup, bytes: usize, rounds: usize) -> RankResult<f64> {
    let (rank, size) = (group.rank().0, group.size());
    let len = (bytes / 4).max(1);
    let ones = Buffer::copy_of(&vec![rank as f32 + 1.0; len]);
    let sums = group.run(Operation::AllReduce(ReduceOp::Sum), ones)?;
    let expected = (size * (size + 1) / 2) as f32;
    if sums
        .as_slice::<f32>()
        .iter()
        .any(|&value| value != expected)
    {
        return Err("a wrong sum".into());
    }
    let mut values = vec![0.0_f32; len];
    Stream::new([rank, 0, 0, 0]).fill_uniform(&mut values);
    let mut buffer = Buffer::copy_of(&values);
    let mut times = Vec::new();
    for _ in 0..rounds {
        group.barrier()?;
        let start = now();
        buffer = group.run(Operation::AllReduce(ReduceOp::Sum), buffer)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> RankResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (rank, address) = match arguments.as_slice() {
        [what, ranks, directory] if what == "identities" => {
            return identities(ranks.parse()?, directory);
        }
        [rank, address, ..] => (rank.parse()?, address.parse()?),
        _ => return Err("see the head of this file for the usage".into()),
    };
    let (listener, at) = bind(address)?;
    writeln!(io::stdout(), "{at}")?;
    let mut lines: Lines<StdinLock<'_>> = io::stdin().lines();
    let line = lines.next().ok_or("no addresses")??;
    let peers: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
    let group = ProcessGroup::connect(configuration(rank, &arguments)?, listener, &peers?)?;
    writeln!(io::stdout(), "joined")?;
    for line in lines {
        let line = line?;
        let (bytes, rounds) = line.split_once(' ').ok_or("BYTES ROUNDS")?;
        let bytes: usize = bytes.parse()?;
        let median = measure(&group, bytes, rounds.parse()?)?;
        let sum = Operation::AllReduce(ReduceOp::Sum);
        let choice = group.choice(&sum, DType::F32, bytes / 4);
        writeln!(io::stdout(), "{median} {}", choice.reason)?;
    }
    Ok(())
}
