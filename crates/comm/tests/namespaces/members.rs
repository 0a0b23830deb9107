//! Members as processes: how the tests start them, and their programs.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use ronde_comm::{GroupConfig, ProcessGroup, Security, TransportChoice, bind};
use ronde_core::{CollectiveError, Collectives, CollectivesExt, GroupRank, Rank, ReduceOp};
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_schedule::{Algorithm, Hosts};

use crate::network::{Network, address};

/// How long a member waits for peers in tests without failures.
const LIMIT: Duration = Duration::from_secs(60);
/// The same in tests with failures.
const SHORT: Duration = Duration::from_millis(1500);
/// Prefix of a member's lines to the parent, among the output of the test program.
const MARK: &str = "@ ";

/// The settings of the members, and their programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) is_tls: bool,
    /// Whether each member is on its own host; chosen by the group if `None`.
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether they reduce until a member is gone, or else a few times.
    pub(crate) until_it_fails: bool,
}

/// A member's process, killed when dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn send(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    /// Returns the next line for the parent.
    pub(crate) fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                panic!("a member ended: {:?}", self.child.wait());
            }
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one member per entry of `hosts`, on that host; they listen but have not connected.
pub(crate) fn start(network: &Network, hosts: &[usize], plan: Plan) -> Vec<Process> {
    let hour = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
    let authority = Authority::new("job", hour).unwrap();
    let places: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let start = |rank: usize| {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &network.host(hosts[rank])])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "member", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let identity = authority.issue(&Member::Rank(Rank(rank as u32)), hour);
        let pem = identity.unwrap().to_pem().expose().replace('\n', "|");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = BufReader::new(output);
        let mut process = Process {
            child,
            input,
            output,
        };
        let (places, is_tls) = (places.join(","), plan.is_tls);
        let algorithm = plan.algorithm.map_or("any", Algorithm::name);
        process.send(&format!(
            "{rank} {places} {is_tls} {algorithm} {}",
            plan.until_it_fails
        ));
        process.send(&pem);
        process
    };
    (0..hosts.len()).map(start).collect()
}

/// Sends every member the addresses of all.
pub(crate) fn introduce(members: &mut [Process]) {
    let addresses: Vec<String> = members.iter_mut().map(Process::receive).collect();
    for member in members {
        member.send(&addresses.join(" "));
    }
}

fn say(text: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "{MARK}{text}").unwrap();
}

fn line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Runs a member's process: prints its address, joins, then sums, or reduces until it fails.
pub(crate) fn be() {
    let (words, pem) = (line(), line());
    let words: Vec<&str> = words.split_whitespace().collect();
    let [rank, places, is_tls, algorithm, until_it_fails] = words[..] else {
        panic!("started by hand");
    };
    let rank: u32 = rank.parse().unwrap();
    let places: Vec<usize> = places.split(',').map(|h| h.parse().unwrap()).collect();
    let until_it_fails = until_it_fails == "true";
    let (listener, at) = bind(address(places[rank as usize])).unwrap();
    say(&at.to_string());
    let peers = line();
    let peers = peers.split_whitespace().map(|p| p.parse().unwrap());
    let peers: Vec<SocketAddr> = peers.collect();
    let mut config = GroupConfig::new("test", "job", GroupRank(rank));
    config.timeout = if until_it_fails { SHORT } else { LIMIT };
    // Namespaces share a kernel, so members could share memory; separate hosts cannot.
    config.transport = TransportChoice::Tcp;
    config.security = if is_tls == "true" {
        let pem = pem.replace('|', "\n");
        Security::tls(Identity::from_pem("job", Member::Rank(Rank(rank)), &pem).unwrap())
    } else {
        Security::Plain
    };
    let mut algorithms = Algorithm::ALL.into_iter();
    config.algorithm = algorithms.find(|known| known.name() == algorithm);
    if Hosts::new(&places).count() < places.len() {
        config.hosts = Some(Hosts::new(&places));
        config.algorithm = Some(Algorithm::Hierarchical);
    }
    match ProcessGroup::connect(config, listener, &peers) {
        Err(error) => say(&error.to_string()),
        Ok(group) if until_it_fails => say(&reduce_until_it_fails(&group)),
        Ok(group) => {
            let answer = sums(&group).map_or_else(|error| error.to_string(), |()| "fine".into());
            say(&answer);
        }
    }
    // Stays until all have answered.
    let _ = line();
}

/// Computes sums of many lengths and checks the values; starts on request.
fn sums(group: &ProcessGroup) -> Result<(), CollectiveError> {
    let (rank, size) = (group.rank().0, group.size() as u32);
    for len in [1, 1000, 70_001, 300_000, 2_000_003] {
        let mut values: Vec<u32> = (0..len).map(|i| i * (rank + 1)).collect();
        group.all_reduce(&mut values, ReduceOp::Sum)?;
        let times = size * (size + 1) / 2;
        let right = (0..len).zip(&values);
        let right = right.map(|(i, &value)| value == i.wrapping_mul(times));
        assert!(right.into_iter().all(|right| right), "a wrong sum of {len}");
        if len == 1000 {
            say("running");
            let _on = line();
        }
    }
    group.barrier()
}

/// Reduces until a member is gone; returns the failure in one word and a rank.
fn reduce_until_it_fails(group: &ProcessGroup) -> String {
    let mut values = vec![1_u32; 1 << 20];
    for round in 0.. {
        let Err(error) = group.all_reduce(&mut values, ReduceOp::Max) else {
            if round == 3 {
                say("running");
            }
            continue;
        };
        return match error {
            CollectiveError::Timeout {
                peer, operation, ..
            } => format!("late {peer} in {operation}"),
            CollectiveError::PeerLost {
                peer, operation, ..
            } => format!("lost {peer} in {operation}"),
            other => other.to_string(),
        };
    }
    unreachable!("rounds do not end")
}
