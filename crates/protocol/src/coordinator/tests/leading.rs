//! The lease, the record, and the end of a job.

use super::*;
use crate::journal::StoreRequest;

#[test]
fn a_coordinator_that_learns_of_a_higher_term_sends_nothing_more() {
    let mut job = Job::training(Settings::new(2), 2);
    job.stored.term = Term(2);
    job.stored.holder = Some(CoordinatorId(9));
    job.stored.version += 1;
    let commands = job.report(1, |report| report.term = Term(2));
    assert!(
        commands
            .iter()
            .all(|command| !matches!(command, CoordinatorCommand::Send { .. }))
    );
    assert!(!job.machine.leads(job.now));
    assert!(reasons(&commands)[0].starts_with("term 1 has ended"));
}

#[test]
fn a_checkpoint_is_published_in_the_record_of_its_generation_only() {
    let mut job = Job::training(Settings::new(2), 2);
    let written = |generation| CoordinatorEvent::CheckpointWritten {
        generation,
        next: Step(6),
    };
    job.send(written(Generation(7)));
    assert_eq!(job.stored.checkpoint, None);
    job.send(written(Generation(1)));
    assert_eq!(
        (job.stored.checkpoint, job.stored.term),
        (Some(Step(6)), Term(1))
    );
}

#[test]
fn an_abandoned_job_stops_without_a_checkpoint_in_any_phase() {
    for was_stopping in [false, true] {
        let mut job = Job::training(Settings::new(2), 2);
        if was_stopping {
            job.send(CoordinatorEvent::Stop {
                by: "SIGTERM".to_owned(),
            });
            assert_eq!(job.stored.phase, JobPhase::Stopping);
        }
        let commands = job.send(CoordinatorEvent::Abandon {
            by: "SIGINT".to_owned(),
        });
        assert_eq!(job.stored.phase, JobPhase::Stopped);
        let ended = commands.iter().filter(|command| {
            matches!(
                command,
                CoordinatorCommand::Send {
                    message: ToWorker::End { .. },
                    ..
                }
            )
        });
        assert_eq!(ended.count(), 2);
        job.killed(1);
        let commands = job.killed(2);
        let Some(CoordinatorCommand::End { ending, reason }) = commands.last() else {
            panic!("{commands:?}");
        };
        assert_eq!(*ending, JobEnding::Stopped);
        assert!(reason.to_string().contains("SIGINT"), "{reason}");
    }
}

#[test]
fn a_generation_of_an_earlier_coordinator_is_logged_with_its_size() {
    let job = Job::training(Settings::new(2), 2);
    let machine = CoordinatorMachine::new(CoordinatorId(2), Settings::new(2)).unwrap();
    let mut next = Job { machine, ..job };
    let coordinator = CoordinatorId(1);
    let commands = next.send(CoordinatorEvent::CoordinatorEnded { coordinator });
    assert_eq!(
        reasons(&commands),
        [
            "this coordinator leads in term 2, generation 1",
            "now 2 workers (generation 1, formed by an earlier decision)",
        ]
    );
}

/// Processes an event and returns the requests to the store, which does not answer yet.
fn unanswered(job: &mut Job, event: CoordinatorEvent) -> Vec<StoreRequest> {
    let commands = job.machine.handle(job.now, event).into_iter();
    let requests = commands.filter_map(|command| match command {
        CoordinatorCommand::Store(request) => Some(request),
        _ => None,
    });
    requests.collect()
}

#[test]
fn a_change_whose_answer_was_lost_is_announced_with_what_is_stored() {
    let settings = Settings::new(3);
    let mut job = Job::training(settings, 3);
    job.killed(1);
    job.now = job.now.after(SETTLE);
    // This request for a generation of workers 2 and 3 reaches the store late.
    let late = unanswered(&mut job, CoordinatorEvent::Tick);
    job.now = job.now.after(settings.store_timeout);
    let mut requests = Vec::new();
    for worker in [2, 3] {
        let mut report = job.workers[&worker].clone();
        report.sequence += 10;
        requests.extend(unanswered(&mut job, CoordinatorEvent::Report(report)));
    }
    let ended = CoordinatorEvent::Exited {
        worker: WorkerId(2),
        slot: WorkerSlot(2),
        cause: LossCause::Signal(9),
    };
    requests.extend(unanswered(&mut job, ended));
    // The record is read again, and a generation of worker 3 is requested.
    let read = job.stored.execute(requests.remove(0));
    let second = unanswered(&mut job, CoordinatorEvent::Store(read));
    for request in late {
        job.stored.execute(request);
    }
    let reply = second
        .into_iter()
        .map(|request| job.stored.execute(request))
        .next();
    let commands = job
        .machine
        .handle(job.now, CoordinatorEvent::Store(reply.unwrap()));
    assert_eq!(job.members(), [2, 3]);
    let listed = reasons(&commands);
    assert_eq!(
        listed[0],
        "now 2 workers (generation 2, formed by an earlier decision)"
    );
}

#[test]
fn fixed_members_form_one_generation_and_are_neither_replaced_nor_aborted() {
    let mut job = Job::new(Settings::fixed(3));
    let slots = (1..=3).map(|slot| SlotStatus {
        slot: WorkerSlot(slot),
        worker: Some(WorkerId(slot)),
        ended: None,
    });
    job.send(CoordinatorEvent::HostUp {
        host: "here".to_owned(),
        slots: slots.collect(),
    });
    job.report(1, |_| {});
    job.report(2, |_| {});
    // However long the last one takes.
    assert_eq!(job.pass(Duration::from_secs(86_400)), []);
    job.report(3, |_| {});
    assert_eq!(job.members(), [1, 2, 3]);
    job.train(8);
    let mut commands = job.pass(Duration::from_secs(86_400));
    commands.extend(job.killed(2));
    commands.extend(job.pass(Duration::from_secs(86_400)));
    assert_eq!(commands, []);
    assert_eq!(job.stored.generation, Some(Generation::FIRST));
}

#[test]
fn fixed_members_that_have_all_finished_are_dismissed_together() {
    let mut job = Job::new(Settings::fixed(2));
    for worker in [1, 2] {
        job.report(worker, |_| {});
    }
    job.train(8);
    let complete = |report: &mut WorkerReport| report.phase = WorkerPhase::Complete;
    job.report(1, complete);
    let commands = job.report(2, complete);
    assert_eq!(job.stored.phase, JobPhase::Finished);
    let ended = commands.iter().filter(|command| {
        matches!(
            command,
            CoordinatorCommand::Send {
                message: ToWorker::End { .. },
                ..
            }
        )
    });
    assert_eq!(ended.count(), 2);
}

#[test]
fn a_job_stops_without_a_checkpoint_once_every_worker_has_failed_to_save_it() {
    let mut job = Job::training(Settings::new(2), 2);
    let by = "SIGTERM".to_owned();
    job.send(CoordinatorEvent::Stop { by });
    let generation = job.stored.generation;
    let requested = |commands: &[CoordinatorCommand]| {
        let to = |command: &CoordinatorCommand| match command {
            CoordinatorCommand::Send {
                to,
                message: ToWorker::Checkpoint { .. },
            } => Some(to.0),
            _ => None,
        };
        commands.iter().find_map(to)
    };
    let left = |report: &mut WorkerReport| {
        (report.generation, report.phase) = (generation, WorkerPhase::Idle);
        report.next = Some(Step(9));
    };
    job.report(1, left);
    assert_eq!(requested(&job.report(2, left)), Some(1));
    let commands = job.report(1, |report| report.cannot_save = true);
    assert_eq!(requested(&commands), None, "at most one per heartbeat");
    let commands = job.pass(job.machine.settings.heartbeat);
    assert_eq!(requested(&commands), Some(2), "it may write elsewhere");
    assert_eq!(job.stored.phase, JobPhase::Stopping);
    job.report(2, |report| report.cannot_save = true);
    assert_eq!(
        (job.stored.phase, job.stored.checkpoint),
        (JobPhase::Stopped, None)
    );
}
