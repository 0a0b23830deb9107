//! How a run ends before its time: asked to, or because a process is killed or hangs.

use rustix::process::Signal;

use crate::support::{Place, RONDE, Running, gone, send, until};

/// The first failure ends the run.
const FRAGILE: &str = "elastic.enabled=false";

/// A run that would take for ever.
fn start(place: &Place, workers: &str, sets: &[&str]) -> Running {
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in ["train.epochs=1000000", "model.channels=4", "run.output=out"]
        .iter()
        .chain(sets)
    {
        arguments.extend(["--set", set]);
    }
    place.start(RONDE, &arguments, &[])
}

#[test]
fn a_signal_ends_all_processes_and_leaves_no_piece_of_a_file() {
    let left: [(_, _, &[&str]); 2] = [
        (Signal::INT, 130, &["events.jsonl"]),
        (Signal::TERM, 143, &["checkpoints", "events.jsonl"]),
    ];
    for (signal, code, files) in left {
        let place = Place::new();
        let mut running = start(&place, "3", &[]);
        let workers = running.after_steps(5);
        assert_eq!(workers.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        running.signal(signal);
        let ended = running
            .wait()
            .expect(code, &["stopped: all workers have ended"]);
        assert!(!ended.stderr.contains("error"), "{}", ended.stderr);
        gone(workers.into_values());
        assert_eq!(place.list("out"), files);
    }
}

#[test]
fn a_killed_worker_is_named_with_its_last_step() {
    let place = Place::new();
    let mut running = start(&place, "3", &[FRAGILE]);
    let workers = running.after_steps(5);
    send(workers[&1], Signal::KILL);
    let ended = running.wait().expect(
        3,
        &[
            "error: rank 1 was killed by signal 9 (SIGKILL)",
            &format!("process {}, after step ", workers[&1]),
            "hint: ",
        ],
    );
    assert!(!ended.stderr.contains("also failed"), "{}", ended.stderr);
    assert!(ended.stdout.contains(r#""event":"worker_failed","rank":1"#));
    gone(workers.into_values());
    assert_eq!(place.list("out"), ["events.jsonl", "flight"]);
}

#[test]
fn workers_do_not_outlive_a_killed_launcher() {
    let place = Place::new();
    let mut running = start(&place, "3", &[]);
    let workers = running.after_steps(5);
    // One that is stopped gets no notice of anything but SIGKILL.
    send(workers[&2], Signal::STOP);
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, 137);
    gone(workers.into_values());
}

#[test]
fn a_worker_that_hangs_is_named_by_those_who_wait() {
    let place = Place::new();
    let mut running = start(&place, "2", &["comm.timeout_s=2", FRAGILE]);
    let workers = running.after_steps(5);
    send(workers[&1], Signal::STOP);
    running.wait().expect(
        3,
        &[
            "error: rank 0: ",
            "for group rank 1",
            "limit 2.0 s",
            "hint: rank 1 was stopped, hung",
            "look first at rank 1",
            "what the ranks were doing (`ronde flight ",
            "no record of rank 1",
        ],
    );
    gone(workers.into_values());
    assert_eq!(place.list("out/flight"), ["flight-dp-0-rank-0.json"]);
}

#[test]
fn what_the_ranks_are_doing_is_written_on_demand() {
    let place = Place::new();
    place
        .run(&["flight", "out"])
        .expect(2, &["no flight records in out or out/flight"]);
    let mut running = start(&place, "2", &[FRAGILE]);
    let workers = running.after_steps(5);
    // Rank 0 comes to wait for rank 1 and stays there.
    send(workers[&1], Signal::STOP);
    send(workers[&0], Signal::USR1);
    until("the record is written", || {
        place.list("out/flight") == ["flight-dp-0-rank-0.json"]
    });
    let report = place.run(&["flight", "out"]).expect(0, &[]).stdout;
    assert!(
        report.contains("group dp, generation 0, 2 ranks"),
        "{report}"
    );
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, 137);
    gone(workers.into_values());
}

#[test]
fn of_many_workers_the_one_that_hangs_is_named_whoever_was_waited_for() {
    // Rank 3 exchanges with ranks 2 and 1 alone, so it can only wait for one that waits for rank 0.
    let place = Place::new();
    let sets = [
        "comm.timeout_s=2",
        "comm.algorithm=halving_doubling",
        FRAGILE,
    ];
    let mut running = start(&place, "4", &sets);
    let workers = running.after_steps(5);
    send(workers[&0], Signal::STOP);
    running
        .wait()
        .expect(3, &["waited 2.0 s for", "look first at rank 0"]);
    gone(workers.into_values());
}
