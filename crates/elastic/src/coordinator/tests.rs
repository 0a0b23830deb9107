//! A coordinator machine with a store that answers immediately and simulated workers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::{GroupFailure, Term, WorkerReport, WorkerSlot};

const MS: u64 = 1_000_000;

struct Job {
    machine: CoordinatorMachine,
    stored: JobRecord,
    now: Time,
    sequence: u64,
    workers: BTreeMap<u64, WorkerReport>,
}

fn report(worker: u64) -> WorkerReport {
    WorkerReport {
        member: MemberInfo {
            worker: WorkerId(worker),
            slot: WorkerSlot(worker),
            host: format!("host {worker}"),
            address: "127.0.0.1:4000".parse().unwrap(),
        },
        sequence: 0,
        sent: Time(0),
        term: Term(0),
        generation: Generation(0),
        phase: WorkerPhase::Idle,
        next: None,
        has_voted: false,
        draining: false,
        trouble: None,
    }
}

impl Job {
    fn new(settings: Settings) -> Self {
        let machine = CoordinatorMachine::new(CoordinatorId(1), settings).unwrap();
        let workers = BTreeMap::new();
        let mut job = Self {
            machine,
            stored: JobRecord::default(),
            now: Time(0),
            sequence: 0,
            workers,
        };
        job.send(CoordinatorEvent::Tick);
        job
    }

    /// Sends an event and returns the commands, with the store's answers already processed.
    fn send(&mut self, event: CoordinatorEvent) -> Vec<CoordinatorCommand> {
        let mut todo = vec![CoordinatorEvent::Tick, event];
        let mut done = Vec::new();
        while let Some(event) = todo.pop() {
            for command in self.machine.handle(self.now, event) {
                match command {
                    CoordinatorCommand::Store(request) => {
                        todo.push(CoordinatorEvent::Store(self.stored.execute(request)))
                    }
                    other => done.push(other),
                }
            }
        }
        done
    }

    fn report(
        &mut self,
        worker: u64,
        change: impl FnOnce(&mut WorkerReport),
    ) -> Vec<CoordinatorCommand> {
        self.sequence += 1;
        let known = self.workers.entry(worker).or_insert_with(|| report(worker));
        change(known);
        known.sequence = self.sequence;
        let report = known.clone();
        self.send(CoordinatorEvent::Report(report))
    }

    /// Lets all workers of the newest generation report that they train in it, before step `next`.
    fn train(&mut self, next: u64) {
        let generation = self.stored.generation;
        for member in self.stored.members.clone() {
            self.report(member.worker.0, |report| {
                (report.generation, report.phase) = (generation, WorkerPhase::Training);
                (report.next, report.has_voted) = (Some(Step(next)), true);
            });
        }
    }

    /// Returns a job of workers 1 to `count` in its first generation, before step 8.
    fn training(settings: Settings, count: u64) -> Self {
        let mut job = Self::new(settings);
        for worker in 1..=count {
            job.report(worker, |_| {});
        }
        job.train(8);
        job
    }

    fn pass(&mut self, duration: Duration) -> Vec<CoordinatorCommand> {
        self.now = self.now.after(duration);
        self.send(CoordinatorEvent::Tick)
    }

    fn members(&self) -> Vec<u64> {
        self.stored
            .members
            .iter()
            .map(|member| member.worker.0)
            .collect()
    }

    fn killed(&mut self, worker: u64) -> Vec<CoordinatorCommand> {
        self.send(CoordinatorEvent::Exited {
            worker: WorkerId(worker),
            slot: WorkerSlot(worker),
            cause: LossCause::Signal(9),
        })
    }
}

fn reasons(commands: &[CoordinatorCommand]) -> Vec<String> {
    let listed = commands.iter().filter_map(|command| match command {
        CoordinatorCommand::Log(reason) => Some(reason.to_string()),
        _ => None,
    });
    listed.collect()
}

fn assigned(commands: &[CoordinatorCommand]) -> Vec<(u64, SwitchTiming)> {
    let listed = commands.iter().filter_map(|command| match command {
        CoordinatorCommand::Send {
            to,
            message: ToWorker::Assign(assignment),
        } => Some((to.0, assignment.when)),
        _ => None,
    });
    listed.collect()
}

const SETTLE: Duration = Duration::from_millis(20);

#[test]
fn the_first_generation_waits_for_the_target_number_of_workers() {
    let mut job = Job::new(Settings::new(3));
    job.report(2, |_| {});
    job.report(1, |_| {});
    assert_eq!(job.stored.generation, Generation(0));
    let commands = job.report(3, |_| {});
    assert_eq!(job.members(), [1, 2, 3]);
    assert_eq!(reasons(&commands), ["generation 1 started with 3 workers"]);
    assert_eq!(assigned(&commands).len(), 3);
}

#[test]
fn a_killed_worker_is_followed_by_a_generation_of_the_survivors() {
    let mut job = Job::training(Settings::new(4), 4);
    let commands = job.killed(2);
    // Immediately, before the next generation is decided.
    let aborts = commands.iter().filter(|command| {
        matches!(
            command,
            CoordinatorCommand::Send {
                message: ToWorker::Abort { .. },
                ..
            }
        )
    });
    assert_eq!(aborts.count(), 3);
    assert_eq!(job.stored.generation, Generation(1));
    let commands = job.pass(SETTLE);
    assert_eq!(
        reasons(&commands),
        ["worker 1 on host 2 killed (SIGKILL); recomputing step 8 with 3 workers (generation 2)"]
    );
    assert_eq!(
        assigned(&commands),
        [
            (1, SwitchTiming::Now),
            (3, SwitchTiming::Now),
            (4, SwitchTiming::Now)
        ]
    );
    assert_eq!(
        (job.members(), job.stored.start),
        (vec![1, 3, 4], crate::StartFrom::Peers)
    );
}

#[test]
fn losses_in_quick_succession_lead_to_one_generation() {
    let mut job = Job::training(Settings::new(8), 8);
    for worker in [1, 3, 6, 7] {
        job.now = Time(job.now.0 + 3 * MS);
        job.killed(worker);
    }
    job.pass(SETTLE);
    assert_eq!(
        (job.stored.generation, job.members()),
        (Generation(2), vec![2, 4, 5, 8])
    );
}

#[test]
fn a_silent_worker_is_lost_and_rejoins_at_a_step_boundary_when_it_reports_again() {
    let mut job = Job::training(Settings::new(2), 2);
    for _ in 0..4 {
        job.now = job.now.after(Duration::from_millis(400));
        job.report(1, |_| {});
    }
    assert_eq!(
        (job.stored.generation, job.members()),
        (Generation(2), vec![1])
    );
    job.train(9);
    let commands = job.report(2, |_| {});
    assert_eq!(job.members(), [1, 2]);
    assert_eq!(
        reasons(&commands),
        ["worker joined; now 2 workers (generation 3)"]
    );
    // It first leaves its old generation, and is then assigned to the new one.
    let listed = [
        (2, SwitchTiming::Now),
        (1, SwitchTiming::Boundary),
        (2, SwitchTiming::Boundary),
    ];
    assert_eq!(assigned(&commands), listed);
}

#[test]
fn a_lost_answer_is_repeated_after_the_next_report() {
    let mut job = Job::training(Settings::new(2), 2);
    job.killed(1);
    job.pass(SETTLE);
    let commands = job.report(2, |_| {});
    assert_eq!(assigned(&commands), [(2, SwitchTiming::Now)]);
    let commands = job.report(2, |report| report.generation = Generation(2));
    assert!(assigned(&commands).is_empty());
}

#[test]
fn old_and_repeated_reports_change_nothing() {
    let mut job = Job::training(Settings::new(2), 2);
    let mut old = job.workers[&2].clone();
    (old.sequence, old.phase) = (old.sequence - 1, WorkerPhase::Idle);
    assert!(job.send(CoordinatorEvent::Report(old)).is_empty());
    job.killed(2);
    let late = WorkerReport {
        sequence: 99,
        ..job.workers[&2].clone()
    };
    assert!(job.send(CoordinatorEvent::Report(late)).is_empty());
    job.pass(SETTLE);
    assert_eq!(job.members(), [1]);
}

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
                (report.generation, report.phase) = (Generation(1), phase);
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
            Generation(2),
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
fn fewer_than_the_minimum_wait_and_keep_their_state() {
    let settings = Settings {
        workers_min: 2,
        ..Settings::new(2)
    };
    let mut job = Job::training(settings, 2);
    job.killed(1);
    let commands = job.pass(SETTLE);
    assert_eq!(
        reasons(&commands),
        ["waiting for workers: 1 of at least 2; missing: worker 0; giving up in 600 s"]
    );
    job.report(2, |report| report.phase = WorkerPhase::Idle);
    let commands = job.report(5, |_| {});
    assert_eq!(job.members(), [2, 5]);
    assert!(reasons(&commands)[0].ends_with("recomputing step 8 with 2 workers (generation 2)"));
}

#[test]
fn a_group_that_fails_twice_at_a_step_continues_without_the_suspect() {
    let mut job = Job::training(Settings::new(3), 3);
    let accuse = |job: &mut Job| {
        let generation = job.stored.generation;
        for (worker, suspect) in [(1, Some(3)), (2, Some(3)), (3, None)] {
            job.report(worker, |report| {
                (report.generation, report.phase) = (generation, WorkerPhase::Idle);
                let suspect = suspect.map(WorkerId);
                report.trouble = Some(GroupFailure {
                    suspect,
                    cause: "timeout".to_owned(),
                });
            });
        }
        let half = Duration::from_millis(500);
        for _ in 0..2 {
            job.now = job.now.after(half);
            for worker in 1..=3 {
                job.report(worker, |_| {});
            }
        }
    };
    accuse(&mut job);
    assert_eq!(
        (job.stored.generation, job.members()),
        (Generation(2), vec![1, 2, 3])
    );
    accuse(&mut job);
    assert_eq!(
        (job.stored.generation, job.members()),
        (Generation(3), vec![1, 2])
    );
}

#[test]
fn a_slot_whose_workers_fail_repeatedly_is_given_up_with_the_first_cause() {
    let mut settings = Settings::new(1);
    settings.restart.restarts_max = 2;
    let mut job = Job::new(settings);
    let slots = vec![SlotStatus {
        slot: WorkerSlot(7),
        worker: None,
        ended: None,
    }];
    let mut commands = job.send(CoordinatorEvent::HostUp {
        host: "a".to_owned(),
        slots,
    });
    let mut pauses = Vec::new();
    let ended = loop {
        let start = commands.iter().find_map(|command| match command {
            CoordinatorCommand::Start { worker, slot, .. } => Some((*worker, *slot)),
            _ => None,
        });
        if let Some((worker, slot)) = start {
            pauses.push(job.now.0 / MS);
            let cause = LossCause::ExitCode(3);
            commands = job.send(CoordinatorEvent::Exited {
                worker,
                slot,
                cause,
            });
        } else if let Some(ended) = commands
            .iter()
            .find(|c| matches!(c, CoordinatorCommand::End { .. }))
        {
            break ended.clone();
        } else {
            commands = job.pass(Duration::from_millis(100));
        }
    };
    assert_eq!(pauses, [0, 500, 1500]);
    let CoordinatorCommand::End {
        ending: JobEnding::Failed,
        reason,
    } = ended
    else {
        panic!("{ended:?}");
    };
    assert_eq!(
        reason.to_string(),
        "slot 7 abandoned after 2 restarts: the last worker exited with code 3; \
         then: waiting for workers: 0 of at least 1"
    );
    assert_eq!(job.machine.wake_at(job.now), None);
}

#[test]
fn a_program_that_always_fails_before_a_checkpoint_ends_the_job_however_slowly_it_fails() {
    let mut settings = Settings::new(2);
    settings.restart.restarts_max = 2;
    let mut job = Job::training(settings, 2);
    let mut begun = 0;
    let ended = loop {
        // After the window within which failures count.
        job.now = job.now.after(settings.restart.window * 2);
        let mut commands = Vec::new();
        for worker in [begun * 2 + 1, begun * 2 + 2] {
            commands.extend(job.killed(worker));
            job.workers.remove(&worker);
        }
        begun += 1;
        for worker in [begun * 2 + 1, begun * 2 + 2] {
            commands.extend(job.report(worker, |_| {}));
        }
        let end = commands.into_iter().find_map(|command| match command {
            CoordinatorCommand::End { ending, reason } => Some((ending, reason.to_string())),
            _ => None,
        });
        if let Some(ended) = end {
            break ended;
        }
        assert!(begun < 20, "{:?}", job.stored);
        job.train(5);
    };
    assert_eq!(ended.0, JobEnding::Failed);
    assert!(
        ended
            .1
            .ends_with("lost 5 times in a row after starting from the initial weights"),
        "{}",
        ended.1
    );
}

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
fn failures_observed_by_a_previous_coordinator_count() {
    let settings = Settings {
        restart: crate::RestartLimits {
            restarts_max: 2,
            ..crate::RestartLimits::default()
        },
        ..Settings::new(2)
    };
    let mut job = Job::training(settings, 2);
    let (slot, ages) = (
        WorkerSlot(2),
        vec![Duration::from_secs(5), Duration::from_secs(1)],
    );
    job.send(CoordinatorEvent::DiedBefore { slot, ages });
    job.send(CoordinatorEvent::HostUp {
        host: "host 2".to_owned(),
        slots: vec![SlotStatus {
            slot,
            worker: Some(WorkerId(2)),
            ended: None,
        }],
    });
    let listed = reasons(&job.killed(2)).join("; ");
    assert!(
        listed.contains("slot 2 abandoned after 2 restarts"),
        "{listed}"
    );
}
