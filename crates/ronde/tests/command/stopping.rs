//! How a run ends before its time: by request, or because a process is killed or hangs.

use rustix::process::Signal;

use crate::support::{
    Ended, RONDE, Running, TestFolder, events, gone, of_kind, send, terminate, until,
};

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

/// Checks that an interrupted run with `--json` has saved its last step and names it.
#[track_caller]
fn saved(dir: &TestFolder, ended: &Ended) {
    let all = std::fs::read_to_string(dir.path().join("out/events.jsonl")).unwrap();
    let all = events(&all);
    let last = |kind: &str| {
        of_kind(&all, kind)
            .last()
            .map(|event| event["step"].clone())
    };
    let committed = last("step_committed").unwrap().as_u64().unwrap() + 1;
    assert_eq!(
        last("checkpoint_saved").unwrap(),
        committed,
        "{}",
        ended.stdout
    );
    let shown = &ended.stderr;
    for words in [
        "interrupted at step ",
        "; checkpoint saved; resume with `ronde train --resume out`",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

#[test]
fn signals_within_a_second_keep_the_step() {
    let mut pairs = vec![
        (Signal::TERM, Signal::TERM),
        (Signal::INT, Signal::INT),
        (Signal::TERM, Signal::INT),
    ];
    if !ignores_hangups() {
        pairs.push((Signal::TERM, Signal::HUP));
    }
    for (first, second) in pairs {
        let dir = TestFolder::new();
        let mut running = start(&dir, "2", &[]);
        let workers = running.after_steps(5);
        running.signal(first);
        running.signal(second);
        let ended = running.wait();
        // The system delivers signals that wait at the same time in the order of their numbers.
        let codes = [first, second].map(|signal| 128 + signal.as_raw());
        assert!(
            codes.contains(&ended.code),
            "{}: {}",
            ended.code,
            ended.stderr
        );
        saved(&dir, &ended);
        gone(workers.into_values());
    }
}

#[test]
fn a_signal_in_the_first_step_loses_no_step() {
    for sets in [&[][..], &[FRAGILE]] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "2", sets);
        running.wait_stdout(r#""event":"run_started""#, 1);
        running.signal(Signal::TERM);
        let ended = running.wait().expect(143, &["interrupted "]);
        // Elastic members may not have reached the first step yet.
        match ended.stdout.contains(r#""event":"step_committed""#) {
            true => saved(&dir, &ended),
            false => drop(ended.expect(143, &["interrupted before the first step"])),
        }
    }
}

#[test]
fn a_run_whose_workers_are_all_asked_to_leave_is_not_a_finished_one() {
    for sets in [&[][..], &[FRAGILE], &["parallel.zero=3"]] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", sets);
        let workers = running.after_steps(5);
        workers.values().copied().for_each(terminate);
        let ended = running.wait().expect(143, &[]);
        saved(&dir, &ended);
        assert!(
            !ended.stdout.contains("checkpoint at step"),
            "an older one: {}",
            ended.stdout
        );
        gone(workers.into_values());
    }
}

#[test]
fn the_launcher_decides_if_its_workers_get_the_signal_too() {
    for sets in [&[][..], &[FRAGILE], &["parallel.zero=3"]] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", sets);
        let workers = running.after_steps(5);
        // The workers and the watchdog.
        running.children().into_iter().for_each(terminate);
        running.signal(Signal::TERM);
        let ended = running.wait().expect(143, &[]);
        saved(&dir, &ended);
        assert!(!ended.stdout.contains("departure"), "{}", ended.stdout);
        gone(workers.into_values());
    }
}

#[test]
fn a_run_that_is_stopped_waits_for_silent_workers_with_parts_of_the_state() {
    let dir = TestFolder::new();
    let sets = ["parallel.zero=3", "elastic.silence_s=0.5"];
    let mut running = start(&dir, "3", &sets);
    let workers = running.after_steps(5);
    let silent = [workers[&1], workers[&2]];
    silent.iter().for_each(|pid| send(*pid, Signal::STOP));
    running.wait_stdout("have only parts of the state", 1);
    running.signal(Signal::TERM);
    running.wait_stdout("saving the state with", 1);
    silent.iter().for_each(|pid| send(*pid, Signal::CONT));
    let ended = running.wait().expect(143, &[]);
    saved(&dir, &ended);
    gone(workers.into_values());
}

#[test]
fn a_finished_run_of_fixed_members_is_a_success() {
    // A rank that ends first must not abort the last barrier of the others. This does not happen every time.
    for workers in ["3", "5", "3", "5", "3", "5"] {
        let dir = TestFolder::new();
        let sets = [FRAGILE, "comm.transport=tcp", "train.epochs=1"];
        start(&dir, workers, &sets).wait().expect(0, &[]);
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
