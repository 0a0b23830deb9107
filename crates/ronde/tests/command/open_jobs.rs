//! Jobs with a separate coordinator: it dies and is restarted, others stand by, hosts join and leave, and the number of
//! workers changes; no step is lost or repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Ended, RONDE, Running, TestFolder, events, gone, of_kind, send, stopped, terminate, until,
};

const EPOCHS: u64 = 60;
const STEPS_OF_EPOCH: u64 = 23;

/// Settings with which a busy machine changes no reason: no worker is declared silent, and no coordinator loses its lease before
/// it has reported its decision.
const UNHURRIED: [&str; 2] = ["elastic.silence_s=30", "elastic.lease_s=3"];

/// Settings of all runs of these tests.
pub(crate) const SETS: [&str; 3] = ["model.channels=4", "run.output=out", "elastic.lease_s=0.8"];

/// An open job; its coordinator ends when the value is dropped.
struct Job {
    dir: TestFolder,
    running: Option<Running>,
    epochs: u64,
}

impl Job {
    /// Starts a job with `workers` workers and `here` slots on this host.
    fn start(workers: &str, here: &str, sets: &[&str]) -> Self {
        Self::lasting(EPOCHS, workers, here, sets)
    }

    /// Starts a job of `epochs` epochs.
    fn lasting(epochs: u64, workers: &str, here: &str, sets: &[&str]) -> Self {
        let dir = TestFolder::new();
        let mut arguments = vec!["train", "--json", "--listen", "--here", here, "-n", workers];
        let epochs_set = format!("train.epochs={epochs}");
        let sets = SETS
            .iter()
            .chain(sets)
            .copied()
            .chain([epochs_set.as_str()]);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        let running = Some(dir.start(RONDE, &arguments, &[]));
        Self {
            dir,
            running,
            epochs,
        }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// Checks the end of the run and returns its events.
    #[track_caller]
    fn whole(&mut self) -> Vec<Value> {
        let ended = self.running.take().unwrap().wait();
        whole(&self.dir, ended, self.epochs)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.running.take());
        for pid in coordinators(&self.dir) {
            send(pid, Signal::KILL);
        }
    }
}

/// Returns the hash of the model of an undisturbed run.
fn undisturbed(epochs: u64) -> String {
    static BLAKE3: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    let mut known = BLAKE3.lock().unwrap();
    let run = || {
        let dir = TestFolder::new();
        let mut arguments = vec!["train", "--json", "-n", "1"];
        let epochs = format!("train.epochs={epochs}");
        let sets = SETS.into_iter().chain([epochs.as_str()]);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        dir.run(&arguments).expect(0, &[]).blake3()
    };
    known.entry(epochs).or_insert_with(run).clone()
}

/// Checks the end of a disturbed run of `epochs` epochs and returns its events.
#[track_caller]
pub(crate) fn whole(dir: &TestFolder, ended: Ended, epochs: u64) -> Vec<Value> {
    let ended = ended.expect(0, &[]);
    assert_eq!(ended.blake3(), undisturbed(epochs), "{}", ended.stdout);
    let kept = std::fs::read_to_string(dir.path().join("out/events.jsonl")).unwrap();
    for text in [&kept, &ended.stdout] {
        let steps: Vec<u64> = of_kind(&events(text), "step_committed")
            .map(|event| event["step"].as_u64().unwrap())
            .collect();
        assert_eq!(
            steps,
            (0..epochs * STEPS_OF_EPOCH).collect::<Vec<_>>(),
            "each step once"
        );
    }
    events(&kept)
}

/// Returns the processes whose arguments contain these words in this order.
fn processes(words: &[&str]) -> BTreeSet<u32> {
    let fits = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut parts = line.split('\0');
        words.iter().all(|word| parts.any(|part| part == *word))
    };
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| fits(*pid))
        .collect()
}

/// The coordinators of the job in a dir.
pub(crate) fn coordinators(dir: &TestFolder) -> BTreeSet<u32> {
    let job = dir.path().canonicalize().unwrap().join("out/job");
    processes(&["coordinator", "--job", job.to_str().unwrap()])
}

#[track_caller]
pub(crate) fn the_coordinator(dir: &TestFolder) -> u32 {
    let mut found = BTreeSet::new();
    until("there is one coordinator", || {
        found = coordinators(dir);
        found.len() == 1
    });
    *found.first().unwrap()
}

/// Returns the output of `ronde status --json`.
pub(crate) fn status(dir: &TestFolder) -> Value {
    let ended = dir.run(&["status", "out", "--json"]).expect(0, &[]);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Waits until the status fulfils a condition.
#[track_caller]
fn status_is(dir: &TestFolder, what: &str, condition: impl Fn(&Value) -> bool) {
    until(what, || condition(&status(dir)));
}

fn notices(events: &[Value]) -> String {
    let notices = of_kind(events, "notice").map(|event| event["message"].to_string());
    notices.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_killed_coordinator_is_restarted_and_then_a_worker_is_replaced() {
    let mut job = Job::lasting(300, "2", "3", &UNHURRIED);
    let before = job.running().after_steps(20);
    let coordinator = the_coordinator(&job.dir);
    // As if the coordinator was killed while it wrote a file.
    let leftover = job.dir.path().join("out/job/.tmp-ronde-dead");
    std::fs::write(&leftover, b"half").unwrap();
    send(coordinator, Signal::KILL);
    job.running().wait_stdout("the coordinator ended", 1);
    // Training continues in the same group; the next coordinator leads with a higher term.
    status_is(&job.dir, "another one leads", |status| {
        status["term"].as_u64() >= Some(2) && status["coordinator"].is_string()
    });
    assert_ne!(the_coordinator(&job.dir), coordinator);
    assert!(!leftover.exists());
    assert_eq!(job.running().workers(), before);
    send(before[&1], Signal::KILL);
    job.running().wait_stdout("\"healed\":1", 1);
    let after = job.running().workers();
    assert_eq!(after[&0], before[&0], "the survivor is the same process");
    let events = job.whole();
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let lost = changes[0]["reason"].as_str().unwrap();
    assert!(lost.contains("killed (SIGKILL)"), "{lost}");
    gone(after.into_values().chain([coordinator]));
    assert!(coordinators(&job.dir).is_empty());
}

#[test]
fn a_worker_that_dies_without_a_coordinator_is_handled_by_the_next_one() {
    let mut job = Job::start("3", "3", &UNHURRIED);
    let before = job.running().after_steps(20);
    // Both at once: the next coordinator learns of the loss from the agent.
    send(the_coordinator(&job.dir), Signal::KILL);
    send(before[&2], Signal::KILL);
    job.running()
        .wait_stdout("\"event\":\"membership_changed\"", 1);
    let after = job.running().workers();
    assert_eq!((after[&0], after[&1]), (before[&0], before[&1]));
    let events = job.whole();
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let lost = changes[0]["reason"].as_str().unwrap();
    assert!(
        lost.contains("worker 2 on ") && lost.contains("SIGKILL"),
        "{lost}"
    );
    gone(after.into_values());
}

#[test]
fn of_two_coordinators_one_leads_and_a_stopped_one_is_fenced_when_it_wakes() {
    let mut job = Job::lasting(600, "2", "3", &UNHURRIED);
    let before = job.running().after_steps(20);
    let first = the_coordinator(&job.dir);
    let mut second = job.dir.start(RONDE, &["coordinator", "--job", "out"], &[]);
    second.wait_stderr("another coordinator leads in term", 1);
    send(first, Signal::STOP);
    second.wait_stderr("this coordinator leads in term", 1);
    send(first, Signal::CONT);
    // Its decisions are fenced off: a loss is handled once, under the higher term.
    send(before[&1], Signal::KILL);
    job.running().wait_stdout("\"healed\":1", 1);
    assert_eq!(job.running().workers()[&0], before[&0]);
    let events = job.whole();
    assert!(notices(&events).contains("this coordinator leads in term "));
    // On a busy machine a worker may also be declared silent.
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let is_killed = |event: &&&Value| event["reason"].as_str().unwrap().contains("SIGKILL");
    assert_eq!(changes.iter().filter(is_killed).count(), 1, "{changes:?}");
    second.wait().expect(0, &[]);
    gone([first]);
}

#[test]
fn a_job_grows_and_shrinks_while_it_runs() {
    let mut job = Job::lasting(600, "1", "3", &UNHURRIED);
    let before = job.running().after_steps(20);
    job.dir
        .run(&["scale", "out", "3"])
        .expect(0, &["the target is now 3 workers"]);
    status_is(&job.dir, "three train", |status| {
        let members = status["members"].as_array().unwrap();
        members.len() == 3 && members.iter().all(|member| member["phase"] == "training")
    });
    let shown = job.dir.run(&["status", "out"]).expect(0, &[]).stdout;
    for words in ["3 of 3 workers", "term ", "rank", "training", "compute ms"] {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    job.dir
        .run(&["scale", "out", "2"])
        .expect(0, &["the target is now 2 workers"]);
    job.running().wait_stdout("worker left", 1);
    job.dir
        .run(&["scale", "out", "99"])
        .expect(2, &["invalid number of workers 99: expected 1 to 8"]);
    let after = job.running().workers();
    assert_eq!(after[&0], before[&0]);
    let events = job.whole();
    assert_eq!(
        of_kind(&events, "recovered").count(),
        0,
        "no step is recomputed"
    );
    gone(after.into_values());
    // The folder records how the job ended.
    let shown = job.dir.run(&["status", "out"]).expect(0, &[]).stdout;
    assert!(
        shown.contains("finished, 13800 steps committed of 13800"),
        "{shown}"
    );
    assert!(shown.contains("of 2 workers"), "{shown}");
    job.dir
        .run(&["scale", "out", "2"])
        .expect(2, &["is finished: all steps are committed"]);
}

#[test]
fn an_interrupted_job_is_reported_as_stopped_afterwards() {
    // A signal that comes after the last step interrupts nothing.
    let epochs = 4 * EPOCHS;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut job = Job::lasting(epochs, "2", "2", &[]);
        let processes = job.running().after_steps(20);
        job.running().signal(signal);
        let ended = job.running.take().unwrap().wait();
        let ended = ended.expect(code, &["interrupted at step "]);
        gone(processes.into_values());
        assert!(coordinators(&job.dir).is_empty());
        let events = ended.events();
        let last = of_kind(&events, "step_committed").last().unwrap();
        let saved = of_kind(&events, "checkpoint_saved").last();
        let next = last["step"].as_u64().unwrap() + 1;
        assert_eq!(saved.map(|saved| saved["step"] == next), Some(true));
        assert!(
            ended
                .stderr
                .contains("resume with `ronde train --resume out`")
        );
        let shown = job.dir.run(&["status", "out"]).expect(0, &[]).stdout;
        assert!(shown.contains(": stopped, "), "{shown}");
        let scaled = job.dir.run(&["scale", "out", "1"]);
        scaled.expect(2, &["was stopped", "ronde train --resume"]);
        // With an address alone the status of a job without a coordinator is unknown.
        let arguments = ["status", "127.0.0.1:1", "--token-file", "out/job/token"];
        job.dir.run(&arguments).expect(
            3,
            &[
                "cannot reach a coordinator of the job",
                "whether the job is over",
            ],
        );
        let resume = ["train", "--json", "-n", "1", "--resume", "out"];
        let ended = job.dir.run(&resume).expect(0, &[]);
        assert_eq!(ended.blake3(), undisturbed(epochs));
    }
}

#[cfg(feature = "full")]
#[test]
fn a_job_at_an_address_is_shown_until_it_ends() {
    let mut job = Job::lasting(600, "2", "2", &[]);
    job.running().after_steps(20);
    let address = status(&job.dir)["coordinator"].as_str().unwrap().to_owned();
    let refused = job.dir.run(&["top", &address]);
    refused.expect(2, &["requires the job's token", "--join-token-file"]);
    let token = ["--join-token-file", "out/job/token"];
    let shown = job
        .dir
        .start(RONDE, &["top", &address, token[0], token[1]], &[]);
    let folder = job.dir.run(&["top", "out", token[0], token[1]]);
    folder.expect(2, &["needs the address of a coordinator"]);
    job.whole();
    let shown = shown.wait().expect(0, &[]).stdout;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("digits-"), "{shown}");
    assert!(lines[0].contains(": running, step "), "{shown}");
    let (first, last) = (lines[0], lines[lines.len() - 1]);
    assert!(
        first != last && last.contains(" of 13,800, loss "),
        "{shown}"
    );
    let refused = job.dir.run(&["top", &address, token[0], token[1]]);
    refused.expect(2, &["cannot show the job at", "cannot reach a coordinator"]);
}

/// Starts an agent for one worker as another host.
pub(crate) fn join(dir: &TestFolder, host: &str, token_file: &str) -> Running {
    let status = status(dir);
    let address = status["coordinator"].as_str().unwrap();
    let arguments = ["join", address, "--token-file", token_file, "--host", host];
    dir.start(RONDE, &arguments, &[])
}

#[test]
fn a_host_joins_is_disconnected_returns_and_leaves() {
    // Long enough for a busy machine: the host leaves and returns during training.
    let mut job = Job::lasting(10 * EPOCHS, "2", "1", &["elastic.silence_s=0.5"]);
    until("the coordinator is there", || {
        let ended = job.dir.run(&["status", "out", "--json"]);
        ended.code == 0 && ended.stdout.contains("\"coordinator\":\"")
    });
    let mut agent = join(&job.dir, "b", "out/job/token");
    agent.wait_stderr("host b joined", 1);
    job.running().after_steps(20);
    let theirs = agent.workers();
    assert_eq!(theirs.len(), 1);
    // Disconnected: the agent and its worker are stopped.
    agent.signal(Signal::STOP);
    theirs.values().for_each(|pid| send(*pid, Signal::STOP));
    job.running().wait_stdout("\"event\":\"recovered\"", 1);
    theirs.values().for_each(|pid| send(*pid, Signal::CONT));
    agent.signal(Signal::CONT);
    status_is(&job.dir, "both train again", |status| {
        status["members"].as_array().unwrap().len() == 2
    });
    agent.signal(Signal::TERM);
    // Not the reason: on a busy machine the worker may be declared silent before it leaves.
    status_is(&job.dir, "one trains", |status| {
        status["members"].as_array().unwrap().len() == 1
    });
    agent.wait().expect(0, &[]);
    gone(theirs.into_values());
    let events = job.whole();
    assert!(notices(&events).contains("host b joined from 127.0.0.1"));
}

#[test]
fn hosts_drain_when_they_are_about_to_be_taken_away() {
    let mut job = Job::lasting(100_000, "2", "1", &["elastic.silence_s=0.5"]);
    until("the coordinator is there", || {
        let ended = job.dir.run(&["status", "out", "--json"]);
        ended.code == 0 && ended.stdout.contains("\"coordinator\":\"")
    });
    // The metadata of a cloud: no notice first, then one.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("http://{}/preempted", server.local_addr().unwrap());
    let is_taken = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    let taken = is_taken.clone();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1024];
            let count = std::io::Read::read(&mut stream, &mut request).unwrap();
            assert!(request[..count].starts_with(b"GET /preempted HTTP/1.0\r\n"));
            let text = match taken.load(std::sync::atomic::Ordering::SeqCst) {
                true => "HTTP/1.0 200 OK\r\n\r\nTRUE",
                false => "HTTP/1.0 200 OK\r\n\r\nFALSE",
            };
            std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        }
    });
    let address = status(&job.dir)["coordinator"].as_str().unwrap().to_owned();
    let words = [
        "join",
        &address,
        "--token-file",
        "out/job/token",
        "--host",
        "b",
        "--drain-on",
        &source,
    ];
    let mut agent = job.dir.start(RONDE, &words, &[]);
    agent.wait_stderr("host b joined", 1);
    // A worker that is not a member yet would end without leaving.
    status_is(&job.dir, "the worker of host b is a member", |status| {
        status["members"].as_array().unwrap().len() == 2
    });
    job.running().after_steps(20);
    is_taken.store(true, std::sync::atomic::Ordering::SeqCst);
    job.running().wait_stdout("worker left", 1);
    agent
        .wait()
        .expect(0, &["preemption notice: http://127.0.0.1"]);
}

#[test]
fn a_run_ends_with_a_checkpoint_when_a_file_announces_the_end_of_its_host() {
    let dir = TestFolder::new();
    let words = [
        "train",
        "--json",
        "-n",
        "2",
        "--set",
        "train.epochs=100000",
        "--drain-on",
        "notice",
    ];
    let mut running = dir.start(RONDE, &words, &[]);
    running.after_steps(5);
    dir.write("notice", "");
    running.wait().expect(
        143,
        &["preemption notice: notice exists", "checkpoint saved"],
    );
    dir.run(&["train", "--drain-on", "https://x/y"])
        .expect(2, &["begins with http://"]);
}

#[test]
fn unauthenticated_connections_are_refused_and_reported() {
    let mut job = Job::lasting(600, "1", "3", &[]);
    job.running().after_steps(5);
    let token = job.dir.path().join("out/job/token");
    let token = std::fs::read_to_string(token).unwrap();
    // The right authority, another secret.
    let (head, authority) = token.trim().rsplit_once('.').unwrap();
    let secret = head.rsplit_once('.').unwrap().1;
    let other: String = secret.chars().rev().collect();
    job.dir
        .write("wrong", &format!("ronde-join-1.{other}.{authority}"));
    join(&job.dir, "c", "wrong")
        .wait()
        .expect(2, &["wrong token"]);
    // The right secret, another authority: the client does not trust the coordinator.
    let other: String = authority.chars().rev().collect();
    job.dir
        .write("other", &format!("ronde-join-1.{secret}.{other}"));
    let address = status(&job.dir)["coordinator"].as_str().unwrap().to_owned();
    let arguments = ["status", &address, "--token-file", "other"];
    let output = job
        .dir
        .run(&arguments)
        .expect(3, &["not issued by this job's authority"]);
    assert!(output.stdout.is_empty());
    // No TLS at all.
    // At most one connection per second is reported.
    until("it is reported", || {
        let mut plain = std::net::TcpStream::connect(&address).unwrap();
        std::io::Write::write_all(&mut plain, b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let events = std::fs::read_to_string(job.dir.path().join("out/events.jsonl"));
        events
            .unwrap()
            .contains("does not speak the job's TLS protocol")
    });
    let events = job.whole();
    let output = notices(&events);
    assert!(output.contains("wrong token"), "{output}");
}

#[test]
fn listening_everywhere_and_unknown_jobs_are_explained() {
    let dir = TestFolder::new();
    dir.run(&["train", "--listen=0.0.0.0"])
        .expect(2, &["the one address at which other hosts reach this host"]);
    dir.run(&["status"])
        .expect(2, &["no run or open job in runs"]);
    dir.run(&["status", "nowhere"])
        .expect(2, &["there is no job and no folder `nowhere`"]);
    dir.run(&["status", "127.0.0.1:1"])
        .expect(2, &["requires the job's token"]);
    dir.write("nonsense", "nonsense");
    dir.run(&["join", "127.0.0.1:1", "--token-file", "nonsense"])
        .expect(2, &["invalid join token, expected ronde-join-1."]);
    // Standard input is empty here.
    dir.run(&["join", "127.0.0.1:1", "--token-file", "-"])
        .expect(2, &["invalid join token, expected ronde-join-1."]);
    dir.run(&["run", "--listen", "--", "true"])
        .expect(2, &["--listen requires --elastic"]);
    let help = Command::new(RONDE).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for command in ["coordinator", "join", "scale", "status"] {
        assert!(help.contains(command), "{command}");
    }
}

#[test]
fn a_coordinator_that_cannot_listen_ends_the_run_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let dir = TestFolder::new();
    for address in [taken.to_string(), "203.0.113.7".to_owned()] {
        let listen = format!("--listen={address}");
        let ended = dir
            .run(&["train", "--set", "run.output=out", &listen])
            .expect(
                2,
                &[
                    &format!("error: cannot listen at {address}"),
                    "help: choose an address of this host",
                ],
            );
        let errors = ended.stderr.matches("error: ").count();
        assert_eq!(errors, 1, "{}", ended.stderr);
    }
}

#[test]
fn the_launcher_decides_when_its_coordinator_ends() {
    let mut job = Job::start("2", "2", &[]);
    job.running().after_steps(5);
    let coordinator = the_coordinator(&job.dir);
    terminate(coordinator);
    job.running().after_steps(60);
    assert_eq!(coordinators(&job.dir), BTreeSet::from([coordinator]));
    // As when a manager of hosts ends all processes of the job.
    let running = job.running.take().unwrap();
    running.children().into_iter().for_each(terminate);
    running.signal(Signal::TERM);
    let ended = running.wait().expect(143, &["; checkpoint saved; "]);
    assert!(
        !ended.stdout.contains("starting another one"),
        "{}",
        ended.stdout
    );
    assert!(!ended.stdout.contains("departure"), "{}", ended.stdout);
    gone([coordinator]);
}

#[test]
fn a_second_signal_ends_the_coordinator_of_a_stopped_launcher() {
    let mut job = Job::start("2", "2", &[]);
    job.running().after_steps(5);
    let coordinator = the_coordinator(&job.dir);
    let launcher = job.running().pid();
    send(launcher, Signal::STOP);
    stopped(launcher);
    terminate(coordinator);
    job.running()
        .wait_stderr("; a second signal ends process ", 1);
    terminate(coordinator);
    gone([coordinator]);
    send(launcher, Signal::CONT);
    job.whole();
}
