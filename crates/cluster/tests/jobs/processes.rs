//! Supervision of real processes: labels, causes, order of failures, and that nothing is left.

use std::time::Duration;

use crate::support::*;
use ronde_cluster::{
    FailureCause, JobExit, LINE_BYTES_MAX, LaunchSpec, LocalLauncher, OutputStream::*, StopLevel,
};
use ronde_core::{Event, Rank, WorldSize};

#[test]
fn ranks_know_their_place_and_their_lines_are_labelled() {
    let (outcome, seen) = run(&shell(
        3,
        "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $RONDE_RANK of \
         $RONDE_WORLD_SIZE in $RONDE_JOB at $MASTER_ADDR; echo warning >&2; \
         test ${#RONDE_TOKEN} = 64 && test -n \"$RONDE_CONTROL$MASTER_PORT\"",
    ));
    assert_eq!(outcome.exit, JobExit::Done);
    assert_eq!(outcome.exit_code(), 0);
    for rank in 0..3 {
        let place = format!("{rank} of 3, {rank} of 3, {rank} of 3 in job at 127.0.0.1");
        assert_eq!(seen.of(rank, Stdout), [place]);
        assert_eq!(seen.of(rank, Stderr), ["warning"]);
    }
}

#[test]
fn the_users_variables_arrive_but_cannot_replace_the_jobs_own() {
    let mut spec = shell(1, "echo $RAYON_NUM_THREADS $RANK; pwd");
    spec.environment = vec![
        ("RAYON_NUM_THREADS".into(), "1".into()),
        ("RANK".into(), "9".into()),
    ];
    spec.working_directory = Some("/".into());
    assert_eq!(run(&spec).1.of(0, Stdout), ["1 0", "/"]);
}

#[test]
fn strange_output_is_safe_and_complete() {
    let script = "printf 'a\\377b\\n'; head -c 100000 /dev/zero | tr '\\0' x; echo; printf end";
    let (outcome, seen) = run(&shell(1, script));
    assert_eq!(outcome.exit, JobExit::Done);
    let lines = seen.of(0, Stdout);
    assert_eq!(lines[0], "a\u{fffd}b");
    assert_eq!(lines[lines.len() - 1], "end");
    let long = &lines[1..lines.len() - 1];
    assert!(long.iter().all(|piece| piece.len() <= LINE_BYTES_MAX));
    assert_eq!(long.concat(), "x".repeat(100_000));
}

#[test]
fn the_first_failure_ends_the_others_and_is_reported_with_its_last_lines() {
    let script = "if [ $RANK = 1 ]; then for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i >&2; \
                  done; exit 17; fi; exec sleep 600";
    let (outcome, seen) = run(&shell(3, script));
    assert_eq!(outcome.exit, JobExit::Failed(0));
    assert_eq!(outcome.exit_code(), 17);
    assert_eq!(outcome.failures.len(), 1, "{outcome:?}");
    let first = outcome.first_failure().unwrap();
    assert_eq!(first.rank, Rank(1));
    assert!(
        matches!(first.cause, FailureCause::ExitCode(17)),
        "{first:?}"
    );
    assert_eq!(first.last_lines.len(), 10);
    assert_eq!(first.last_lines[9], "line 12");
    assert!(!runs(first.pid as i32));
    let events = seen.events.lock().unwrap();
    assert!(
        matches!(&events[..], [Event::WorkerFailed { rank: Rank(1), message, .. }] if message == "exit code 17"),
        "{events:?}"
    );
}

#[test]
fn a_rank_that_is_done_leaves_the_others_alone() {
    let script = "[ $RANK = 0 ] && exit 0; sleep 0.3; echo done";
    let (outcome, seen) = run(&shell(2, script));
    assert_eq!(outcome.exit, JobExit::Done);
    assert_eq!(seen.of(1, Stdout), ["done"]);
}

#[test]
fn a_killed_rank_is_reported_with_its_signal() {
    let spec = shell(2, "echo pid $$; exec sleep 600");
    let (outcome, seen) = run_with(&spec, &mut LocalLauncher::new(), |seen, _| {
        let pids = [0, 1].map(|rank| wait_for("a pid", || seen.number(rank, "pid ")));
        kill(pids[1], "KILL");
    });
    let first = outcome.first_failure().unwrap();
    assert_eq!(first.rank, Rank(1));
    assert!(
        matches!(first.cause, FailureCause::Signal(9, "SIGKILL")),
        "{first:?}"
    );
    assert_eq!(outcome.exit_code(), 137);
    assert!(!runs(seen.number(0, "pid ").unwrap()));
}

#[test]
fn grandchildren_get_sigterm_and_then_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready").display().to_string();
    let script = format!(
        "if [ $RANK = 1 ]; then while [ ! -e {ready} ]; do sleep 0.01; done; exit 5; fi; \
         trap '' TERM; sleep 600 & echo child $!; echo pid $$; : > {ready}; wait; \
         while :; do sleep 1; done"
    );
    let mut spec = shell(2, &script);
    spec.stop_grace = Duration::from_millis(300);
    let (outcome, seen) = run(&spec);
    assert_eq!(outcome.exit_code(), 5);
    assert_eq!(outcome.failures.len(), 1, "{outcome:?}");
    for word in ["pid ", "child "] {
        let pid = seen.number(0, word).unwrap();
        assert!(!runs(pid), "{word}{pid} is left");
    }
}

#[test]
fn what_a_rank_leaves_in_the_background_is_ended() {
    let (outcome, seen) = run(&shell(1, "sleep 600 & echo child $!"));
    assert_eq!(outcome.exit, JobExit::Done);
    assert!(!runs(seen.number(0, "child ").unwrap()));
}

#[test]
fn a_process_that_leaves_the_session_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started").display().to_string();
    let daemon = format!("echo child $$; : > {started}; exec sleep 600");
    let script =
        format!("(setsid sh -c '{daemon}' &); while [ ! -e {started} ]; do sleep 0.01; done");
    let (outcome, seen) = run(&shell(1, &script));
    assert_eq!(outcome.exit, JobExit::Done);
    assert!(!runs(seen.number(0, "child ").unwrap()));
}

#[test]
fn a_stop_ends_all_and_a_second_one_at_once() {
    for insist in [false, true] {
        let trap = if insist { "trap '' TERM;" } else { "" };
        let spec = shell(
            2,
            &format!("{trap} echo pid $$; while :; do sleep 0.05; done"),
        );
        let (outcome, seen) = run_with(&spec, &mut LocalLauncher::new(), |seen, stop| {
            for rank in [0, 1] {
                wait_for("a pid", || seen.number(rank, "pid "));
            }
            stop.request(2);
            // Requests within a second count as one.
            while insist && stop.level() < StopLevel::KillNow {
                std::thread::yield_now();
                stop.request(2);
            }
        });
        assert_eq!(outcome.exit, JobExit::Stopped { signal: 2 });
        assert_eq!(outcome.exit_code(), 130);
        assert!(outcome.failures.is_empty(), "{outcome:?}");
        assert!(!runs(seen.number(1, "pid ").unwrap()));
    }
}

#[test]
fn a_missing_program_is_reported() {
    let spec = LaunchSpec::new("/no/such/program", Vec::new(), WorldSize::new(2).unwrap());
    let (outcome, _) = run(&spec);
    let first = outcome.first_failure().unwrap();
    assert!(
        matches!(&first.cause, FailureCause::Spawn(e) if e.kind() == std::io::ErrorKind::NotFound),
        "{first:?}"
    );
    assert!(
        first.cause.to_string().contains("/no/such/program"),
        "{first:?}"
    );
    assert_eq!(outcome.exit_code(), 2);
    assert_eq!(outcome.failures.len(), 1);
}

#[test]
fn workers_meet_and_their_events_arrive() {
    let (outcome, seen) = run(&workers(3, "well"));
    assert_eq!(outcome.exit, JobExit::Done, "{outcome:?}");
    let place = "task the task of [127.0.0.1:1000, 127.0.0.1:1001, 127.0.0.1:1002]";
    for rank in 0..3 {
        assert_eq!(seen.of(rank, Stdout), [place]);
    }
    assert_eq!(seen.events.lock().unwrap().len(), 9);
    let started = seen.started.lock().unwrap();
    let ranks: Vec<u32> = started.iter().map(|(place, _)| *place).collect();
    assert_eq!(ranks, [0, 1, 2]);
    assert!(started.iter().all(|(_, pid)| *pid > 0), "{started:?}");
}

#[test]
fn a_workers_own_report_is_the_cause() {
    for (how, expected) in [
        ("primary:1", "primary failure"),
        ("secondary:1", "secondary failure"),
    ] {
        let (outcome, _) = run(&workers(2, how));
        let first = outcome.first_failure().unwrap();
        assert!(first.cause.to_string().starts_with(expected), "{first:?}");
        assert_eq!(
            (first.rank, outcome.failures.len()),
            (Rank(1), 1),
            "{outcome:?}"
        );
        assert_eq!(first.last_step.map(|step| step.0), Some(2));
        assert_eq!(outcome.exit_code(), 3);
    }
}

#[test]
fn a_worker_that_dies_silently_is_reported_with_its_last_step() {
    let (outcome, _) = run(&workers(2, "dies:0"));
    let first = outcome.first_failure().unwrap();
    assert!(
        matches!(first.cause, FailureCause::ExitCode(41)),
        "{first:?}"
    );
    assert_eq!(first.last_step.map(|step| step.0), Some(2));
}
