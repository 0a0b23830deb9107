//! [`World`]: hosts, processes, links, storage and time, with one event queue.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use ronde_core::Step;
use ronde_core::batch::BatchPlan;
use ronde_protocol::{
    CoordinatorId, JobRecord, LossCause, RestartLimits, Settings, SuccessionPolicy, WorkerEvent,
    WorkerId,
};

use crate::clock::{MS, SECOND};
use crate::coordinator::SimulatedCoordinator;
use crate::disk::Disk;
use crate::effect::{Alarm, HostMessage};
use crate::fact::Fact;
use crate::faults::Script;
use crate::injected_bug::InjectedBug;
use crate::model::{GLOBAL_BATCH, SAMPLES, SimulatedRun};
use crate::network::{HostIndex, Network};
use crate::rng::Rng;
use crate::worker::SimulatedWorker;

mod links;
mod processes;
mod script;

/// The interval at which an agent reports the state of its host.
const AGENT_EVERY: u64 = 200 * MS;
/// The time limit of the job after the last fault.
const CALM_MAX: u64 = 60 * SECOND;

/// The limit of events of a simulation, which also ends a storm of messages.
const EVENTS_MAX: u64 = 200_000;

/// A process, and the events that are pending while it is stopped.
#[derive(Debug)]
struct SimulatedProcess<P> {
    body: P,
    /// The number of the process on its host, to distinguish it from its successors.
    life: u64,
    paused: Option<VecDeque<ProcessEvent>>,
}

/// An event of a process.
#[derive(Debug, Clone)]
enum ProcessEvent {
    Arrives(HostIndex, HostMessage),
    Rings(Alarm),
    Signal(WorkerEvent),
}

#[derive(Debug)]
enum QueuedEvent {
    Deliver {
        from: HostIndex,
        to: HostIndex,
        message: HostMessage,
        sender: u64,
    },
    Ring {
        host: HostIndex,
        life: u64,
        alarm: Alarm,
    },
    Agent(HostIndex),
    Fault(usize),
    Resume {
        host: HostIndex,
        life: u64,
    },
    Mend(Vec<(HostIndex, HostIndex)>),
    StartCoordinator(usize),
    Calm,
    TheEnd,
}

/// The whole simulation.
#[derive(Debug)]
pub struct World {
    now: u64,
    rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: Vec<Option<QueuedEvent>>,
    free: Vec<usize>,
    count: u64,
    network: Network,
    script: Script,
    run: SimulatedRun,
    bug: Option<InjectedBug>,
    workers: Vec<Option<SimulatedProcess<SimulatedWorker>>>,
    ended: Vec<Option<(WorkerId, LossCause)>>,
    started: BTreeSet<WorkerId>,
    coordinators: Vec<Option<SimulatedProcess<SimulatedCoordinator>>>,
    /// The number of the latest process on each host of a coordinator.
    last_coordinator: Vec<Option<CoordinatorId>>,
    /// The coordinators that know that the job has ended.
    done: Vec<bool>,
    lives: u64,
    record: JobRecord,
    disk: Disk,
    facts: VecDeque<(u64, Fact)>,
    trace: Option<Vec<(u64, String)>>,
    is_calm: bool,
    is_over: bool,
    end: u64,
}

impl World {
    /// Creates the world of a seed.
    ///
    /// # Panics
    /// Never: the data set is larger than a batch.
    #[must_use]
    pub fn new(
        seed: u64,
        script: Option<Script>,
        bug: Option<InjectedBug>,
        is_traced: bool,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let script = script.unwrap_or_else(|| Script::new(&mut rng));
        let batches = BatchPlan::new(SAMPLES, GLOBAL_BATCH, false, true, seed)
            .expect("the data set is larger than a batch");
        let run = SimulatedRun {
            batches,
            shards: script.shards,
            end: Step(script.steps),
            division: script.division,
        };
        let mut network = Network::new(script.workers + script.coordinators + 1);
        (network.loss, network.twice) = (script.loss, script.loss / 2);
        network.delay_max = script.delay_max;
        let mut world = Self {
            now: 0,
            rng,
            queue: BinaryHeap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            count: 0,
            network,
            run,
            bug,
            workers: (0..script.workers).map(|_| None).collect(),
            ended: vec![None; script.workers],
            started: BTreeSet::new(),
            coordinators: (0..script.coordinators).map(|_| None).collect(),
            last_coordinator: vec![None; script.coordinators],
            done: vec![false; script.coordinators],
            lives: 0,
            record: JobRecord::default(),
            disk: Disk::new(script.loss),
            facts: VecDeque::new(),
            trace: is_traced.then(Vec::new),
            is_calm: false,
            is_over: false,
            end: script.calm + CALM_MAX,
            script,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for index in 0..self.script.coordinators {
            let at = self.rng.range(0, 400 * MS);
            self.schedule(at, QueuedEvent::StartCoordinator(index));
        }
        for host in 0..self.script.workers {
            let at = self.rng.range(0, 100 * MS);
            self.schedule(at, QueuedEvent::Agent(host));
        }
        for index in 0..self.script.faults.len() {
            self.schedule(self.script.faults[index].0, QueuedEvent::Fault(index));
        }
        self.schedule(self.script.calm, QueuedEvent::Calm);
        self.schedule(self.end, QueuedEvent::TheEnd);
    }

    /// Returns the settings of the run.
    #[must_use]
    pub fn run(&self) -> SimulatedRun {
        self.run
    }

    /// Returns the script.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Returns the trace so far, with times in nanoseconds.
    #[must_use]
    pub fn trace(&self) -> &[(u64, String)] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Returns the next fact, or `None` at the end of the simulation.
    pub fn fact(&mut self) -> Option<(u64, Fact)> {
        loop {
            if let Some(fact) = self.facts.pop_front() {
                return Some(fact);
            }
            if self.is_over {
                return None;
            }
            self.step();
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push((self.now, line()));
        }
    }

    fn tell(&mut self, fact: Fact) {
        self.facts.push_back((self.now, fact));
    }

    fn schedule(&mut self, at: u64, next: QueuedEvent) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[place] = Some(next);
        self.count += 1;
        self.queue.push(Reverse((at, self.count, place)));
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, place))) = self.queue.pop() else {
            return self.finish(false);
        };
        if self.count > EVENTS_MAX {
            self.note(|| "--- too many events".to_owned());
            return self.finish(false);
        }
        self.now = at.max(self.now);
        self.free.push(place);
        let Some(next) = self.waiting[place].take() else {
            return;
        };
        match next {
            QueuedEvent::Deliver {
                from,
                to,
                message,
                sender,
            } => self.deliver(from, to, message, sender),
            QueuedEvent::Ring { host, life, alarm } => {
                if self.life(host) == Some(life) {
                    self.happen(host, ProcessEvent::Rings(alarm));
                }
            }
            QueuedEvent::Agent(host) => {
                self.agent(host);
                self.schedule(self.now + AGENT_EVERY, QueuedEvent::Agent(host));
            }
            QueuedEvent::Fault(index) => {
                let fault = self.script.faults[index].1.clone();
                self.note(|| format!("--- fault: {fault:?}"));
                self.fault(fault);
            }
            QueuedEvent::Resume { host, life } => self.resume(host, life),
            QueuedEvent::Mend(links) => {
                self.note(|| "--- links repaired".to_owned());
                for (from, to) in links {
                    self.network.cut(from, to, false);
                }
            }
            QueuedEvent::StartCoordinator(index) => self.start_coordinator(index),
            QueuedEvent::Calm => self.calm(),
            QueuedEvent::TheEnd => self.finish(false),
        }
        let nobody = self.workers.iter().all(Option::is_none);
        if self.is_over_for_coordinators() && nobody && !self.is_over {
            self.finish(true);
        }
    }

    fn is_over_for_coordinators(&self) -> bool {
        self.is_calm && self.coordinators.iter().all(Option::is_none)
    }

    fn finish(&mut self, in_time: bool) {
        self.is_over = true;
        let running = self.workers.iter().flatten().count();
        self.tell(Fact::TheEnd { in_time, running });
    }

    fn life(&self, host: HostIndex) -> Option<u64> {
        match host.checked_sub(self.script.workers) {
            None => self.workers[host].as_ref().map(|process| process.life),
            Some(index) => self
                .coordinators
                .get(index)?
                .as_ref()
                .map(|process| process.life),
        }
    }

    fn settings(&self) -> Settings {
        let workers_max = self.script.workers as u32;
        let succession = if self.script.is_majority {
            SuccessionPolicy::Majority
        } else {
            SuccessionPolicy::Lease
        };
        Settings {
            policy: ronde_protocol::MembershipPolicy::Elastic,
            workers: self.script.wanted,
            workers_min: self.script.workers_min.min(self.script.wanted),
            workers_max,
            heartbeat: Duration::from_millis(200),
            silence: Duration::from_millis(500),
            settle: Duration::from_millis(20),
            lease: Duration::from_millis(900),
            store_timeout: Duration::from_millis(250),
            rendezvous: Duration::from_secs(2),
            first_report: Duration::from_secs(1),
            orphan_limit: Duration::from_secs(5),
            wait_limit: Duration::from_secs(3600),
            // Simulated workers exit instead of waiting for silent ones or saving together.
            state_wait: Duration::ZERO,
            hosts_may_join: true,
            is_divided: false,
            succession,
            restart: RestartLimits {
                restarts_max: 1000,
                window: Duration::from_secs(60),
                pause_first: Duration::from_millis(100),
                pause_max: Duration::from_millis(800),
            },
        }
    }
}
