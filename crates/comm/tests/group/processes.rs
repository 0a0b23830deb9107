//! Members as separate processes, with one killed or stopped in the middle.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
use ronde_core::philox::Stream;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation,
    PointToPoint, ReduceOp, Tag,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::matrix::{cells, run_cells};
use crate::soak::{self, Plan, soak};

/// Length of the buffers that are reduced when a member is lost, in elements.
const LEN: usize = 1 << 20;
/// Lengths used in turn in the mode `stream`, in elements: in the first line of the slot, after it, copied
/// or reduced in place, in one piece and in many.
const LENS: [usize; 5] = [2, 1000, 16 << 10, 100_003, 1 << 18];
/// Size of a buffer for which a member without memory has no space, in bytes.
const BIG_LEN: usize = 96 << 20;
/// Length of the messages in the mode `message_killed`, in elements.
const MESSAGE_LEN: usize = 4 << 20;
/// A user that may not read the memory of the user of the tests.
const OTHER_USER: u32 = 65_534;
/// How long a stopped member is waited for.
const SHORT: Duration = Duration::from_millis(700);
/// How long the parent waits for a line.
const LIMIT: Duration = Duration::from_secs(60);

/// The parameters of the soak test between processes.
const SOAK: Plan = Plan {
    seed: 5,
    operations: 1000,
};

/// A member's process and the connection to it.
struct Member {
    child: Child,
    line: BufReader<TcpStream>,
}

impl Member {
    fn send(&mut self, text: &str) {
        writeln!(self.line.get_mut(), "{text}").unwrap();
    }

    fn receive(&mut self) -> String {
        let mut text = String::new();
        self.line.read_line(&mut text).unwrap();
        text.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts this test program once per rank, in the role of [`member`], and connects the ranks.
fn start(size: usize, mode: &str) -> Vec<Member> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut members: Vec<Member> = (0..size)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", "processes::member", "--ignored", "--nocapture"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null());
            if mode == "messages_of_two_users" && rank == 1 {
                command.uid(OTHER_USER);
            }
            let mut child = command.spawn().unwrap();
            let at = listener.local_addr().unwrap();
            writeln!(child.stdin.take().unwrap(), "{at} {rank} {size} {mode}").unwrap();
            let (line, _) = listener.accept().unwrap();
            line.set_read_timeout(Some(LIMIT)).unwrap();
            let line = BufReader::new(line);
            Member { child, line }
        })
        .collect();
    let addresses: Vec<String> = members.iter_mut().map(Member::receive).collect();
    for member in &mut members {
        member.send(&addresses.join(" "));
    }
    members
}

/// Runs each process.
#[test]
#[ignore = "the role of the processes that the other tests here start"]
fn member() {
    let mut text = String::new();
    std::io::stdin().read_line(&mut text).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let [parent, rank, size, mode] = words[..] else {
        panic!("started by hand");
    };
    let mut line = BufReader::new(TcpStream::connect(parent).unwrap());
    let (listener, at) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    writeln!(line.get_mut(), "{at}").unwrap();
    let mut text = String::new();
    line.read_line(&mut text).unwrap();
    let peers: Vec<SocketAddr> = text
        .split_whitespace()
        .map(|at| at.parse().unwrap())
        .collect();
    let mut config = GroupConfig::new("test", "job", GroupRank(rank.parse().unwrap()));
    config.transport = match mode {
        "soak_over_tcp" | "no_memory_over_tcp" => TransportChoice::Tcp,
        "messages_of_two_users" => TransportChoice::Auto,
        _ => TransportChoice::SharedMemory,
    };
    config.timeout = if mode == "stopped" { SHORT } else { LIMIT };
    let group = ProcessGroup::connect(config, listener, &peers).unwrap();
    assert_eq!(group.size(), size.parse::<usize>().unwrap());
    let answer = match mode {
        "all" => run_cells(&group, &cells(&DType::ALL, &[0, 1, 67, 1001]))
            .map_or_else(|error| error.to_string(), |()| "fine".to_owned()),
        "no_memory" | "no_memory_over_tcp" => without_memory(&group),
        "no_memory_to_allocate" => without_memory_to_allocate(&group),
        "messages" | "messages_of_two_users" => exchange_messages(&group),
        "message_killed" => messages_until_it_fails(&group, &mut line),
        "stream" => until_it_fails(&group, &mut line, &LENS),
        "soak_over_tcp" | "soak" => soak(&group, SOAK.or_environment())
            .map_or_else(|problem| problem, |()| "fine".to_owned()),
        _ => until_it_fails(&group, &mut line, &[LEN]),
    };
    writeln!(line.get_mut(), "{answer}").unwrap();
    // Stays until all have answered.
    let _ = line.read_line(&mut text);
}

/// Limits the address space of rank 1 to little more than it uses.
fn limit_memory(group: &ProcessGroup) {
    use rustix::process::{Resource, Rlimit, setrlimit};

    group.barrier().unwrap();
    if group.rank() == GroupRank(1) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let kilobytes: u64 = used.unwrap().trim_end_matches("kB").trim().parse().unwrap();
        let limit = (kilobytes << 10) + (16 << 20);
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(Resource::As, limit).unwrap();
    }
    group.barrier().unwrap();
}

/// Returns which rank has no memory according to an error.
fn rank_without_memory(error: CollectiveError) -> String {
    match error {
        CollectiveError::OutOfMemory { rank, bytes, .. } if bytes >= BIG_LEN => {
            format!("no memory on {rank}")
        }
        other => other.to_string(),
    }
}

/// Runs an operation for which rank 1 has no memory: over shared memory it must map the buffer of rank 0,
/// over streams it must allocate the result.
fn without_memory(group: &ProcessGroup) -> String {
    let (buffer, operation) = if group.shares_memory() {
        let buffer = match group.rank().0 {
            0 => group.allocate(DType::U8, BIG_LEN).unwrap(),
            _ => Buffer::host(DType::U8, BIG_LEN),
        };
        (buffer, Operation::AllReduce(ReduceOp::Sum))
    } else {
        (Buffer::host(DType::U8, BIG_LEN), Operation::AllGather)
    };
    limit_memory(group);
    match group.run(operation, buffer) {
        Ok(_) => "there is memory".to_owned(),
        Err(error) => rank_without_memory(error),
    }
}

/// Allocates a buffer for which rank 1 has no memory, while rank 0 waits for it.
fn without_memory_to_allocate(group: &ProcessGroup) -> String {
    limit_memory(group);
    let allocated = match group.rank().0 {
        1 => group.allocate(DType::U8, BIG_LEN).map(drop),
        _ => Ok(()),
    };
    match allocated.and_then(|()| group.barrier()) {
        Ok(()) => "there is memory".to_owned(),
        Err(error) => rank_without_memory(error),
    }
}

/// Exchanges messages of many lengths with the other member.
fn exchange_messages(group: &ProcessGroup) -> String {
    let (me, other) = (group.rank().0, GroupRank(1 - group.rank().0));
    let lens = [2, 16 << 10, 1 << 20, 5, 1_000_003, 0, 20_000];
    let exchange = || {
        let mut works = Vec::new();
        for (number, len) in (0_u32..).zip(lens.into_iter().cycle().take(40)) {
            let message = Buffer::copy_of(&vec![2 * number + me; len]);
            let sent = group.send(other, Tag(1), message)?;
            let receive = group.receive(other, Tag(1), Buffer::host(DType::U32, len))?;
            works.push((number, sent, receive));
        }
        for (number, sent, receive) in works {
            sent.wait()?;
            let got = receive.wait()?;
            let expected = 2 * number + other.0;
            assert!(got.as_slice::<u32>().iter().all(|&x| x == expected));
        }
        group.barrier()
    };
    exchange().map_or_else(|error| error.to_string(), |()| "fine".to_owned())
}

/// Exchanges long messages until the other member is gone; returns the failure in one word and a rank.
fn messages_until_it_fails(group: &ProcessGroup, line: &mut BufReader<TcpStream>) -> String {
    let other = GroupRank(1 - group.rank().0);
    let exchange = |round: u32| {
        let message = Buffer::copy_of(&vec![round; MESSAGE_LEN]);
        let receive = group.receive(other, Tag(1), Buffer::host(DType::U32, MESSAGE_LEN))?;
        let sent = group.send(other, Tag(1), message)?;
        let got = receive.wait()?;
        assert!(got.as_slice::<u32>().iter().all(|&x| x == round));
        sent.wait().map(drop)
    };
    for round in 0_u32.. {
        match exchange(round) {
            Ok(()) if round == 3 => writeln!(line.get_mut(), "running").unwrap(),
            Ok(()) => {}
            Err(CollectiveError::PeerLost {
                peer, operation, ..
            }) => return format!("lost {peer} in {operation}"),
            Err(other) => return other.to_string(),
        }
    }
    unreachable!("rounds do not end")
}

/// Reduces until a member is gone; returns the failure in one word and a rank.
fn until_it_fails(group: &ProcessGroup, line: &mut BufReader<TcpStream>, lens: &[usize]) -> String {
    let mut kept = group.allocate(DType::U32, LEN).expect("there is memory");
    kept.as_mut_slice::<u32>().fill(77);
    let (rank, size) = (group.rank().0, group.size() as u32);
    for round in 0_u32.. {
        let mut buffer = group
            .allocate(DType::U32, lens[round as usize % lens.len()])
            .expect("there is memory");
        buffer.as_mut_slice::<u32>().fill(round + rank);
        let operation = Operation::AllReduce(ReduceOp::Sum);
        // Alternates between shared and private memory.
        let outcome = if round % 2 == 0 {
            group.run(operation, buffer)
        } else {
            group.run(operation, Buffer::copy_of(buffer.as_slice::<u32>()))
        };
        let error = match outcome {
            Ok(result) => {
                let expected = size * round + size * (size - 1) / 2;
                assert!(result.as_slice::<u32>().iter().all(|&x| x == expected));
                if round == 3 {
                    writeln!(line.get_mut(), "running").unwrap();
                }
                continue;
            }
            Err(error) => error,
        };
        assert!(
            kept.as_slice::<u32>().iter().all(|&x| x == 77),
            "the caller's private memory is unchanged"
        );
        assert!(group.barrier().is_err(), "the group is over");
        return match error {
            CollectiveError::PeerLost {
                peer, operation, ..
            } => format!("lost {peer} in {operation}"),
            CollectiveError::Timeout {
                peer, operation, ..
            } => format!("late {peer} in {operation}"),
            CollectiveError::Aborted { reason, .. } => format!("told {reason}"),
            other => other.to_string(),
        };
    }
    unreachable!("rounds do not end")
}

#[test]
fn all_operations_between_processes_equal_the_reference() {
    for size in [2, 3, 5] {
        for member in &mut start(size, "all") {
            assert_eq!(member.receive(), "fine");
        }
    }
}

#[test]
fn messages_between_processes_arrive_whole_and_in_order() {
    for member in &mut start(2, "messages") {
        assert_eq!(member.receive(), "fine");
    }
}

#[test]
fn messages_arrive_between_processes_of_which_one_cannot_read_the_other() {
    if !rustix::process::getuid().is_root() {
        return ronde_testing::skip("only root can start a process of another user");
    }
    for member in &mut start(2, "messages_of_two_users") {
        assert_eq!(member.receive(), "fine");
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the kill must happen at a random time"
)]
fn a_member_killed_while_its_messages_are_read_is_named_and_gives_no_wrong_message() {
    let mut words = [0; 20];
    Stream::new([51, 1, 2, 3]).fill(&mut words);
    for (kill, draw) in words.into_iter().enumerate() {
        let mut members = start(2, "message_killed");
        for member in &mut members {
            assert_eq!(member.receive(), "running");
        }
        std::thread::sleep(Duration::from_micros(u64::from(draw % 50_000)));
        let victim = kill % 2;
        members[victim].child.kill().unwrap();
        let answer = members[1 - victim].receive();
        // Between two messages no operation is running.
        let expected = [
            format!("lost {victim} in message"),
            format!("lost {victim} in between operations"),
        ];
        assert!(expected.contains(&answer), "kill {kill}: {answer}");
    }
}

#[test]
fn random_operations_between_processes_equal_the_reference() {
    for mode in ["soak", "soak_over_tcp"] {
        for (rank, member) in start(soak::SIZE, mode).iter_mut().enumerate() {
            let answer = member.receive();
            let problem = SOAK.or_environment().replay(
                "random_operations_between_processes_equal_the_reference",
                format!("{mode}, rank {rank}: {answer}"),
            );
            assert!(answer == "fine", "{problem}");
        }
    }
}

#[test]
fn a_member_without_memory_is_named_by_itself_and_its_peers() {
    for mode in ["no_memory", "no_memory_over_tcp", "no_memory_to_allocate"] {
        let mut members = start(2, mode);
        for (rank, member) in members.iter_mut().enumerate() {
            let answer = member.receive();
            assert_eq!(answer, "no memory on 1", "{mode}, rank {rank}");
        }
    }
}

#[test]
fn a_member_killed_in_the_middle_is_named_by_all_others() {
    for size in [2, 4] {
        let mut members = start(size, "killed");
        for member in &mut members {
            assert_eq!(member.receive(), "running");
        }
        members[1].child.kill().unwrap();
        for (rank, member) in members.iter_mut().enumerate() {
            if rank != 1 {
                assert_eq!(member.receive(), "lost 1 in all_reduce", "rank {rank}");
            }
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the kill must happen at a random time"
)]
fn fifty_kills_at_random_times_corrupt_no_result() {
    let mut words = [0; 100];
    Stream::new([50, 1, 2, 3]).fill(&mut words);
    for (kill, draw) in words.chunks(2).enumerate() {
        let size = 2 + kill % 2;
        let victim = draw[0] as usize % size;
        let mut members = start(size, "stream");
        for member in &mut members {
            assert_eq!(member.receive(), "running");
        }
        std::thread::sleep(Duration::from_micros(u64::from(draw[1] % 10_000)));
        members[victim].child.kill().unwrap();
        for (rank, member) in members.iter_mut().enumerate() {
            if rank != victim {
                // Every earlier result was compared: a wrong one ends the process without an answer.
                let answer = member.receive();
                let expected = format!("lost {victim} in all_reduce");
                assert_eq!(answer, expected, "kill {kill}, rank {rank}");
            }
        }
    }
}

#[test]
fn a_member_stopped_in_the_middle_is_named_after_the_limit() {
    let mut members = start(3, "stopped");
    for member in &mut members {
        assert_eq!(member.receive(), "running");
    }
    members[2].signal(Signal::STOP);
    let answers: Vec<String> = members[..2].iter_mut().map(Member::receive).collect();
    // One of them detects it first and notifies the other.
    assert!(
        answers.contains(&"late 2 in all_reduce".to_owned()),
        "{answers:?}"
    );
    assert!(
        answers
            .iter()
            .all(|answer| answer.contains("rank 2") || answer.contains("late 2")),
        "{answers:?}"
    );
    members[2].signal(Signal::CONT);
    assert!(
        members[2].receive().starts_with("told"),
        "it is notified when it continues"
    );
}
