//! [`WorkerTracker`]: the worker processes of a job as its events tell of them: who is there, and who holds the
//! whole state, so that faults leave one of those.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A worker process.
struct TrackedProcess {
    pid: u32,
    host: String,
    /// Stopped, or cut off.
    stopped: bool,
    /// Position of the event since which it takes part without a break.
    since: usize,
}

/// The newest generation that committed a step.
#[derive(Clone, Copy, Default)]
struct GenerationInfo {
    members: u64,
    /// Position of the event that it began with.
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
    /// Takes in the next event.
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

    /// Looks who lives. Whoever was there before the active generation began and makes up all of its
    /// members is one of them, and has the whole state.
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

    /// The processes that run, by place.
    pub(super) fn present(&self) -> Vec<u32> {
        self.running().map(|process| process.pid).collect()
    }

    /// Whether somebody holds the state when these are gone.
    pub(super) fn survives(&self, victims: &[u32]) -> bool {
        let stays = |process: &TrackedProcess| {
            self.whole.contains(&process.pid) && !victims.contains(&process.pid)
        };
        self.running().any(stays)
    }

    /// The processes of a host that run.
    pub(super) fn on(&self, host: &str) -> Vec<u32> {
        let there = self.running().filter(|process| process.host == host);
        there.map(|process| process.pid).collect()
    }

    /// Whether all of these take part and hold the whole state.
    pub(super) fn take_part(&self, workers: &[u32]) -> bool {
        workers.iter().all(|pid| self.whole.contains(pid))
    }

    /// The workers of a host are cut off, or no longer.
    pub(super) fn cut_off(&mut self, host: &str, is_cut: bool) {
        for process in self.processes.values_mut().filter(|p| p.host == host) {
            process.stopped = is_cut;
            process.since = self.events;
            self.whole.remove(&process.pid);
        }
    }

    /// Sends a signal to a worker; false when it has ended.
    pub(super) fn send(&mut self, pid: u32, signal: Signal) -> bool {
        // Nobody else's process, should the number have come round.
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

/// Whether a process runs: it exists and has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}
