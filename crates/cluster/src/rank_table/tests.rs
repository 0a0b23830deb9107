//! The first failure, in scripted orders of events.

use super::*;

enum CoordinatorInput {
    Link(u32),
    Unlink(u32),
    Report(u32, bool),
    Ends(u32, ProcessExit),
    Signal(u32, StopSignal),
}
use CoordinatorInput::*;

fn report(rank: u32, secondary: bool) -> Event {
    Event::WorkerFailed {
        rank: Rank(rank),
        message: format!("rank {rank} reports"),
        last_step: Some(Step(7)),
        secondary,
        user_error: false,
    }
}

/// Plays inputs (milliseconds, what) and returns the failures in order with the first one marked.
fn check(inputs: &[(u64, CoordinatorInput)], expected: &[&str]) {
    let mut roster = RankTable::new(WorldSize::new(3).unwrap());
    for rank in 0..3 {
        let started = StartedProcess {
            pid: 100 + rank,
            host: "here".into(),
        };
        roster.started(Rank(rank), started);
    }
    for (at, input) in inputs {
        let now = Duration::from_millis(*at);
        roster.judge(now);
        match input {
            Link(rank) => roster.linked(Rank(*rank)),
            Unlink(rank) => roster.unlinked(Rank(*rank)),
            Report(rank, secondary) => {
                roster.recorded(Rank(*rank), &report(*rank, *secondary), now)
            }
            Ends(rank, end) => roster.ended(Rank(*rank), *end, now),
            Signal(rank, signal) => roster.signalled(Rank(*rank), *signal),
        }
    }
    roster.judge(Duration::from_secs(60));
    let (failures, first) = roster.into_failures();
    let signalled: Vec<String> = failures
        .iter()
        .enumerate()
        .map(|(at, f)| {
            let mark = if Some(at) == first { "first: " } else { "" };
            format!("{mark}{} {}", f.rank, f.cause)
        })
        .collect();
    assert_eq!(signalled, expected);
}

#[test]
fn ends_become_failures_or_do_not() {
    check(
        &[
            (0, Ends(0, ProcessExit::Code(0))),
            (1, Ends(1, ProcessExit::Code(0))),
        ],
        &[],
    );
    check(
        &[(0, Ends(1, ProcessExit::Code(4)))],
        &["first: 1 exit code 4"],
    );
    check(
        &[
            (0, Ends(1, ProcessExit::Signal(11))),
            (1, Ends(0, ProcessExit::Code(1))),
        ],
        &["first: 1 killed by signal 11 (SIGSEGV)", "0 exit code 1"],
    );
    let signalled = |signal, end| [(0, Signal(2, signal)), (5, Ends(2, end))];
    check(
        &signalled(StopSignal::Terminate, ProcessExit::Signal(15)),
        &[],
    );
    check(&signalled(StopSignal::Terminate, ProcessExit::Code(1)), &[]);
    check(&signalled(StopSignal::Kill, ProcessExit::Signal(9)), &[]);
    check(
        &signalled(StopSignal::Terminate, ProcessExit::Signal(9)),
        &["first: 2 killed by signal 9 (SIGKILL)"],
    );
    // Told after its end: that was its own.
    check(
        &[
            (0, Ends(2, ProcessExit::Signal(15))),
            (1, Signal(2, StopSignal::Terminate)),
        ],
        &["first: 2 killed by signal 15 (SIGTERM)"],
    );
}

#[test]
fn a_report_replaces_the_exit_code_in_whatever_order_they_come() {
    let expected = &["first: 1 rank 1 reports"][..];
    check(
        &[
            (0, Link(1)),
            (1, Report(1, false)),
            (2, Unlink(1)),
            (3, Ends(1, ProcessExit::Code(3))),
        ],
        expected,
    );
    check(
        &[
            (0, Link(1)),
            (1, Ends(1, ProcessExit::Code(3))),
            (100, Report(1, false)),
            (101, Unlink(1)),
        ],
        expected,
    );
}

#[test]
fn a_primary_failure_that_is_seen_late_is_first_all_the_same() {
    check(
        &[
            (0, Link(0)),
            (10, Report(0, true)),
            (90, Ends(1, ProcessExit::Signal(9))),
            (95, Ends(0, ProcessExit::Code(3))),
        ],
        &["0 rank 0 reports", "first: 1 killed by signal 9 (SIGKILL)"],
    );
    check(&[(10, Report(2, true))], &["first: 2 rank 2 reports"]);
}

#[test]
fn a_secondary_failure_waits_and_a_primary_one_does_not() {
    let mut roster = RankTable::new(WorldSize::new(2).unwrap());
    assert!(!roster.must_stop(Duration::from_secs(9)));
    let at = Duration::from_millis(50);
    roster.recorded(Rank(0), &report(0, true), at);
    assert!(!roster.must_stop(at + SETTLE / 2));
    assert!(roster.must_stop(at + SETTLE));
    roster.recorded(Rank(1), &report(1, false), at);
    assert!(roster.must_stop(at));
}

#[test]
fn an_open_connection_is_drained_before_an_end_is_judged() {
    let mut roster = RankTable::new(WorldSize::ONE);
    let started = StartedProcess {
        pid: 1,
        host: "here".into(),
    };
    roster.started(Rank(0), started);
    roster.linked(Rank(0));
    roster.ended(Rank(0), ProcessExit::Code(1), Duration::ZERO);
    assert!(roster.judge(SETTLE / 2).is_empty());
    assert!(!roster.judged(Rank(0)));
    assert_eq!(
        roster.judge(SETTLE),
        [(Rank(0), "exit code 1".to_owned())],
        "a link may stay open in a grandchild"
    );
    assert!(roster.judged(Rank(0)));
}
