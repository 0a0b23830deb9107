//! Starting, restarting and killing workers.

use super::*;

#[test]
fn a_slot_whose_workers_fail_repeatedly_is_given_up_with_the_last_cause() {
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

/// Offers slot `worker` of host `host 1` with its worker, which runs.
fn host_with(job: &mut Job, workers: &[u64]) {
    let slots = workers.iter().map(|worker| SlotStatus {
        slot: WorkerSlot(*worker),
        worker: Some(WorkerId(*worker)),
        ended: None,
    });
    job.send(CoordinatorEvent::HostUp {
        host: "host 1".to_owned(),
        slots: slots.collect(),
    });
}

/// Lets time pass while only these workers report; returns the workers that are killed.
fn pass_with(job: &mut Job, seconds: u64, reporting: &[u64]) -> Vec<u64> {
    let mut commands = Vec::new();
    for _ in 0..seconds * 2 {
        job.now = job.now.after(Duration::from_millis(500));
        for worker in reporting {
            commands.extend(job.report(*worker, |_| {}));
        }
        commands.extend(job.pass(Duration::ZERO));
    }
    let killed = commands.iter().filter_map(|command| match command {
        CoordinatorCommand::Kill { worker, .. } => Some(worker.0),
        _ => None,
    });
    killed.collect()
}

#[test]
fn a_silent_worker_that_may_have_received_the_only_state_is_not_killed() {
    for is_copied in [false, true] {
        let settings = Settings {
            workers_max: 2,
            // The replacement of worker 1 does not report either.
            first_report: Duration::from_secs(60),
            ..Settings::new(1)
        };
        let mut job = Job::training(settings, 1);
        job.send(CoordinatorEvent::Scale { workers: 2 });
        host_with(&mut job, &[1, 2]);
        job.report(2, |_| {});
        assert_eq!(job.members(), [1, 2]);
        // Worker 2 copies the state, and falls silent before it reports that it has it.
        for worker in [1, 2] {
            job.report(worker, |report| {
                report.generation = Some(Generation(2));
                report.phase = WorkerPhase::Training;
            });
        }
        if is_copied {
            job.killed(1);
        }
        let reporting: &[u64] = if is_copied { &[] } else { &[1] };
        let killed = pass_with(&mut job, 20, reporting);
        let expected: &[u64] = if is_copied { &[] } else { &[2] };
        assert_eq!(killed, expected);
    }
}

#[test]
fn a_worker_that_was_told_to_end_does_not_join_again() {
    let mut job = Job::training(Settings::new(2), 2);
    host_with(&mut job, &[1, 2]);
    job.send(CoordinatorEvent::Scale { workers: 1 });
    job.report(1, |_| {});
    job.report(2, |_| {});
    assert_eq!(job.members(), [1]);
    let idle = |report: &mut WorkerReport| {
        report.phase = WorkerPhase::Idle;
        report.generation = None;
        report.next = None;
    };
    job.report(2, idle);
    let commands = job.report(1, |report| {
        report.generation = Some(Generation(2));
        report.phase = WorkerPhase::Training;
    });
    let is_end = |command: &CoordinatorCommand| {
        matches!(
            command,
            CoordinatorCommand::Send {
                message: ToWorker::End { .. },
                ..
            }
        )
    };
    assert!(commands.iter().any(is_end), "{commands:#?}");
    // The number of workers rises before its process has ended.
    job.send(CoordinatorEvent::Scale { workers: 2 });
    job.report(2, idle);
    job.report(1, |report| {
        report.generation = Some(Generation(2));
        report.phase = WorkerPhase::Training;
    });
    assert_eq!(job.members(), [1]);
}

#[test]
fn workers_are_not_killed_for_the_silence_of_their_host() {
    let mut job = Job::training(Settings::new(3), 3);
    // Worker 3 runs on another host, so the job continues without the stalled one.
    host_with(&mut job, &[1, 2]);
    let host = || "host 1".to_owned();
    job.report(1, |report| report.next = None);
    job.report(2, |report| report.next = None);
    job.now = job.now.after(Duration::from_secs(1));
    job.send(CoordinatorEvent::HostSilent { host: host() });
    assert!(pass_with(&mut job, 30, &[3]).is_empty());
    // Just after the end of the stall the workers have not reported yet.
    job.send(CoordinatorEvent::HostResponds { host: host() });
    assert!(pass_with(&mut job, 1, &[3]).is_empty());
    // Worker 1 hangs by itself.
    assert_eq!(pass_with(&mut job, 10, &[2, 3]), [1]);
}

/// Starts a job of two workers, whose worker 2 never reports. Returns after how many half seconds it is killed, and when
/// the first generation starts without it.
fn without_a_first_report(
    host_of_2: &str,
    each_time: &[CoordinatorEvent],
) -> (Job, [Option<u64>; 2]) {
    let mut job = Job::new(Settings::new(2));
    for (host, worker) in [("host 1", 1), (host_of_2, 2)] {
        let slots = vec![SlotStatus {
            slot: WorkerSlot(worker),
            worker: Some(WorkerId(worker)),
            ended: None,
        }];
        let host = host.to_owned();
        job.send(CoordinatorEvent::HostUp { host, slots });
    }
    let (mut killed, mut begun) = (None, None);
    for time in 1..=130 {
        job.now = job.now.after(Duration::from_millis(500));
        let mut commands = job.report(1, |_| {});
        for event in each_time {
            commands.extend(job.send(event.clone()));
        }
        commands.extend(job.pass(Duration::ZERO));
        let is_kill = |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::Kill { worker, .. } if worker.0 == 2);
        if commands.iter().any(is_kill) {
            killed.get_or_insert(time);
        }
        if job.stored.generation.is_some() {
            begun.get_or_insert(time);
        }
    }
    (job, [killed, begun])
}

#[test]
fn a_worker_that_makes_no_progress_before_its_first_report_delays_the_start_little() {
    // Its process is stopped, and cannot be killed either.
    let (_, stopped) = without_a_first_report("host 1", &[]);
    assert_eq!(stopped, [Some(21), Some(24)]);
    // Its process loads from a slow disk.
    let worker = WorkerId(2);
    let (_, slow) = without_a_first_report("host 1", &[CoordinatorEvent::Busy { worker }]);
    assert_eq!(slow, [Some(121), Some(120)]);
    // Its host does not respond.
    let host = "host 2".to_owned();
    let silent = [CoordinatorEvent::HostSilent { host: host.clone() }];
    let (mut job, times) = without_a_first_report("host 2", &silent);
    assert_eq!(times, [None, Some(24)]);
    job.train(1);
    job.send(CoordinatorEvent::HostResponds { host });
    job.report(2, |_| {});
    assert_eq!(job.members(), [1, 2], "it joins later");
}

#[test]
fn the_first_generation_does_not_wait_for_a_host_that_became_silent() {
    let mut job = Job::new(Settings::new(3));
    for (host, workers) in [("host 1", vec![1]), ("host 2", vec![2, 3])] {
        let slots = workers.iter().map(|worker| SlotStatus {
            slot: WorkerSlot(*worker),
            worker: Some(WorkerId(*worker)),
            ended: None,
        });
        let (host, slots) = (host.to_owned(), slots.collect());
        job.send(CoordinatorEvent::HostUp { host, slots });
    }
    // Only one worker of the silent host has reported before.
    job.report(2, |_| {});
    let host = "host 2".to_owned();
    job.send(CoordinatorEvent::HostSilent { host });
    let begun = (1..=130).find(|_| {
        job.now = job.now.after(Duration::from_millis(500));
        job.report(1, |_| {});
        job.stored.generation.is_some()
    });
    // 10 s after its loss, and twice the silence of 1 s.
    assert!(
        begun.is_some_and(|begun| (26..=28).contains(&begun)),
        "{begun:?}"
    );
    assert_eq!(job.members(), [1]);
}

#[test]
fn a_job_that_no_host_can_join_does_not_wait_for_workers_of_slots_that_are_given_up() {
    for hosts_may_join in [false, true] {
        let mut settings = Settings::new(2);
        (settings.workers_min, settings.hosts_may_join) = (2, hosts_may_join);
        settings.restart.restarts_max = 0;
        let mut job = Job::training(settings, 2);
        let slot = |number: u64| SlotStatus {
            slot: WorkerSlot(number),
            worker: Some(WorkerId(number)),
            ended: None,
        };
        job.send(CoordinatorEvent::HostUp {
            host: "a".to_owned(),
            slots: vec![slot(1), slot(2)],
        });
        job.killed(2);
        job.pass(settings.settle);
        job.pass(settings.settle);
        // The remaining worker saves its state first.
        let is_stopping = job.stored.phase == JobPhase::Stopping;
        assert_eq!(is_stopping, !hosts_may_join);
    }
}
