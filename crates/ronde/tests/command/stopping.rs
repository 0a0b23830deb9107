//! How a run ends before its time: asked to, or because a process is killed or hangs.

use rustix::process::Signal;

use crate::support::{RONDE, Running, TestFolder, gone, send, until};

/// The first failure ends the run.
const FRAGILE: &str = "elastic.enabled=false";

/// A run that would take for ever.
fn start(dir: &TestFolder, workers: &str, sets: &[&str]) -> Running {
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in ["train.epochs=1000000", "model.channels=4", "run.output=out"]
        .iter()
        .chain(sets)
    {
        arguments.extend(["--set", set]);
    }
    dir.start(RONDE, &arguments, &[])
}

/// Returns whether this process, and so the command that it starts, ignores SIGHUP.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    ignored.is_some_and(|mask| mask & 1 == 1)
}

#[test]
fn a_signal_ends_all_processes_and_leaves_no_incomplete_file() {
    let mut signals = vec![(Signal::INT, 130), (Signal::TERM, 143)];
    // A command that is started with SIGHUP ignored, as by nohup, ignores it too.
    if !ignores_hangups() {
        signals.push((Signal::HUP, 129));
    }
    for (signal, code) in signals {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", &[]);
        let workers = running.after_steps(5);
        assert_eq!(workers.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        running.signal(signal);
        let ended = running.wait().expect(code, &["interrupted at step "]);
        assert!(!ended.stderr.contains("error"), "{}", ended.stderr);
        gone(workers.into_values());
        assert!(
            ended.stderr.contains("; checkpoint saved; "),
            "{}",
            ended.stderr
        );
        assert!(!ended.stdout.contains("no checkpoint"), "{}", ended.stdout);
        assert_eq!(dir.list("out"), ["checkpoints", "events.jsonl", "run.toml"]);
    }
}

#[test]
fn a_killed_worker_is_named_with_its_last_step() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "3", &[FRAGILE]);
    let workers = running.after_steps(5);
    send(workers[&1], Signal::KILL);
    let ended = running.wait().expect(
        3,
        &[
            "error: rank 1 was killed by signal 9 (SIGKILL)",
            &format!("process {}, after step ", workers[&1]),
            "help: ",
        ],
    );
    assert!(!ended.stderr.contains("also failed"), "{}", ended.stderr);
    assert!(ended.stdout.contains(r#""event":"worker_failed","rank":1"#));
    gone(workers.into_values());
    assert_eq!(dir.list("out"), ["events.jsonl", "flight", "run.toml"]);
}

#[test]
fn workers_do_not_outlive_a_killed_launcher() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "3", &[]);
    let workers = running.after_steps(5);
    // A stopped process only reacts to SIGKILL.
    send(workers[&2], Signal::STOP);
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, 137);
    gone(workers.into_values());
}

#[test]
fn a_hanging_worker_is_named_by_the_waiting_ranks() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "2", &["comm.timeout_s=2", FRAGILE]);
    let workers = running.after_steps(5);
    send(workers[&1], Signal::STOP);
    running.wait().expect(
        3,
        &[
            "error: rank 0: ",
            "for group rank 1",
            "limit 2.0 s",
            "help: rank 1 may be stopped, hung",
            "look first at rank 1",
            "last operations of the ranks (`ronde flight ",
            "no record of rank 1",
        ],
    );
    gone(workers.into_values());
    assert_eq!(dir.list("out/flight"), ["flight-dp-1-rank-0.json"]);
}

#[test]
fn flight_records_are_written_on_demand() {
    let dir = TestFolder::new();
    dir.run(&["flight", "out"])
        .expect(2, &["no flight records in out or out/flight"]);
    let mut running = start(&dir, "2", &[FRAGILE]);
    let workers = running.after_steps(5);
    // Rank 0 waits for rank 1 until it is killed.
    send(workers[&1], Signal::STOP);
    send(workers[&0], Signal::USR1);
    until("the record is written", || {
        dir.list("out/flight") == ["flight-dp-1-rank-0.json"]
    });
    let report = dir.run(&["flight", "out"]).expect(0, &[]).stdout;
    assert!(
        report.contains("group dp, generation 1, 2 ranks"),
        "{report}"
    );
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, 137);
    gone(workers.into_values());
}

#[test]
fn the_hanging_worker_is_named_even_if_the_failing_rank_waited_for_another() {
    // Rank 3 only exchanges with ranks 2 and 1, so it waits for a rank that waits for rank 0.
    let dir = TestFolder::new();
    let sets = [
        "comm.timeout_s=2",
        "comm.algorithm=halving_doubling",
        FRAGILE,
    ];
    let mut running = start(&dir, "4", &sets);
    let workers = running.after_steps(5);
    send(workers[&0], Signal::STOP);
    running
        .wait()
        .expect(3, &["waited 2.0 s for", "look first at rank 0"]);
    gone(workers.into_values());
}
