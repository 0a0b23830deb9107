//! Prints how fast an all-reduce of random f32 is over TCP on loopback; ranks are processes.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ronde_comm::{GroupConfig, ProcessGroup, bind};
use ronde_core::philox::Stream;
use ronde_core::{Buffer, CollectivesExt, GroupRank, Operation, ReduceOp};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a measurement owns its clock")]
fn now() -> Instant {
    Instant::now()
}

fn random(len: usize, seed: u32) -> Buffer {
    let mut words = vec![0_u32; len];
    Stream::new([seed, 0, 0, 0]).fill(&mut words);
    let values: Vec<f32> = words.iter().map(|&w| w as f32 / u32::MAX as f32).collect();
    Buffer::copy_of(&values)
}

/// Tells where it listens, hears where all do, measures; rank 0 prints.
fn rank(rank: u32) -> Outcome<()> {
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    writeln!(io::stdout(), "{at}")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let peers: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
    let config = GroupConfig::new("speed", "speed", GroupRank(rank));
    let group = ProcessGroup::connect(config, listener, &peers?)?;
    for exponent in [12, 16, 20, 22, 24, 26] {
        let bytes = 1_usize << exponent;
        let rounds = (1 << 27 >> exponent).clamp(5, 200);
        let inputs: Vec<Buffer> = (0..4)
            .map(|seed| random(bytes / 4, seed + 4 * rank))
            .collect();
        let mut buffers = inputs;
        let mut times = Vec::new();
        for round in 0..rounds + 2 {
            let buffer = buffers.remove(0);
            group.barrier()?;
            let start = now();
            let buffer = group.run(Operation::AllReduce(ReduceOp::Sum), buffer)?;
            if round >= 2 {
                times.push(start.elapsed().as_secs_f64());
            }
            buffers.push(buffer);
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        if rank == 0 {
            writeln!(
                io::stdout(),
                "{:>9} bytes {:10.1} us {:6.3} GB/s",
                bytes,
                median * 1e6,
                bytes as f64 / median / 1e9
            )?;
        }
    }
    Ok(())
}

fn start(size: usize) -> Outcome<Vec<Child>> {
    let program = std::env::current_exe()?;
    let child = |rank: usize| {
        Command::new(&program)
            .arg(rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    Ok((0..size).map(child).collect::<Result<_, _>>()?)
}

fn main() -> Outcome<()> {
    if let Some(number) = std::env::args().nth(1) {
        return rank(number.parse()?);
    }
    for size in [2, 4] {
        writeln!(
            io::stdout(),
            "{size} ranks, TCP on loopback; bytes of the buffer per second"
        )?;
        let mut children = start(size)?;
        let mut outputs = Vec::new();
        let mut addresses = String::new();
        for child in &mut children {
            let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
            output.read_line(&mut addresses)?;
            outputs.push(output);
        }
        let line = addresses.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
        for child in &mut children {
            child
                .stdin
                .take()
                .ok_or("no input")?
                .write_all(line.as_bytes())?;
        }
        for output in outputs {
            for line in output.lines() {
                writeln!(io::stdout(), "{}", line?)?;
            }
        }
        for mut child in children {
            child.wait()?;
        }
    }
    Ok(())
}
