//! [`ClusterWorld`]: hosts, processes, links and storage.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ronde_core::Step;
use ronde_core::batch::BatchPlan;
use ronde_protocol::{
    CoordinatorId, JobRecord, LossCause, RestartLimits, Settings, SuccessionPolicy, WorkerEvent,
    WorkerId,
};

use crate::clock::{MS, SECOND};
use crate::cluster::coordinator::SimulatedCoordinator;
use crate::cluster::counts::{ClusterSummary, FactCounter};
use crate::cluster::disk::Disk;
use crate::cluster::effect::{Alarm, HostMessage};
use crate::cluster::fact::Fact;
use crate::cluster::faults::Script;
use crate::cluster::injected_bug::InjectedBug;
use crate::cluster::invariants::{self, Invariant};
use crate::cluster::model::{GLOBAL_BATCH, SAMPLES, SimulatedRun};
use crate::cluster::worker::SimulatedWorker;
use crate::harness::{BrokenInvariant, SimulatedWorld, WorldStart};
use crate::network::{HostIndex, LinkFaults, Network};
use crate::rng::Rng;
use crate::timeline::Timeline;

mod links;
mod processes;
mod script;

/// The interval at which an agent reports the state of its host.
const AGENT_EVERY: u64 = 200 * MS;
/// The time limit of the job after the last fault.
const CALM_MAX: u64 = 60 * SECOND;

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

/// An event of the world.
#[derive(Debug)]
pub enum QueuedEvent {
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
}

/// A world of a whole cluster: coordinators, a store, workers, and the storage of their job.
pub struct ClusterWorld {
    timeline: Timeline<QueuedEvent>,
    rng: Rng,
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
    /// The facts that the invariants have not seen yet.
    facts: VecDeque<Fact>,
    invariants: Vec<Box<dyn Invariant>>,
    counter: FactCounter,
    is_calm: bool,
}

impl SimulatedWorld for ClusterWorld {
    const NAME: &'static str = "cluster";
    const BUGS: &'static [(&'static str, InjectedBug)] = &InjectedBug::ALL;
    type Bug = InjectedBug;
    type Script = Script;
    type Event = QueuedEvent;
    type Summary = ClusterSummary;

    fn draw_script(rng: &mut Rng) -> Script {
        Script::new(rng)
    }

    fn new(start: WorldStart<Self>) -> Self {
        let WorldStart {
            seed,
            rng,
            script,
            bug,
            is_traced,
        } = start;
        let batches = BatchPlan::new(SAMPLES, GLOBAL_BATCH, false, true, seed)
            .expect("the data set is larger than a batch");
        let run = SimulatedRun {
            batches,
            shards: script.shards,
            end: Step(script.steps),
            division: script.division,
        };
        let faults = LinkFaults {
            loss: script.loss,
            twice: script.loss / 2,
            late: if script.loss > 0 { 20 } else { 0 },
            late_by: 150 * MS,
        };
        let hosts = script.workers + script.coordinators + 1;
        let mut world = Self {
            timeline: Timeline::new(script.calm + CALM_MAX, is_traced),
            rng,
            network: Network::new(hosts, faults, (MS / 10, script.delay_max)),
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
            invariants: invariants::all(run, &script),
            counter: FactCounter::default(),
            is_calm: false,
            script,
        };
        world.begin();
        world
    }

    fn timeline(&mut self) -> &mut Timeline<QueuedEvent> {
        &mut self.timeline
    }

    fn execute(&mut self, event: QueuedEvent) {
        match event {
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
                self.timeline
                    .schedule_after(AGENT_EVERY, QueuedEvent::Agent(host));
            }
            QueuedEvent::Fault(index) => {
                let fault = self.script.faults[index].1.clone();
                self.timeline.note(|| format!("--- fault: {fault:?}"));
                self.fault(fault);
            }
            QueuedEvent::Resume { host, life } => self.resume(host, life),
            QueuedEvent::Mend(links) => {
                self.timeline.note(|| "--- links repaired".to_owned());
                for (from, to) in links {
                    self.network.cut(from, to, false);
                }
            }
            QueuedEvent::StartCoordinator(index) => self.start_coordinator(index),
            QueuedEvent::Calm => self.calm(),
        }
    }

    fn check(&mut self) -> Result<bool, BrokenInvariant> {
        let nobody = self.workers.iter().all(Option::is_none)
            && self.coordinators.iter().all(Option::is_none);
        let is_over = self.is_calm && nobody;
        if is_over {
            self.tell_end(true);
        }
        self.check_facts()?;
        Ok(is_over)
    }

    fn check_timeout(&mut self) -> Result<(), BrokenInvariant> {
        self.tell_end(false);
        self.check_facts()
    }

    fn summary(&self) -> ClusterSummary {
        self.counter.summary.clone()
    }
}

impl ClusterWorld {
    fn begin(&mut self) {
        for index in 0..self.script.coordinators {
            let at = self.rng.range(0, 400 * MS);
            self.timeline
                .schedule(at, QueuedEvent::StartCoordinator(index));
        }
        for host in 0..self.script.workers {
            let at = self.rng.range(0, 100 * MS);
            self.timeline.schedule(at, QueuedEvent::Agent(host));
        }
        for index in 0..self.script.faults.len() {
            self.timeline
                .schedule(self.script.faults[index].0, QueuedEvent::Fault(index));
        }
        self.timeline.schedule(self.script.calm, QueuedEvent::Calm);
    }

    fn tell(&mut self, fact: Fact) {
        self.facts.push_back(fact);
    }

    fn tell_end(&mut self, in_time: bool) {
        let running = self.workers.iter().flatten().count();
        self.tell(Fact::TheEnd { in_time, running });
    }

    /// Shows the new facts to all invariants.
    fn check_facts(&mut self) -> Result<(), BrokenInvariant> {
        let at = self.timeline.now();
        while let Some(fact) = self.facts.pop_front() {
            self.counter.count(&fact);
            for invariant in &mut self.invariants {
                let seen = invariant.see(at, &fact);
                seen.map_err(|message| BrokenInvariant {
                    invariant: invariant.name(),
                    message,
                })?;
            }
        }
        Ok(())
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
