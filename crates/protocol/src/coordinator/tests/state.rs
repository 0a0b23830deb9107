//! The state that a generation starts with, and waiting for the workers that may hold it.

use super::*;

#[test]
fn survivors_of_an_older_generation_wait_for_members_that_may_still_train() {
    let mut job = Job::training(Settings::new(3), 3);
    job.send(CoordinatorEvent::Disconnected {
        worker: WorkerId(3),
        cause: "reset".to_owned(),
    });
    job.pass(SETTLE);
    job.train(9);
    assert_eq!(job.members(), [1, 2]);
    // Both members of generation 2 are disconnected, and only worker 3 returns.
    for worker in [1, 2] {
        job.send(CoordinatorEvent::Disconnected {
            worker: WorkerId(worker),
            cause: "reset".to_owned(),
        });
    }
    job.report(3, |_| {});
    let commands = job.pass(SETTLE);
    let waiting = "waiting: 0 of 2 members of generation 2 are reachable, and the remaining ones may still be training; \
         missing: worker 0, 1; giving up in 600 s";
    assert_eq!(reasons(&commands), [waiting]);
    // Once they have certainly ended, the job continues with worker 3.
    job.killed(1);
    job.killed(2);
    job.pass(SETTLE);
    assert_eq!(
        (job.members(), job.stored.start),
        (vec![3], crate::StartFrom::Peers)
    );
}

/// Lets worker 3 of 3 fall silent in the first generation, before any member has a state. The others
/// report whether they have voted, and leave their group.
fn silent_before_the_first_step(has_voted: bool) -> (Job, Vec<CoordinatorCommand>) {
    let mut job = Job::new(Settings::new(3));
    for worker in 1..=3 {
        job.report(worker, |_| {});
    }
    assert_eq!(job.members(), [1, 2, 3]);
    let mut commands = Vec::new();
    for phase in [
        WorkerPhase::Forming,
        WorkerPhase::Forming,
        WorkerPhase::Idle,
    ] {
        job.now = job.now.after(Duration::from_millis(400));
        for worker in 1..=2 {
            commands.extend(job.report(worker, |report| {
                (report.generation, report.phase) = (Some(Generation(1)), phase);
                report.has_voted = has_voted;
            }));
        }
    }
    commands.extend(job.pass(SETTLE));
    (job, commands)
}

#[test]
fn a_worker_that_hangs_before_the_first_vote_does_not_block_the_others() {
    let (job, commands) = silent_before_the_first_step(false);
    assert_eq!(
        (job.stored.generation, job.members(), job.stored.start),
        (
            Some(Generation(2)),
            vec![1, 2],
            crate::StartFrom::Checkpoint(None)
        )
    );
    let reason = reasons(&commands).pop().unwrap();
    assert!(
        reason.contains("worker 2 on host 3 silent for 1.2 s"),
        "{reason}"
    );
    assert!(reason.contains("continuing with 2 workers"), "{reason}");
}

#[test]
fn a_silent_worker_that_may_have_committed_a_step_is_waited_for() {
    let (job, commands) = silent_before_the_first_step(true);
    assert_eq!(job.members(), [1, 2, 3]);
    let reason = reasons(&commands).pop().unwrap();
    assert!(
        reason.contains("that cannot be reached may hold it"),
        "{reason}"
    );
}

#[test]
fn a_state_that_a_member_has_reported_is_waited_for_although_nothing_was_committed() {
    for (later, starts_again) in [(None, true), (Some(Step(50)), false)] {
        let mut job = Job::new(Settings::new(3));
        for worker in 1..=3 {
            job.report(worker, |_| {});
        }
        // Worker 3 turns out to have a state; then it falls silent.
        job.report(3, |report| {
            (report.generation, report.phase) = (Some(Generation(1)), WorkerPhase::Forming);
            report.next = later;
        });
        for phase in [
            WorkerPhase::Forming,
            WorkerPhase::Forming,
            WorkerPhase::Idle,
        ] {
            job.now = job.now.after(Duration::from_millis(400));
            for worker in 1..=2 {
                job.report(worker, |report| {
                    (report.generation, report.phase) = (Some(Generation(1)), phase);
                });
            }
        }
        job.pass(SETTLE);
        assert_eq!(job.members() == [1, 2], starts_again, "{later:?}");
    }
}
