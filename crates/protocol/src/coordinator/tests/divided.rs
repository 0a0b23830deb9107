//! States whose parts may be on different workers.

use super::*;

fn divided(workers: u32) -> Settings {
    Settings {
        is_divided: true,
        ..Settings::new(workers)
    }
}

/// Lets the members of the newest generation find that they lack parts of the state, and leave their group.
fn lack_state(job: &mut Job) -> Vec<CoordinatorCommand> {
    let generation = job.stored.generation;
    let mut commands = Vec::new();
    for member in job.stored.members.clone() {
        commands.extend(job.report(member.worker.0, |report| {
            (report.generation, report.phase) = (generation, WorkerPhase::Idle);
            report.lacks_state = true;
        }));
    }
    commands
}

/// Returns a job of three workers whose last two have fallen silent, and the first one has found that it lacks parts of the
/// state.
fn one_of_three_remains(settings: Settings) -> (Job, Vec<CoordinatorCommand>) {
    let mut job = Job::training(settings, 3);
    for _ in 0..4 {
        job.now = job.now.after(Duration::from_millis(400));
        job.report(1, |_| {});
    }
    assert_eq!(job.members(), [1]);
    let mut commands = lack_state(&mut job);
    for _ in 0..3 {
        job.now = job.now.after(Duration::from_millis(400));
        commands.extend(job.report(1, |_| {}));
    }
    (job, commands)
}

fn awaited(commands: &[CoordinatorCommand]) -> Vec<u32> {
    let of = |command: &CoordinatorCommand| match command {
        CoordinatorCommand::Send {
            message: ToWorker::Assign(assignment),
            ..
        } => Some(assignment.awaited),
        _ => None,
    };
    commands.iter().filter_map(of).collect()
}

#[test]
fn members_without_a_part_of_the_state_wait_for_silent_workers() {
    let (mut job, commands) = one_of_three_remains(divided(3));
    assert_eq!(
        reasons(&commands),
        [
            "waiting: the remaining workers have only parts of the state; 2 workers without an answer may have the others; \
             returning to an earlier state in 28 s"
        ]
    );
    assert_eq!(job.members(), [1]);
    // One of them is back.
    job.report(2, |report| report.phase = WorkerPhase::Idle);
    let commands = job.pass(SETTLE);
    assert_eq!(job.members(), [1, 2]);
    assert!(awaited(&commands).iter().all(|awaited| *awaited == 1));
}

#[test]
fn silent_workers_are_not_waited_for_longer_than_the_limit_or_after_their_end() {
    let (mut job, _) = one_of_three_remains(divided(3));
    let generation = job.stored.generation;
    job.killed(3);
    job.pass(SETTLE);
    assert_eq!(job.stored.generation, generation, "worker 2 may come back");
    let mut commands = Vec::new();
    for _ in 0..80 {
        job.now = job.now.after(Duration::from_millis(400));
        commands.extend(job.report(1, |_| {}));
    }
    assert!(job.stored.generation > generation);
    let awaited_later = awaited(&commands);
    assert!(!awaited_later.is_empty() && awaited_later.iter().all(|awaited| *awaited == 0));
    let (mut job, _) = one_of_three_remains(divided(3));
    job.killed(2);
    let commands = job.killed(3);
    let later = job.pass(SETTLE);
    assert_eq!(awaited(&[commands, later].concat()), [0]);
}

#[test]
fn the_state_that_no_part_is_missing_of_needs_no_silent_worker() {
    let mut job = Job::training(divided(3), 3);
    for _ in 0..4 {
        job.now = job.now.after(Duration::from_millis(400));
        job.report(1, |_| {});
        job.report(2, |_| {});
    }
    assert_eq!(job.members(), [1, 2]);
    job.train(9);
    assert!(job.machine.waits_for().is_none());
}

/// Lets a worker leave its group for the newest generation.
fn leave(job: &mut Job, worker: u64) -> Vec<CoordinatorCommand> {
    let generation = job.stored.generation;
    job.report(worker, |report| {
        (report.generation, report.phase) = (generation, WorkerPhase::Idle);
    })
}

#[test]
fn remaining_workers_save_together_when_a_job_stops_that_waits_for_others() {
    let settings = Settings {
        workers_min: 3,
        ..divided(3)
    };
    let mut job = Job::training(settings, 3);
    job.killed(3);
    job.pass(SETTLE);
    for worker in [1, 2] {
        job.report(worker, |report| report.phase = WorkerPhase::Idle);
    }
    job.send(CoordinatorEvent::Stop {
        by: "a test".to_owned(),
    });
    assert_eq!(job.stored.phase, JobPhase::Stopping);
    let mut commands = leave(&mut job, 1);
    commands.extend(leave(&mut job, 2));
    assert_eq!(job.members(), [1, 2]);
    let purposes = commands.iter().filter_map(|command| match command {
        CoordinatorCommand::Send {
            message: ToWorker::Assign(assignment),
            ..
        } if !assignment.members.is_empty() => Some(assignment.purpose),
        _ => None,
    });
    assert_eq!(
        purposes.collect::<Vec<_>>(),
        [crate::GenerationPurpose::Save; 2]
    );
    let generation = job.stored.generation.unwrap();
    job.train(8);
    job.send(CoordinatorEvent::CheckpointWritten {
        generation,
        next: Step(8),
    });
    let commands = [job.killed(1), job.killed(2), job.pass(SETTLE)].concat();
    assert_eq!(job.stored.checkpoint, Some(Step(8)));
    let is_end = |command: &CoordinatorCommand| {
        matches!(
            command,
            CoordinatorCommand::End {
                ending: JobEnding::Stopped,
                ..
            }
        )
    };
    assert!(commands.iter().any(is_end), "{commands:?}");
}

#[test]
fn a_job_that_stops_waits_for_silent_workers_with_parts_of_the_state() {
    let (mut job, _) = one_of_three_remains(divided(3));
    job.send(CoordinatorEvent::Stop {
        by: "a test".to_owned(),
    });
    let commands = leave(&mut job, 1);
    assert_eq!(job.members(), [1]);
    assert!(awaited(&commands).contains(&2));
    lack_state(&mut job);
    let generation = job.stored.generation;
    job.pass(SETTLE);
    assert_eq!(
        (job.stored.generation, job.stored.phase),
        (generation, JobPhase::Stopping)
    );
    job.report(2, |report| report.phase = WorkerPhase::Idle);
    job.pass(SETTLE);
    assert_eq!(job.members(), [1, 2]);
    assert!(job.stored.generation > generation);
}

#[test]
fn a_job_whose_remaining_worker_leaves_waits_for_silent_ones() {
    let (mut job, _) = one_of_three_remains(divided(3));
    job.report(1, |report| report.draining = true);
    job.pass(SETTLE);
    assert_eq!(job.stored.phase, JobPhase::Running);
    job.killed(2);
    job.killed(3);
    job.pass(SETTLE);
    assert_eq!(job.stored.phase, JobPhase::Stopping);
}

#[test]
fn a_job_that_waits_in_vain_saves_its_state_and_fails() {
    for is_divided in [false, true] {
        let settings = Settings {
            workers_min: 2,
            is_divided,
            ..Settings::new(2)
        };
        let mut job = Job::training(settings, 2);
        job.killed(2);
        job.pass(SETTLE);
        job.report(1, |report| report.phase = WorkerPhase::Idle);
        let mut commands = Vec::new();
        while job.stored.phase == JobPhase::Running {
            job.now = job.now.after(Duration::from_millis(500));
            commands.extend(job.report(1, |_| {}));
        }
        commands.extend(leave(&mut job, 1));
        let saves = commands.iter().any(|command| match command {
            CoordinatorCommand::Send { message, .. } => match message {
                ToWorker::Checkpoint { .. } => !is_divided,
                ToWorker::Assign(assignment) => is_divided && assignment.members.len() == 1,
                _ => false,
            },
            _ => false,
        });
        assert!(saves, "{is_divided}: {commands:?}");
        let generation = job.stored.generation.unwrap();
        let mut commands = job.send(CoordinatorEvent::CheckpointWritten {
            generation,
            next: Step(8),
        });
        commands.extend(job.killed(1));
        commands.extend(job.pass(SETTLE));
        let failed = commands.iter().find_map(|command| match command {
            CoordinatorCommand::End { ending, reason } => Some((*ending, reason.to_string())),
            _ => None,
        });
        let (ending, reason) = failed.unwrap();
        assert_eq!(ending, JobEnding::Failed);
        assert!(
            reason.contains("waiting for workers: 1 of at least 2"),
            "{reason}"
        );
    }
}
