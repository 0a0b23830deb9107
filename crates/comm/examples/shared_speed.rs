//! Times all_reduce over shared memory between processes of this host, beside a plain
//! read-add-write loop over the same bytes.
//!
//! `shared_speed [ranks] [bytes]` starts its own ranks. Random data, every result checked; large
//! sizes go through several buffers, so that they come from memory and not from a cache.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures and prints"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
use ronde_core::exact::ExactSum;
use ronde_core::philox::Stream;
use ronde_core::{Buffer, Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp};

type Error = Box<dyn std::error::Error>;

/// Bytes of all buffers of a large size together: more than the caches of usual hosts.
const TURN_BYTES: usize = 256 << 20;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "member") {
        return member(args[1].parse()?, args[2].parse()?, args.get(3));
    }
    let sizes: Vec<usize> = match args.first() {
        Some(size) => vec![size.parse()?],
        None => vec![2, 4],
    };
    for size in sizes {
        start(size, args.get(1))?;
    }
    Ok(())
}

/// Starts the members, passes their addresses round, and waits for them.
fn start(size: usize, bytes: Option<&String>) -> Result<(), Error> {
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = (0..size)
        .map(|rank| {
            let (rank, size) = (rank.to_string(), size.to_string());
            let mut command = Command::new(&program);
            command.args(["member", &rank, &size]).args(bytes);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut readers = Vec::new();
    let mut addresses = String::new();
    for child in &mut children {
        let mut reader = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        addresses += line.trim();
        addresses += " ";
        readers.push(reader);
    }
    for child in &mut children {
        writeln!(child.stdin.take().ok_or("no input")?, "{addresses}")?;
    }
    for line in readers.remove(0).lines() {
        println!("{}", line?);
    }
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a member failed".into());
        }
    }
    Ok(())
}

fn member(rank: usize, size: usize, only: Option<&String>) -> Result<(), Error> {
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    println!("{at}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let peers: Vec<SocketAddr> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let mut config = GroupConfig::new("speed", "speed", GroupRank(rank as u32));
    config.transport = TransportChoice::SharedMemory;
    let group = ProcessGroup::connect(config, listener, &peers)?;
    if rank == 0 {
        println!("{size} ranks; microseconds (GB/s of one buffer), medians");
        println!(
            "     bytes        shared memory           any memory            exact sum      plain loop"
        );
    }
    let sizes: Vec<usize> = match only {
        Some(bytes) => vec![bytes.parse()?],
        None => (3..=26)
            .filter(|p| [3, 6, 10, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 26].contains(p))
            .map(|p| 1 << p)
            .collect(),
    };
    for bytes in sizes {
        let shared = median(&group, bytes, Kind::Shared)?;
        let any = median(&group, bytes, Kind::Any)?;
        let exact = median(&group, bytes, Kind::Exact)?;
        let plain = plain(&group, bytes)?;
        if rank == 0 {
            let cell = |time: Duration| {
                let us = time.as_secs_f64() * 1e6;
                format!("{us:10.1} ({:6.2})", bytes as f64 / us / 1e3)
            };
            println!(
                "{bytes:10} {} {} {} {}",
                cell(shared),
                cell(any),
                cell(exact),
                cell(plain)
            );
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Shared,
    Any,
    Exact,
}

fn rounds(bytes: usize) -> usize {
    match bytes {
        0..=0x4000 => 4001,
        0x4001..=0x10_0000 => 501,
        0x10_0001..=0x100_0000 => 51,
        _ => 21,
    }
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut values = vec![0.0; len];
    Stream::new([seed, 1, 2, 3]).fill_uniform(&mut values);
    values
}

/// The median time of this rank.
fn median(group: &ProcessGroup, bytes: usize, kind: Kind) -> Result<Duration, Error> {
    let (len, size) = (bytes / 4, group.size());
    let turns = (TURN_BYTES / size / bytes).clamp(1, 4);
    let inputs: Vec<Vec<f32>> = (0..size as u32).map(|rank| values(len, rank)).collect();
    let mine = &inputs[group.rank().index()];
    let mut buffers: Vec<Buffer> = (0..turns)
        .map(|_| match kind {
            Kind::Any => Buffer::host(DType::F32, len),
            _ => group.allocate(DType::F32, len),
        })
        .collect();
    let sum = ExactSum::new((0..=size as u32).collect()).ok_or("bounds")?;
    let mut times = Vec::new();
    for round in 0..rounds(bytes) {
        let mut buffer = buffers.remove(0);
        buffer.as_mut_slice::<f32>().copy_from_slice(mine);
        let operation = match kind {
            Kind::Exact => Operation::ExactSum(sum.clone()),
            _ => Operation::AllReduce(ReduceOp::Sum),
        };
        if round % 64 == 0 {
            group.barrier()?;
        }
        let begin = Instant::now();
        let buffer = group.run(operation, buffer)?;
        times.push(begin.elapsed());
        let step = if round % 16 == 0 { 1 } else { 4093 };
        for i in (0..len).step_by(step) {
            let (got, expected) = (
                buffer.as_slice::<f32>()[i],
                inputs.iter().map(|v| v[i]).sum::<f32>(),
            );
            if (got - expected).abs() > 1e-5 {
                return Err(
                    format!("{bytes} bytes, element {i}: {got} instead of {expected}").into(),
                );
            }
        }
        buffers.push(buffer);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Each rank reads its share of as many runs as there are ranks, adds, and writes the sum to all of
/// them, in memory of its own: the bound.
fn plain(group: &ProcessGroup, bytes: usize) -> Result<Duration, Error> {
    let (share, size) = ((bytes / 4).div_ceil(group.size()), group.size());
    let turns = (TURN_BYTES / size / bytes).clamp(1, 4);
    let run = |seed| values(share, seed);
    let set = |_| (0..size as u32).map(run).collect::<Vec<_>>();
    let mut sets: Vec<Vec<Vec<f32>>> = (0..turns).map(set).collect();
    let mut times = Vec::new();
    for round in 0..rounds(bytes).min(201) {
        group.barrier()?;
        let begin = Instant::now();
        let (first, rest) = sets[round % turns].split_at_mut(1);
        let Some((last, between)) = rest.split_last_mut() else {
            return Err("a group of one".into());
        };
        for other in between.iter() {
            add(&mut first[0], other);
        }
        for (sum, other) in first[0].iter_mut().zip(last) {
            *sum += *other;
            *other = *sum;
        }
        for other in between {
            other.copy_from_slice(&first[0]);
        }
        std::hint::black_box(&mut sets);
        // All ranks together, as in the operation: there may be more of them than cores.
        group.barrier()?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn add(into: &mut [f32], from: &[f32]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into += *from;
    }
}
