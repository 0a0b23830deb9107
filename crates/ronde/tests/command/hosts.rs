//! A job on two hosts, which are network namespaces here: TLS between them, and a link that is cut.
//! Skipped with a message where namespaces cannot be created.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::open_jobs::{SETS, coordinators, whole};
use crate::support::{RONDE, Running, TestFolder, of_kind, send, until};

/// Long enough for a host to return, even on a busy machine.
const EPOCHS: u64 = 180;

/// Two namespaces with a virtual cable between them, deleted when dropped.
struct Hosts {
    names: [String; 2],
}

/// Runs `ip` with these arguments and returns whether it succeeded.
fn ip(words: &str) -> bool {
    let mut command = Command::new("ip");
    let output = command.args(words.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

impl Hosts {
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let number = format!("{}-{count}", std::process::id());
        let names = ["a", "b"].map(|host| format!("ronde-{host}-{number}"));
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        // Interface names are short and separate in each namespace.
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!(
                "-n {a} link add cable type veth peer name cable netns {b}"
            ));
        let up = |(host, address): (&String, u32)| {
            ip(&format!("-n {host} link set lo up"))
                && ip(&format!(
                    "-n {host} addr add 10.77.0.{address}/24 dev cable"
                ))
                && ip(&format!("-n {host} link set cable up"))
        };
        (made && [(a, 1), (b, 2)].into_iter().all(up)).then_some(hosts)
    }

    /// Starts `ronde` on a host.
    fn start(&self, host: usize, dir: &TestFolder, arguments: &[&str]) -> Running {
        self.start_with(host, dir, arguments, &[])
    }

    /// Starts `ronde` on a host with variables.
    fn start_with(
        &self,
        host: usize,
        dir: &TestFolder,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Running {
        let mut words = vec!["netns", "exec", &self.names[host], RONDE];
        words.extend(arguments);
        dir.start("ip", &words, variables)
    }

    /// Starts a rank of two on each host, as another launcher does, with variables for each. The last rank is the first
    /// result.
    fn start_ranks(
        &self,
        dir: &TestFolder,
        arguments: &[&str],
        tokens: [(&str, &str); 2],
    ) -> [Running; 2] {
        [1, 0].map(|rank| {
            let number = rank.to_string();
            let variables = [
                ("RONDE_RENDEZVOUS", "10.77.0.1:4711"),
                ("RONDE_WORLD_SIZE", "2"),
                ("RONDE_RANK", number.as_str()),
                tokens[rank],
            ];
            self.start_with(rank, dir, arguments, &variables)
        })
    }

    /// Starts a job with `each` workers on each host and the coordinator on the first. Returns the launcher and the
    /// second host's agent.
    fn train(&self, dir: &TestFolder, each: u32, epochs: u64, sets: &[&str]) -> (Running, Running) {
        let (here, all) = (each.to_string(), (2 * each).to_string());
        let mut arguments = vec![
            "train",
            "--json",
            "--listen=10.77.0.1",
            "--here",
            &here,
            "-n",
            &all,
        ];
        let epochs = format!("train.epochs={epochs}");
        let usual = ["elastic.silence_s=0.5", &epochs];
        let sets = SETS.iter().chain(&usual).chain(sets);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        let running = self.start(0, dir, &arguments);
        let mut address = String::new();
        until("the coordinator listens", || {
            let folder = dir.path().join("out/job/coordinators");
            let first = std::fs::read_dir(folder)
                .ok()
                .and_then(|mut all| all.next()?.ok());
            let text = first.and_then(|entry| std::fs::read_to_string(entry.path()).ok());
            let text = text.unwrap_or_default();
            address = text.split(' ').nth(1).unwrap_or_default().to_owned();
            address.starts_with("10.77.0.1:")
        });
        let join = [
            "join",
            &address,
            "--token-file",
            "out/job/token",
            "--host",
            "b",
            "-n",
            &here,
        ];
        let mut agent = self.start(1, dir, &join);
        agent.wait_stderr("host b joined", 1);
        (running, agent)
    }

    fn cable(&self, state: &str) {
        assert!(ip(&format!("-n {} link set cable {state}", self.names[1])));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn two_hosts_train_over_tls_and_a_cut_link_heals() {
    let Some(hosts) = Hosts::new() else {
        return ronde_testing::skip("cannot create network namespaces");
    };
    let dir = TestFolder::new();
    let (mut running, agent) = hosts.train(&dir, 1, EPOCHS, &[]);
    let before = running.after_steps(20);
    hosts.cable("down");
    running.wait_stdout("\"event\":\"recovered\"", 1);
    assert_eq!(
        running.workers(),
        before,
        "the side with the lease continues"
    );
    hosts.cable("up");
    running.wait_stdout("\"healed\":1", 1);
    let events = whole(&dir, running.wait(), EPOCHS);
    agent.wait().expect(0, &[]);
    let changes: Vec<&str> = of_kind(&events, "membership_changed")
        .map(|event| event["reason"].as_str().unwrap())
        .collect();
    assert!(changes[0].contains(" on b "), "{changes:?}");
    // The state was copied to it. Not the reason: a coordinator that took over meanwhile does not know it.
    let mut resumed = of_kind(&events, "resumed");
    let is_back = resumed.any(|event| event["world_size"] == 2 && event["healed"] == 1);
    assert!(is_back, "{changes:?}");
    for pid in coordinators(&dir) {
        send(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn half_of_the_hosts_is_not_a_majority() {
    let Some(hosts) = Hosts::new() else {
        return ronde_testing::skip("cannot create network namespaces");
    };
    let dir = TestFolder::new();
    let sets = ["elastic.succession=\"majority\""];
    let (mut running, agent) = hosts.train(&dir, 1, EPOCHS, &sets);
    let before = running.after_steps(20);
    hosts.cable("down");
    running.wait_stdout("waiting: 1 of 2 members of generation ", 1);
    hosts.cable("up");
    // The members may continue in the same group, so not every such break ends with a recovery.
    let steps = running.stdout().matches("step_committed").count();
    running.wait_stdout("step_committed", steps + 20);
    assert_eq!(running.workers(), before, "no worker was restarted");
    let events = whole(&dir, running.wait(), EPOCHS);
    agent.wait().expect(0, &[]);
    let alone = |event: &&Value| event["world_size"] == 1;
    assert_eq!(of_kind(&events, "membership_changed").find(alone), None);
    for pid in coordinators(&dir) {
        send(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn a_divided_state_survives_the_loss_of_a_host() {
    let Some(hosts) = Hosts::new() else {
        return ronde_testing::skip("cannot create network namespaces");
    };
    let dir = TestFolder::new();
    let sets = ["parallel.zero=2", "checkpoint.every_steps=1000000"];
    let (mut running, agent) = hosts.train(&dir, 2, EPOCHS, &sets);
    running.after_steps(20);
    let on_b = |line: &str| -> Option<u32> {
        let event: Value = serde_json::from_str(line).ok()?;
        let is_on_b = event["event"] == "worker_started" && event["host"] == "b";
        is_on_b.then(|| event["pid"].as_u64().unwrap() as u32)
    };
    let on_b: Vec<u32> = running.stdout().lines().filter_map(on_b).collect();
    assert_eq!(on_b.len(), 2);
    for pid in on_b {
        send(pid, rustix::process::Signal::KILL);
    }
    running.wait_stdout("\"event\":\"recovered\"", 1);
    let events = whole(&dir, running.wait(), EPOCHS);
    agent.wait().expect(0, &[]);
    assert_eq!(of_kind(&events, "checkpoint_loaded").count(), 0);
    for pid in coordinators(&dir) {
        send(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn ranks_of_another_launcher_on_two_hosts_train_over_tls_with_a_common_secret() {
    let Some(hosts) = Hosts::new() else {
        return ronde_testing::skip("cannot create network namespaces");
    };
    let short = ["train", "--json", "--set", "train.epochs=2"];
    let expected = TestFolder::new().run(&short).expect(0, &[]).blake3();
    let dir = TestFolder::new();
    dir.write("token", "the secret of this job\n");
    let file = dir.path().join("token");
    let by_file = ("RONDE_TOKEN_FILE", file.to_str().unwrap());
    let [other, first] = hosts.start_ranks(&dir, &short, [by_file, by_file]);
    assert_eq!(first.wait().expect(0, &[]).blake3(), expected);
    other.wait().expect(0, &[]);
    // Without a secret, with another one, and with one that can be guessed.
    let refused = |tokens: [(&str, &str); 2], words: &str| {
        let dir = TestFolder::new();
        let [other, first] = hosts.start_ranks(&dir, &short, tokens);
        other.wait().expect(3, &[words]);
        first.signal(rustix::process::Signal::KILL);
        first.wait();
    };
    let none = ("RONDE_TOKEN", "");
    refused([none, none], "RONDE_TOKEN");
    let mine = ("RONDE_TOKEN", "the secret of this job");
    refused(
        [mine, ("RONDE_TOKEN", "the secret of that job")],
        "wrong token",
    );
    let weak = ("RONDE_TOKEN", "secret");
    refused([weak, weak], "need at least 16");
}
