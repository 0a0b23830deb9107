//! Jobs whose coordinator is a process of its own: it dies and comes back, others stand by, hosts join
//! and leave, workers are added and taken away; nothing is lost or repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, Place, RONDE, Running, events, gone, of_kind, send, until};

const EPOCHS: u64 = 60;
const STEPS_OF_EPOCH: u64 = 23;

/// What all runs of the tests have in common.
pub(crate) const SETS: [&str; 3] = ["model.channels=4", "run.output=out", "elastic.lease_s=0.8"];

/// A job of the tests; its coordinator ends with it.
struct Job {
    place: Place,
    running: Option<Running>,
    epochs: u64,
}

impl Job {
    /// Starts it with this count of workers and of places on this host.
    fn start(workers: &str, here: &str, sets: &[&str]) -> Self {
        Self::lasting(EPOCHS, workers, here, sets)
    }

    /// One of so many epochs.
    fn lasting(epochs: u64, workers: &str, here: &str, sets: &[&str]) -> Self {
        let place = Place::new();
        let mut arguments = vec!["train", "--json", "--listen", "--here", here, "-n", workers];
        let told = format!("train.epochs={epochs}");
        let sets = SETS.iter().chain(sets).copied().chain([told.as_str()]);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        let running = Some(place.start(RONDE, &arguments, &[]));
        Self {
            place,
            running,
            epochs,
        }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    /// Checks the end of the run, and gives its events.
    #[track_caller]
    fn whole(&mut self) -> Vec<Value> {
        let ended = self.running.take().unwrap().wait();
        whole(&self.place, ended, self.epochs)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.running.take());
        for pid in coordinators(&self.place) {
            send(pid, Signal::KILL);
        }
    }
}

/// The hash of the model of an undisturbed run.
fn undisturbed(epochs: u64) -> String {
    static BLAKE3: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    let mut known = BLAKE3.lock().unwrap();
    let run = || {
        let place = Place::new();
        let mut arguments = vec!["train", "--json", "-n", "1"];
        let epochs = format!("train.epochs={epochs}");
        let sets = SETS.into_iter().chain([epochs.as_str()]);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        place.run(&arguments).expect(0, &[]).blake3()
    };
    known.entry(epochs).or_insert_with(run).clone()
}

/// Checks the end of a run of so many epochs that was disturbed, and gives its events.
#[track_caller]
pub(crate) fn whole(place: &Place, ended: Ended, epochs: u64) -> Vec<Value> {
    let ended = ended.expect(0, &[]);
    assert_eq!(ended.blake3(), undisturbed(epochs), "{}", ended.stdout);
    let kept = std::fs::read_to_string(place.path().join("out/events.jsonl")).unwrap();
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

/// The processes whose arguments have these words in this order.
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

/// The coordinators of the job in a place.
pub(crate) fn coordinators(place: &Place) -> BTreeSet<u32> {
    let job = place.path().canonicalize().unwrap().join("out/job");
    processes(&["coordinator", "--job", job.to_str().unwrap()])
}

#[track_caller]
pub(crate) fn the_coordinator(place: &Place) -> u32 {
    let mut found = BTreeSet::new();
    until("there is one coordinator", || {
        found = coordinators(place);
        found.len() == 1
    });
    *found.first().unwrap()
}

/// What `ronde status --json` says.
fn status(place: &Place) -> Value {
    let ended = place.run(&["status", "out", "--json"]).expect(0, &[]);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Waits until the status is so.
#[track_caller]
fn status_is(place: &Place, what: &str, so: impl Fn(&Value) -> bool) {
    until(what, || so(&status(place)));
}

fn notices(events: &[Value]) -> String {
    let notices = of_kind(events, "notice").map(|event| event["message"].to_string());
    notices.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_killed_coordinator_comes_back_and_then_a_worker_is_replaced() {
    let mut job = Job::start("2", "3", &[]);
    let before = job.running().after_steps(20);
    let coordinator = the_coordinator(&job.place);
    send(coordinator, Signal::KILL);
    job.running().says("the coordinator ended", 1);
    // Training went on, in the same group; the next one leads with a higher term.
    status_is(&job.place, "another one leads", |status| {
        status["term"].as_u64() >= Some(2) && status["coordinator"].is_string()
    });
    assert_ne!(the_coordinator(&job.place), coordinator);
    assert_eq!(job.running().workers(), before);
    send(before[&1], Signal::KILL);
    job.running().says("\"healed\":1", 1);
    let after = job.running().workers();
    assert_eq!(after[&0], before[&0], "the survivor is the same process");
    let events = job.whole();
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let lost = changes[0]["reason"].as_str().unwrap();
    assert!(
        lost.contains("lost: connection closed by signal 9"),
        "{lost}"
    );
    gone(after.into_values().chain([coordinator]));
    assert!(coordinators(&job.place).is_empty());
}

#[test]
fn a_worker_that_dies_while_there_is_no_coordinator_is_waited_for() {
    let mut job = Job::start("3", "3", &[]);
    let before = job.running().after_steps(20);
    // Both at once: whoever leads next hears of the loss from the agent.
    send(the_coordinator(&job.place), Signal::KILL);
    send(before[&2], Signal::KILL);
    job.running().says("\"event\":\"membership_changed\"", 1);
    let after = job.running().workers();
    assert_eq!((after[&0], after[&1]), (before[&0], before[&1]));
    let events = job.whole();
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let lost = changes[0]["reason"].as_str().unwrap();
    assert!(
        lost.contains("rank 2 on ") && lost.contains("signal 9"),
        "{lost}"
    );
    gone(after.into_values());
}

#[test]
fn of_two_coordinators_one_leads_and_a_stopped_one_is_fenced_when_it_wakes() {
    let mut job = Job::start("2", "3", &[]);
    let before = job.running().after_steps(20);
    let first = the_coordinator(&job.place);
    let mut second = job
        .place
        .start(RONDE, &["coordinator", "--job", "out"], &[]);
    second.tells("another coordinator leads in term", 1);
    send(first, Signal::STOP);
    second.tells("this coordinator leads: term", 1);
    send(first, Signal::CONT);
    // It has nothing to say any more: a loss is handled under the higher term, once.
    send(before[&1], Signal::KILL);
    job.running().says("\"healed\":1", 1);
    assert_eq!(job.running().workers()[&0], before[&0]);
    let events = job.whole();
    assert!(notices(&events).contains("this coordinator leads: term "));
    // On a busy machine a worker may be taken for silent as well.
    let changes: Vec<&Value> = of_kind(&events, "membership_changed").collect();
    let is_killed = |event: &&&Value| event["reason"].as_str().unwrap().contains("signal 9");
    assert_eq!(changes.iter().filter(is_killed).count(), 1, "{changes:?}");
    second.wait().expect(0, &[]);
    gone([first]);
}

#[test]
fn a_job_grows_and_shrinks_while_it_runs() {
    let mut job = Job::start("1", "3", &[]);
    let before = job.running().after_steps(20);
    job.place
        .run(&["scale", "out", "3"])
        .expect(0, &["3 workers are wanted"]);
    status_is(&job.place, "three train", |status| {
        let members = status["members"].as_array().unwrap();
        members.len() == 3 && members.iter().all(|member| member["phase"] == "training")
    });
    let shown = job.place.run(&["status", "out"]).expect(0, &[]).stdout;
    for words in [
        "3 of 3 workers",
        "term ",
        "rank",
        "training",
        "compute ms",
        "slowest",
    ] {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    job.place
        .run(&["scale", "out", "2"])
        .expect(0, &["2 workers are wanted"]);
    job.running().says("1 left", 1);
    job.place
        .run(&["scale", "out", "99"])
        .expect(2, &["99 workers; this job takes 1 to 8"]);
    let after = job.running().workers();
    assert_eq!(after[&0], before[&0]);
    let events = job.whole();
    assert_eq!(
        of_kind(&events, "recovered").count(),
        0,
        "nothing is redone"
    );
    gone(after.into_values());
    // What is left in the folder tells how it ended.
    let shown = job.place.run(&["status", "out"]).expect(0, &[]).stdout;
    assert!(
        shown.contains("finished, 1380 steps committed of 1380"),
        "{shown}"
    );
    assert!(shown.contains("of 2 workers"), "{shown}");
    job.place
        .run(&["scale", "out", "2"])
        .expect(2, &["is finished: there is nothing left to do"]);
}

#[test]
fn a_job_that_is_asked_to_end_says_so_ever_after() {
    for (signal, code, saves) in [(Signal::TERM, 143, true), (Signal::INT, 130, false)] {
        let mut job = Job::start("2", "2", &[]);
        let processes = job.running().after_steps(20);
        job.running().signal(signal);
        let ended = job.running.take().unwrap().wait();
        let ended = ended.expect(code, &["stopped: all workers have ended"]);
        gone(processes.into_values());
        assert!(coordinators(&job.place).is_empty());
        let events = ended.events();
        let last = of_kind(&events, "step_committed").last().unwrap();
        let saved = of_kind(&events, "checkpoint_saved").last();
        let next = last["step"].as_u64().unwrap() + 1;
        assert_eq!(
            saved.map(|saved| saved["step"] == next),
            saves.then_some(true)
        );
        assert_eq!(
            ended
                .stderr
                .contains("go on with: ronde train --resume out"),
            saves
        );
        let shown = job.place.run(&["status", "out"]).expect(0, &[]).stdout;
        assert!(shown.contains(": stopped, "), "{shown}");
        let scaled = job.place.run(&["scale", "out", "1"]);
        scaled.expect(2, &["was stopped", "ronde train --resume"]);
        // An address alone tells no more than that nobody is there.
        let arguments = ["status", "127.0.0.1:1", "--token-file", "out/job/token"];
        job.place.run(&arguments).expect(
            3,
            &[
                "no coordinator of the job answers",
                "whether the job is over",
            ],
        );
        if saves {
            let resume = ["train", "--json", "-n", "1", "--resume", "out"];
            let ended = job.place.run(&resume).expect(0, &[]);
            assert_eq!(ended.blake3(), undisturbed(EPOCHS));
        }
    }
}

/// Starts an agent for one worker as another host.
fn join(place: &Place, host: &str, token_file: &str) -> Running {
    let status = status(place);
    let address = status["coordinator"].as_str().unwrap();
    let arguments = ["join", address, "--token-file", token_file, "--host", host];
    place.start(RONDE, &arguments, &[])
}

#[test]
fn a_host_joins_is_cut_off_comes_back_and_leaves_in_good_order() {
    // Long enough for a busy machine: the host goes and comes back while it trains.
    let mut job = Job::lasting(3 * EPOCHS, "2", "1", &["elastic.silence_s=0.5"]);
    until("the coordinator is there", || {
        let ended = job.place.run(&["status", "out", "--json"]);
        ended.code == 0 && ended.stdout.contains("\"coordinator\":\"")
    });
    let mut agent = join(&job.place, "b", "out/job/token");
    agent.tells("host b has joined", 1);
    job.running().after_steps(20);
    let theirs = agent.workers();
    assert_eq!(theirs.len(), 1);
    // Cut off: the agent is stopped with its worker, and nobody hears them.
    agent.signal(Signal::STOP);
    theirs.values().for_each(|pid| send(*pid, Signal::STOP));
    job.running().says("\"event\":\"recovered\"", 1);
    theirs.values().for_each(|pid| send(*pid, Signal::CONT));
    agent.signal(Signal::CONT);
    status_is(&job.place, "both train again", |status| {
        status["members"].as_array().unwrap().len() == 2
    });
    agent.signal(Signal::TERM);
    job.running().says("1 left", 1);
    agent.wait().expect(0, &[]);
    gone(theirs.into_values());
    let events = job.whole();
    assert!(notices(&events).contains("host b at 127.0.0.1 joins"));
}

#[test]
fn strangers_are_refused_and_reported() {
    let mut job = Job::start("1", "3", &[]);
    job.running().after_steps(5);
    let token = job.place.path().join("out/job/token");
    let token = std::fs::read_to_string(token).unwrap();
    // The right authority, another secret.
    let (head, authority) = token.trim().rsplit_once('.').unwrap();
    let secret = head.rsplit_once('.').unwrap().1;
    let other: String = secret.chars().rev().collect();
    job.place
        .write("wrong", &format!("ronde-join-1.{other}.{authority}"));
    join(&job.place, "c", "wrong")
        .wait()
        .expect(2, &["wrong token"]);
    // The right secret, another authority: whoever asks does not trust the answer.
    let other: String = authority.chars().rev().collect();
    job.place
        .write("other", &format!("ronde-join-1.{secret}.{other}"));
    let address = status(&job.place)["coordinator"]
        .as_str()
        .unwrap()
        .to_owned();
    let arguments = ["status", &address, "--token-file", "other"];
    let told = job
        .place
        .run(&arguments)
        .expect(3, &["not of this job's authority"]);
    assert!(told.stdout.is_empty());
    // No TLS at all.
    // Of those who come within a second, one is spoken of.
    until("it is reported", || {
        let mut plain = std::net::TcpStream::connect(&address).unwrap();
        std::io::Write::write_all(&mut plain, b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let events = std::fs::read_to_string(job.place.path().join("out/events.jsonl"));
        events.unwrap().contains("does not speak TLS as members do")
    });
    let events = job.whole();
    let told = notices(&events);
    assert!(told.contains("it shows a wrong token"), "{told}");
}

#[test]
fn listening_everywhere_and_unknown_jobs_are_explained() {
    let place = Place::new();
    place
        .run(&["train", "--listen=0.0.0.0"])
        .expect(2, &["the one address of this host"]);
    place
        .run(&["status"])
        .expect(2, &["there is no job below runs"]);
    place
        .run(&["status", "nowhere"])
        .expect(2, &["no folder and no address"]);
    place
        .run(&["status", "127.0.0.1:1"])
        .expect(2, &["needs the job's token"]);
    place
        .run(&["join", "127.0.0.1:1", "--token", "nonsense"])
        .expect(2, &["this is no join token"]);
    place
        .run(&["run", "--listen", "--", "true"])
        .expect(2, &["--listen needs --elastic"]);
    let help = Command::new(RONDE).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for command in ["coordinator", "join", "scale", "status"] {
        assert!(help.contains(command), "{command}");
    }
}
