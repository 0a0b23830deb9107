//! How fast an all-reduce of random f32 is over TCP on loopback; ranks are processes.
//!
//! Without arguments it prints a table for 2 and 4 ranks. As `tcp_speed rank R CONNECTIONS tls|plain`
//! it is one rank for a script that measures others in turns: it prints where it listens, reads the
//! addresses of all ranks in a line, then lines `BYTES ROUNDS`, and answers each with the median
//! seconds of a blocking call.

use std::io::{self, BufRead, BufReader, Lines, StdinLock, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
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

/// Median seconds of one call, and the values of all ranks checked in the first one.
fn measure(group: &ProcessGroup, rank: u32, bytes: usize, rounds: usize) -> Outcome<f64> {
    let len = (bytes / 4).max(1);
    let mut ones = Buffer::copy_of(&vec![rank as f32 + 1.0; len]);
    ones = group.run(Operation::AllReduce(ReduceOp::Sum), ones)?;
    let size = group.payload_ranks();
    let expected = (size * (size + 1) / 2) as f32;
    if ones.as_slice::<f32>().iter().any(|&value| value != expected) {
        return Err("a wrong sum".into());
    }
    let mut buffers: Vec<Buffer> = (0..2).map(|seed| random(len, seed + 2 * rank)).collect();
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
    Ok(times[times.len() / 2])
}

trait Ranks {
    fn payload_ranks(&self) -> usize;
}

impl Ranks for ProcessGroup {
    fn payload_ranks(&self) -> usize {
        ronde_core::Collectives::size(self)
    }
}

/// One rank; serves until its input ends.
fn rank(rank: u32) -> Outcome<()> {
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    writeln!(io::stdout(), "{at}")?;
    let mut lines: Lines<StdinLock<'_>> = io::stdin().lines();
    let line = lines.next().ok_or("no addresses")??;
    let peers: Result<Vec<SocketAddr>, _> = line.split_whitespace().map(str::parse).collect();
    let mut config = GroupConfig::new("speed", "speed", GroupRank(rank));
    config.transport = TransportChoice::Tcp;
    let group = ProcessGroup::connect(config, listener, &peers?)?;
    for line in lines {
        let line = line?;
        let (bytes, rounds) = line.split_once(' ').ok_or("BYTES ROUNDS")?;
        let seconds = measure(&group, rank, bytes.parse()?, rounds.parse()?)?;
        writeln!(io::stdout(), "{seconds}")?;
    }
    Ok(())
}

fn start(size: usize) -> Outcome<Vec<Child>> {
    let program = std::env::current_exe()?;
    let child = |rank: usize| {
        Command::new(&program)
            .args(["rank", &rank.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    Ok((0..size).map(child).collect::<Result<_, _>>()?)
}

/// A rank's input and output.
type Talk = (ChildStdin, BufReader<ChildStdout>);

fn tell(talks: &mut [Talk], line: &str) -> Outcome<()> {
    for (input, _) in talks {
        writeln!(input, "{line}")?;
    }
    Ok(())
}

fn hear(talks: &mut [Talk]) -> Outcome<Vec<String>> {
    let mut heard = Vec::new();
    for (_, output) in talks {
        let mut line = String::new();
        output.read_line(&mut line)?;
        heard.push(line.trim().to_owned());
    }
    Ok(heard)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [_, number, ..] = arguments.as_slice() {
        return rank(number.parse()?);
    }
    for size in [2, 4] {
        writeln!(
            io::stdout(),
            "{size} ranks, TCP on loopback; bytes of the buffer per second"
        )?;
        let mut children = start(size)?;
        let mut talks = Vec::new();
        for child in &mut children {
            let input = child.stdin.take().ok_or("no input")?;
            let output = BufReader::new(child.stdout.take().ok_or("no output")?);
            talks.push((input, output));
        }
        let addresses = hear(&mut talks)?.join(" ");
        tell(&mut talks, &addresses)?;
        for exponent in [3, 12, 16, 20, 22, 24, 26] {
            let bytes = 1_usize << exponent;
            let rounds = (1 << 27 >> exponent).clamp(5, 300);
            tell(&mut talks, &format!("{bytes} {rounds}"))?;
            let seconds: f64 = hear(&mut talks)?[0].parse()?;
            let (micros, speed) = (seconds * 1e6, bytes as f64 / seconds / 1e9);
            writeln!(
                io::stdout(),
                "{bytes:>9} bytes {micros:10.1} us {speed:6.3} GB/s"
            )?;
        }
        drop(talks);
        for mut child in children {
            child.wait()?;
        }
    }
    Ok(())
}
