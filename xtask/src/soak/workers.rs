//! [`WorkerTracker`]: the worker processes of a job, from its events: which ones run and which ones hold the whole
//! state, so that faults never hit all of the latter.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A worker process.
struct TrackedProcess {
    pid: u32,
    host: String,
    /// Whether the process is stopped or its host is disconnected.
    stopped: bool,
    /// The index of the event since which the process takes part without interruption.
    since: usize,
}

/// The newest generation that committed a step.
#[derive(Clone, Copy, Default)]
struct GenerationInfo {
    members: u64,
    /// The index of the event that announced the generation.
    begun: usize,
}

/// The workers of one job.
#[derive(Default)]
pub(super) struct WorkerTracker {
    processes: BTreeMap<u64, TrackedProcess>,
    generations: BTreeMap<u64, GenerationInfo>,
    first: GenerationInfo,
    active: Option<GenerationInfo>,
    whole: BTreeSet<u32>,
    events: usize,
}

impl WorkerTracker {
    /// Records the next event.
    pub(super) fn record(&mut self, event: &Value) {
        let at = self.events;
        self.events += 1;
        let number = |key: &str| event[key].as_u64().unwrap_or_default();
        let members = number("world_size");
        match event["event"].as_str() {
            Some("worker_started") => {
                let process = TrackedProcess {
                    pid: number("pid") as u32,
                    host: event["host"].as_str().unwrap_or_default().to_owned(),
                    stopped: false,
                    since: at,
                };
                self.processes.insert(number("place"), process);
            }
            Some("run_started") => self.first = GenerationInfo { members, begun: at },
            Some("membership_changed") => {
                let generation = GenerationInfo { members, begun: at };
                self.generations.insert(number("generation"), generation);
            }
            Some("step_committed") => {
                let known = self.generations.get(&number("generation"));
                self.active = Some(known.copied().unwrap_or(self.first));
            }
            _ => {}
        }
    }

    /// Updates the set of workers with the whole state. If all running workers started before the active generation and
    /// are as many as its members, they are its members and have the whole state.
    pub(super) fn update(&mut self) {
        let Some(active) = self.active.take() else {
            return;
        };
        let present: Vec<&TrackedProcess> = self.running().collect();
        let are_members = present.iter().all(|process| process.since < active.begun);
        if present.len() as u64 == active.members && are_members {
            self.whole = present.iter().map(|process| process.pid).collect();
        }
    }

    fn running(&self) -> impl Iterator<Item = &TrackedProcess> {
        let runs = |process: &&TrackedProcess| !process.stopped && is_alive(process.pid);
        self.processes.values().filter(runs)
    }

    /// Returns the running processes, by worker slot.
    pub(super) fn present(&self) -> Vec<u32> {
        self.running().map(|process| process.pid).collect()
    }

    /// Returns whether a worker with the state remains without `victims`.
    pub(super) fn survives(&self, victims: &[u32]) -> bool {
        let stays = |process: &TrackedProcess| {
            self.whole.contains(&process.pid) && !victims.contains(&process.pid)
        };
        self.running().any(stays)
    }

    /// Returns the running processes of a host.
    pub(super) fn on(&self, host: &str) -> Vec<u32> {
        let there = self.running().filter(|process| process.host == host);
        there.map(|process| process.pid).collect()
    }

    /// Returns whether all of these workers take part and hold the whole state.
    pub(super) fn take_part(&self, workers: &[u32]) -> bool {
        workers.iter().all(|pid| self.whole.contains(pid))
    }

    /// Records that the workers of a host are disconnected, or connected again.
    pub(super) fn cut_off(&mut self, host: &str, is_cut: bool) {
        for process in self.processes.values_mut().filter(|p| p.host == host) {
            process.stopped = is_cut;
            process.since = self.events;
            self.whole.remove(&process.pid);
        }
    }

    /// Sends a signal to a worker; returns false if it has exited.
    pub(super) fn send(&mut self, pid: u32, signal: Signal) -> bool {
        // The process id may have been reused, so check that the process is a worker.
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        let is_worker = arguments.is_ok_and(|text| text.contains("__worker"));
        let target = Pid::from_raw(pid.cast_signed()).filter(|_| is_worker);
        let is_sent = target.is_some_and(|pid| kill_process(pid, signal).is_ok());
        let met = self.processes.values_mut().find(|p| p.pid == pid);
        if let Some(process) = met {
            process.stopped = signal == Signal::STOP;
            process.since = self.events;
            self.whole.remove(&pid);
        }
        is_sent
    }
}

/// Returns whether a process exists and has not exited.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}
