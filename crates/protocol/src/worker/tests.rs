//! A worker machine with simulated messages of a coordinator and a group.

use std::time::Duration;

use super::*;
use crate::assignment::GenerationPurpose;
use crate::membership::{StartFrom, WorkerId, WorkerSlot};

fn member(worker: u64) -> MemberInfo {
    MemberInfo {
        worker: WorkerId(worker),
        slot: WorkerSlot(worker),
        host: "a".to_owned(),
        address: "127.0.0.1:4000".parse().unwrap(),
    }
}

fn assignment(
    term: u64,
    generation: u64,
    workers: &[u64],
    when: SwitchTiming,
) -> GenerationAssignment {
    GenerationAssignment {
        term: Term(term),
        generation: Generation(generation),
        members: workers.iter().map(|worker| member(*worker)).collect(),
        start: StartFrom::Checkpoint(None),
        purpose: GenerationPurpose::Train,
        awaited: 0,
        when,
        reason: Reason::Drained,
    }
}

fn assign(term: u64, generation: u64, workers: &[u64], when: SwitchTiming) -> WorkerEvent {
    WorkerEvent::Coordinator(ToWorker::Assign(assignment(
        term, generation, workers, when,
    )))
}

struct Worker {
    machine: WorkerMachine,
    now: Time,
}

impl Worker {
    fn new() -> Self {
        let machine = WorkerMachine::new(member(1), Settings::new(3), Step(5), Time(0)).unwrap();
        Self {
            machine,
            now: Time(0),
        }
    }

    /// Sends an event and returns the commands except for reports.
    fn send(&mut self, event: WorkerEvent) -> Vec<WorkerCommand> {
        let mut commands = self.machine.handle(self.now, event);
        commands.retain(|command| !matches!(command, WorkerCommand::Report(_)));
        commands
    }

    /// Returns a worker that trains in generation 2 of term 1 with the workers 1 and 2, before step 3.
    fn training() -> Self {
        let mut worker = Self::new();
        worker.send(assign(1, 2, &[1, 2], SwitchTiming::Now));
        let (generation, next) = (Generation(2), Step(3));
        worker.send(WorkerEvent::CaughtUp {
            generation,
            next,
            is_whole: true,
        });
        worker
    }

    fn vote(&mut self, step: u64, newest: u64) -> Vec<WorkerCommand> {
        let (generation, step) = (Generation(2), Step(step));
        self.send(WorkerEvent::Reduced { generation, step });
        let newest = Generation(newest);
        self.send(WorkerEvent::Voted {
            generation,
            step,
            newest,
        })
    }

    fn is_at(&self, phase: WorkerPhase, generation: u64, next: u64) {
        let machine = &self.machine;
        assert_eq!(
            (machine.phase(), machine.generation()),
            (phase, Some(Generation(generation)))
        );
        assert_eq!(machine.next_step(), Some(Step(next)));
    }
}

fn computes(commands: &[WorkerCommand]) -> Option<Step> {
    commands.iter().find_map(|command| match command {
        WorkerCommand::Compute { step, .. } => Some(*step),
        _ => None,
    })
}

#[test]
fn a_step_is_committed_by_the_votes_alone() {
    let mut worker = Worker::training();
    let commands = worker.vote(3, 2);
    let (generation, term, step) = (Generation(2), Term(1), Step(3));
    assert_eq!(
        commands,
        [
            WorkerCommand::Commit { generation, step },
            WorkerCommand::Record {
                generation,
                term,
                step
            },
            WorkerCommand::Compute {
                generation,
                step: Step(4)
            },
        ]
    );
    worker.vote(4, 2);
    worker.is_at(WorkerPhase::Complete, 2, 5);
}

#[test]
fn votes_of_other_generations_and_steps_and_without_a_gradient_are_ignored() {
    let mut worker = Worker::training();
    let voted = |generation, step| WorkerEvent::Voted {
        generation: Generation(generation),
        step: Step(step),
        newest: Generation(2),
    };
    assert!(worker.send(voted(2, 3)).is_empty(), "it holds no gradient");
    worker.send(WorkerEvent::Reduced {
        generation: Generation(2),
        step: Step(3),
    });
    for (generation, step) in [(1, 3), (3, 3), (2, 2), (2, 4)] {
        assert!(worker.send(voted(generation, step)).is_empty());
    }
    worker.is_at(WorkerPhase::Training, 2, 3);
}

#[test]
fn an_abort_drops_the_group_and_keeps_the_state() {
    let mut worker = Worker::training();
    worker.send(WorkerEvent::Reduced {
        generation: Generation(2),
        step: Step(3),
    });
    let abort = |generation| {
        WorkerEvent::Coordinator(ToWorker::Abort {
            term: Term(1),
            generation: Generation(generation),
            reason: Reason::Drained,
        })
    };
    assert!(worker.send(abort(1)).is_empty());
    let commands = worker.send(abort(2));
    assert!(matches!(
        &commands[..],
        [WorkerCommand::Leave {
            in_order: false,
            ..
        }]
    ));
    let commands = worker.send(assign(1, 3, &[1], SwitchTiming::Now));
    assert!(
        matches!(
            &commands[..],
            [WorkerCommand::Connect { rank: Rank(0), .. }]
        ),
        "{commands:?}"
    );
    worker.is_at(WorkerPhase::Forming, 3, 3);
    // The step in flight is computed again, in the new generation.
    let level = WorkerEvent::CaughtUp {
        generation: Generation(3),
        next: Step(3),
        is_whole: true,
    };
    assert_eq!(computes(&worker.send(level)), Some(Step(3)));
}

#[test]
fn a_generation_at_the_boundary_is_entered_after_a_vote_that_mentions_it() {
    let mut worker = Worker::training();
    assert!(
        worker
            .send(assign(1, 3, &[1, 2, 3], SwitchTiming::Boundary))
            .is_empty()
    );
    let reduced = WorkerEvent::Reduced {
        generation: Generation(2),
        step: Step(3),
    };
    let vote = worker.send(reduced);
    assert!(matches!(
        &vote[..],
        [WorkerCommand::Vote {
            newest: Generation(3),
            ..
        }]
    ));
    let voted = WorkerEvent::Voted {
        generation: Generation(2),
        step: Step(3),
        newest: Generation(3),
    };
    let commands = worker.send(voted);
    assert!(
        commands
            .iter()
            .any(|c| matches!(c, WorkerCommand::Leave { in_order: true, .. }))
    );
    assert_eq!(computes(&commands), None);
    worker.is_at(WorkerPhase::Forming, 3, 4);
}

#[test]
fn a_worker_knows_that_the_next_generation_lacks_members() {
    let drops = |workers: &[u64]| {
        let mut worker = Worker::training();
        worker.send(assign(1, 3, workers, SwitchTiming::Boundary));
        worker.machine.drops_members()
    };
    assert!(!Worker::training().machine.drops_members());
    assert!(!drops(&[1, 2, 3]), "a worker joins");
    assert!(drops(&[1, 3]) && drops(&[2]));
    assert!(!drops(&[]), "the job stops");
}

#[test]
fn a_gradient_of_an_earlier_generation_does_not_count() {
    let mut worker = Worker::training();
    worker.send(WorkerEvent::Reduced {
        generation: Generation(2),
        step: Step(3),
    });
    worker.send(assign(1, 3, &[1, 2], SwitchTiming::Now));
    let (generation, step) = (Generation(3), Step(3));
    worker.send(WorkerEvent::CaughtUp {
        generation,
        next: step,
        is_whole: true,
    });
    let voted = WorkerEvent::Voted {
        generation,
        step,
        newest: generation,
    };
    assert!(worker.send(voted).is_empty());
    worker.is_at(WorkerPhase::Training, 3, 3);
}

#[test]
fn a_worker_without_the_new_assignment_leaves_with_the_other_members() {
    let mut worker = Worker::training();
    worker.vote(3, 3);
    worker.is_at(WorkerPhase::Idle, 2, 4);
    worker.send(assign(1, 3, &[1, 2, 3], SwitchTiming::Boundary));
    worker.is_at(WorkerPhase::Forming, 3, 4);
}

#[test]
fn a_generation_that_waits_for_the_boundary_also_starts_at_the_end_of_the_run() {
    let mut worker = Worker::training();
    worker.send(assign(1, 3, &[1, 2, 3], SwitchTiming::Boundary));
    worker.is_at(WorkerPhase::Training, 2, 3);
    let generation = Generation(2);
    let commands = worker.send(WorkerEvent::Ended { generation });
    let connects = |command: &WorkerCommand| matches!(command, WorkerCommand::Connect { .. });
    assert!(commands.iter().any(connects), "{commands:?}");
    worker.is_at(WorkerPhase::Forming, 3, 3);
}

#[test]
fn a_group_that_fails_at_the_boundary_is_left_for_the_next_generation_at_once() {
    let mut worker = Worker::training();
    worker.send(assign(1, 3, &[1, 2, 3], SwitchTiming::Boundary));
    let cause = "lost".to_owned();
    worker.send(WorkerEvent::Failed {
        generation: Generation(2),
        suspect: None,
        is_unreachable: false,
        cause,
    });
    worker.is_at(WorkerPhase::Forming, 3, 3);
}

#[test]
fn messages_of_old_terms_and_generations_are_ignored() {
    let mut worker = Worker::training();
    let ack = ToWorker::Ack {
        term: Term(7),
        echo: Time(0),
    };
    worker.send(WorkerEvent::Coordinator(ack));
    worker.send(assign(6, 9, &[1], SwitchTiming::Now));
    worker.send(assign(7, 2, &[1], SwitchTiming::Now));
    worker.send(assign(7, 1, &[1], SwitchTiming::Now));
    let end = ToWorker::End {
        term: Term(6),
        reason: Reason::Drained,
    };
    worker.send(WorkerEvent::Coordinator(end));
    worker.is_at(WorkerPhase::Training, 2, 3);
}

#[test]
fn a_fenced_worker_keeps_its_state_and_can_rejoin() {
    let mut worker = Worker::training();
    let fence = ToWorker::Fence {
        term: Term(1),
        generation: Generation(5),
    };
    let commands = worker.send(WorkerEvent::Coordinator(fence));
    assert!(matches!(commands[0], WorkerCommand::Leave { .. }));
    worker.is_at(WorkerPhase::Idle, 2, 3);
    worker.send(assign(1, 6, &[2, 1], SwitchTiming::Now));
    worker.is_at(WorkerPhase::Forming, 6, 3);
}

#[test]
fn a_group_trains_without_a_coordinator_up_to_the_limit() {
    let mut worker = Worker::training();
    let limit = Settings::new(3).orphan_limit;
    worker.now = Time(0).after(limit - Duration::from_nanos(1));
    assert!(worker.vote(3, 2).len() > 1);
    worker.now = Time(0).after(limit);
    let commands = worker.vote(4, 2);
    assert!(commands.is_empty(), "it has ended: {commands:?}");
    assert_eq!(worker.machine.wake_at(), None);
}

#[test]
fn an_acknowledgement_counts_from_when_the_report_was_sent() {
    let mut worker = Worker::training();
    let limit = Settings::new(3).orphan_limit;
    worker.now = Time(5_000);
    let echo = Time(1_000);
    worker.send(WorkerEvent::Coordinator(ToWorker::Ack {
        term: Term(1),
        echo,
    }));
    worker.now = echo.after(limit);
    let commands = worker.send(WorkerEvent::Tick);
    assert!(matches!(
        commands.last(),
        Some(WorkerCommand::End(Reason::NoCoordinator { .. }))
    ));
}

#[test]
fn a_draining_worker_ends_when_it_is_no_longer_a_member() {
    let mut worker = Worker::training();
    assert!(worker.send(WorkerEvent::Drain).is_empty());
    worker.send(assign(1, 3, &[2], SwitchTiming::Boundary));
    let commands = worker.vote(3, 3);
    assert!(matches!(
        commands.last(),
        Some(WorkerCommand::End(Reason::Drained))
    ));
    let mut fresh = Worker::new();
    let commands = fresh.send(WorkerEvent::Drain);
    assert!(matches!(
        commands.last(),
        Some(WorkerCommand::End(Reason::Drained))
    ));
}

#[test]
fn a_report_states_whether_the_worker_has_voted_in_its_generation() {
    let mut worker = Worker::training();
    let reports = |worker: &mut Worker| {
        let commands = worker.machine.handle(worker.now, WorkerEvent::Connected);
        commands.into_iter().find_map(|command| match command {
            WorkerCommand::Report(report) => Some(report.has_voted),
            _ => None,
        })
    };
    assert_eq!(reports(&mut worker), Some(false));
    worker.vote(3, 2);
    assert_eq!(reports(&mut worker), Some(true));
    worker.send(assign(1, 3, &[1], SwitchTiming::Now));
    assert_eq!(reports(&mut worker), Some(false));
}

#[test]
fn messages_are_single_lines_of_json() {
    let mut machine = Worker::training().machine;
    let commands = machine.handle(Time(1), WorkerEvent::Connected);
    let Some(WorkerCommand::Report(report)) = commands.first() else {
        panic!("{commands:?}");
    };
    let line = serde_json::to_string(report).unwrap();
    assert!(!line.contains('\n'));
    assert_eq!(
        serde_json::from_str::<WorkerReport>(&line).unwrap(),
        *report
    );
    let message = ToWorker::Assign(assignment(1, 2, &[1, 2], SwitchTiming::Boundary));
    let line = serde_json::to_string(&message).unwrap();
    assert!(
        line.starts_with(r#"{"message":"assign","term":1,"generation":2,"members":[{"worker":1"#)
    );
    assert_eq!(serde_json::from_str::<ToWorker>(&line).unwrap(), message);
}

#[test]
fn a_worker_of_a_job_that_stops_does_not_leave_before_its_checkpoint() {
    for drains_first in [false, true] {
        let mut worker = Worker::training();
        let stops = assign(1, 3, &[], SwitchTiming::Now);
        let events = match drains_first {
            true => [WorkerEvent::Drain, stops],
            false => [stops, WorkerEvent::Drain],
        };
        for event in events {
            let commands = worker.send(event);
            let ends = |command: &WorkerCommand| matches!(command, WorkerCommand::End(_));
            assert!(!commands.iter().any(ends), "{commands:?}");
        }
        let term = Term(1);
        let commands = worker.send(WorkerEvent::Coordinator(ToWorker::Checkpoint { term }));
        let generation = Generation(3);
        let next = Step(3);
        assert_eq!(commands, [WorkerCommand::Checkpoint { generation, next }]);
        assert_eq!(worker.machine.draining, drains_first);
    }
}

#[test]
fn a_worker_reports_at_once_that_it_cannot_save_until_it_enters_another_generation() {
    let mut worker = Worker::training();
    let mut cannot_save = |event| {
        let commands = worker.machine.handle(worker.now, event);
        commands.iter().find_map(|command| match command {
            WorkerCommand::Report(report) => Some(report.cannot_save),
            _ => None,
        })
    };
    let members = |generation| assign(1, generation, &[1, 2], SwitchTiming::Now);
    assert_eq!(cannot_save(members(3)), Some(false));
    let generation = Generation(3);
    assert_eq!(
        cannot_save(WorkerEvent::NotSaved { generation }),
        Some(true)
    );
    assert_eq!(cannot_save(members(4)), Some(false));
}
