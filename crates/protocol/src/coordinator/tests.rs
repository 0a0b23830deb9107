//! A coordinator machine with a store that answers immediately and simulated workers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::membership::{Term, WorkerSlot};
use crate::message::{GroupFailure, WorkerReport};

mod divided;
mod leading;
mod restarts;
mod state;

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
        generation: None,
        phase: WorkerPhase::Idle,
        next: None,
        has_voted: false,
        lacks_state: false,
        cannot_save: false,
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
    assert_eq!(job.stored.generation, None);
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
    assert_eq!(job.stored.generation, Some(Generation(1)));
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
        (Some(Generation(2)), vec![2, 4, 5, 8])
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
        (Some(Generation(2)), vec![1])
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
    let commands = job.report(2, |report| report.generation = Some(Generation(2)));
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
                    is_unreachable: false,
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
        (Some(Generation(2)), vec![1, 2, 3])
    );
    accuse(&mut job);
    assert_eq!(
        (job.stored.generation, job.members()),
        (Some(Generation(3)), vec![1, 2])
    );
}

/// Lets a group of four fail with these suspects of the workers 1 to 4, to which they could not connect. Returns the reasons.
fn fail_to_connect(job: &mut Job, suspects: [Option<u64>; 4]) -> String {
    let generation = job.stored.generation;
    for (worker, suspect) in (1..).zip(suspects) {
        job.report(worker, |report| {
            (report.generation, report.phase) = (generation, WorkerPhase::Idle);
            report.trouble = Some(GroupFailure {
                suspect: suspect.map(WorkerId),
                is_unreachable: suspect.is_some(),
                cause: "lost group rank 1".to_owned(),
            });
        });
    }
    let mut commands = Vec::new();
    for _ in 0..2 {
        job.now = job.now.after(Duration::from_millis(500));
        for worker in 1..=4 {
            commands.extend(job.report(worker, |_| {}));
        }
    }
    reasons(&commands).join("\n")
}

#[test]
fn a_member_that_only_others_cannot_reach_is_late_and_not_excluded() {
    let mut job = Job::training(Settings::new(4), 4);
    for generation in 2..5 {
        fail_to_connect(&mut job, [Some(3), Some(3), None, Some(3)]);
        assert_eq!(
            (job.stored.generation, job.members()),
            (Some(Generation(generation)), vec![1, 2, 3, 4])
        );
    }
}

#[test]
fn all_members_of_a_host_that_cannot_connect_are_excluded_if_enough_remain() {
    for (workers_min, expected) in [(2, vec![1, 2]), (3, vec![1, 2, 3])] {
        let settings = Settings {
            workers_min,
            ..Settings::new(4)
        };
        let mut job = Job::new(settings);
        for (worker, host) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
            job.report(worker, |report| report.member.host = host.to_owned());
        }
        job.train(8);
        fail_to_connect(&mut job, [Some(4), Some(4), Some(1), Some(1)]);
        assert_eq!(job.members(), expected, "at least {workers_min}");
    }
}

#[test]
fn of_two_members_that_cannot_connect_one_is_excluded_at_once_and_both_are_named() {
    let mut job = Job::training(Settings::new(4), 4);
    let shown = fail_to_connect(&mut job, [None, Some(4), None, Some(2)]);
    assert_eq!(
        (job.stored.generation, job.members()),
        (Some(Generation(2)), vec![1, 2, 3])
    );
    for part in [
        "worker 4 on",
        "cannot connect to worker 2 on",
        "worker 4 is excluded",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn an_older_generation_that_nobody_has_left_blocks_new_workers() {
    let settings = Settings {
        workers_min: 1,
        ..Settings::new(3)
    };
    let mut job = Job::training(settings, 3);
    // Workers 1 and 2 are silent: they may still train together.
    for _ in 0..4 {
        job.now = job.now.after(Duration::from_millis(400));
        job.report(3, |_| {});
    }
    assert_eq!(
        (job.stored.generation, job.members()),
        (Some(Generation(2)), vec![3])
    );
    // Worker 3 is killed before it has left generation 1 for generation 2, which is over with it.
    job.killed(3);
    job.report(4, |_| {});
    for _ in 0..4 {
        job.now = job.now.after(Duration::from_millis(400));
        job.report(4, |_| {});
    }
    assert_eq!(job.stored.generation, Some(Generation(2)));
}
