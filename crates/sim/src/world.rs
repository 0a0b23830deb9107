//! [`World`]: hosts, processes, links, storage and time; one queue of what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ronde_core::Step;
use ronde_core::batch::BatchPlan;
use ronde_core::ledger::Ledger;
use ronde_elastic::{
    CoordinatorId, Event, LossCause, Member, Place, PlaceState, Record, RestartLimits, Settings,
    StoreReply, StoreRequest, Succession, WorkerEvent, WorkerId,
};

use crate::clock::{MS, SECOND};
use crate::coordinator::Coordinator;
use crate::effect::{Alarm, Effect, Effects, Message};
use crate::fact::{Exit, Fact};
use crate::faults::{Fault, Script};
use crate::group::{Frame, Part};
use crate::model::{GLOBAL_BATCH, Run, SAMPLES, State};
use crate::network::{Host, Network};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::worker::Worker;

/// How often an agent says how its host stands.
const AGENT_EVERY: u64 = 200 * MS;
/// How long the job may take once nothing goes wrong any more.
const CALM_MAX: u64 = 60 * SECOND;

/// Events of a whole simulation: a storm of messages must end as well.
const EVENTS_MAX: u64 = 200_000;

/// The job's storage: checkpoints that are being written, and complete ones.
#[derive(Debug, Default)]
pub struct Disk {
    states: BTreeMap<Step, (State, Ledger, bool)>,
}

impl Disk {
    /// A checkpoint is begun.
    pub fn begin(&mut self, next: Step, state: State, ledger: Ledger) {
        self.states.entry(next).or_insert((state, ledger, false));
    }

    /// A checkpoint is complete.
    pub fn complete(&mut self, next: Step) {
        if let Some((_, _, is_complete)) = self.states.get_mut(&next) {
            *is_complete = true;
        }
    }

    /// A complete checkpoint.
    #[must_use]
    pub fn read(&self, next: Step) -> Option<(State, Ledger)> {
        let complete = self
            .states
            .get(&next)
            .filter(|(_, _, is_complete)| *is_complete);
        complete.map(|(state, ledger, _)| (state.clone(), ledger.clone()))
    }
}

/// A process and what waits for it while it is stopped.
#[derive(Debug)]
struct Process<P> {
    body: P,
    /// Tells one process at a place from the next.
    life: u64,
    paused: Option<VecDeque<Happening>>,
}

/// What can happen to a process.
#[derive(Debug, Clone)]
enum Happening {
    Arrives(Host, Message),
    Rings(Alarm),
    Signal(WorkerEvent),
}

#[derive(Debug)]
enum Next {
    Deliver {
        from: Host,
        to: Host,
        message: Message,
        sender: u64,
    },
    Ring {
        host: Host,
        life: u64,
        alarm: Alarm,
    },
    Agent(Host),
    Fault(usize),
    Resume {
        host: Host,
        life: u64,
    },
    Mend(Vec<(Host, Host)>),
    StartCoordinator(usize),
    Calm,
    TheEnd,
}

/// Everything.
#[derive(Debug)]
pub struct World {
    now: u64,
    rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: Vec<Option<Next>>,
    free: Vec<usize>,
    count: u64,
    network: Network,
    script: Script,
    run: Run,
    sabotage: Option<Sabotage>,
    workers: Vec<Option<Process<Worker>>>,
    ended: Vec<Option<(WorkerId, LossCause)>>,
    coordinators: Vec<Option<Process<Coordinator>>>,
    /// Coordinators that have seen the end of the job.
    done: Vec<bool>,
    lives: u64,
    record: Record,
    disk: Disk,
    facts: VecDeque<(u64, Fact)>,
    trace: Option<Vec<(u64, String)>>,
    is_calm: bool,
    is_over: bool,
    end: u64,
}

impl World {
    /// The world of a seed at its beginning.
    ///
    /// # Panics
    /// Never: the data set is larger than a batch.
    #[must_use]
    pub fn new(
        seed: u64,
        script: Option<Script>,
        sabotage: Option<Sabotage>,
        is_traced: bool,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let script = script.unwrap_or_else(|| Script::new(&mut rng));
        let batches = BatchPlan::new(SAMPLES, GLOBAL_BATCH, false, true, seed)
            .expect("the data set is larger than a batch");
        let run = Run {
            batches,
            shards: script.shards,
            end: Step(script.steps),
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
            sabotage,
            workers: (0..script.workers).map(|_| None).collect(),
            ended: vec![None; script.workers],
            coordinators: (0..script.coordinators).map(|_| None).collect(),
            done: vec![false; script.coordinators],
            lives: 0,
            record: Record::default(),
            disk: Disk::default(),
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
            self.schedule(at, Next::StartCoordinator(index));
        }
        for host in 0..self.script.workers {
            let at = self.rng.range(0, 100 * MS);
            self.schedule(at, Next::Agent(host));
        }
        for index in 0..self.script.faults.len() {
            self.schedule(self.script.faults[index].0, Next::Fault(index));
        }
        self.schedule(self.script.calm, Next::Calm);
        self.schedule(self.end, Next::TheEnd);
    }

    /// What the run is about.
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// The script.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// The trace so far, with times in nanoseconds.
    #[must_use]
    pub fn trace(&self) -> &[(u64, String)] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// The next fact, or `None` when the simulation is over.
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

    fn schedule(&mut self, at: u64, next: Next) {
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
            Next::Deliver {
                from,
                to,
                message,
                sender,
            } => self.deliver(from, to, message, sender),
            Next::Ring { host, life, alarm } => {
                if self.life(host) == Some(life) {
                    self.happen(host, Happening::Rings(alarm));
                }
            }
            Next::Agent(host) => {
                self.agent(host);
                self.schedule(self.now + AGENT_EVERY, Next::Agent(host));
            }
            Next::Fault(index) => {
                let fault = self.script.faults[index].1.clone();
                self.note(|| format!("--- fault: {fault:?}"));
                self.fault(fault);
            }
            Next::Resume { host, life } => self.resume(host, life),
            Next::Mend(links) => {
                self.note(|| "--- links mended".to_owned());
                for (from, to) in links {
                    self.network.cut(from, to, false);
                }
            }
            Next::StartCoordinator(index) => self.start_coordinator(index),
            Next::Calm => self.calm(),
            Next::TheEnd => self.finish(false),
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

    fn life(&self, host: Host) -> Option<u64> {
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
            Succession::Majority
        } else {
            Succession::Lease
        };
        Settings {
            workers: self.script.wanted,
            workers_min: self.script.workers_min.min(self.script.wanted),
            workers_max,
            heartbeat: Duration::from_millis(200),
            silence: Duration::from_millis(500),
            settle: Duration::from_millis(20),
            lease: Duration::from_millis(900),
            store_timeout: Duration::from_millis(250),
            rendezvous: Duration::from_secs(2),
            orphan_limit: Duration::from_secs(5),
            wait_limit: Duration::from_secs(3600),
            succession,
            restart: RestartLimits {
                restarts_max: 1000,
                window: Duration::from_secs(60),
                pause_first: Duration::from_millis(100),
                pause_max: Duration::from_millis(800),
            },
        }
    }

    // Messages.

    fn deliver(&mut self, from: Host, to: Host, message: Message, sender: u64) {
        if !message.is_datagram() && self.network.is_cut(from, to) {
            // Sent again until it arrives or its sender is gone.
            if self.life(from) == Some(sender) {
                let at = self.now + 40 * MS;
                self.schedule(
                    at,
                    Next::Deliver {
                        from,
                        to,
                        message,
                        sender,
                    },
                );
            }
            return;
        }
        match message {
            Message::Start(worker) => self.start_worker(to, worker),
            Message::Kill(worker) => {
                if self.workers[to]
                    .as_ref()
                    .is_some_and(|process| process.body.id == worker)
                {
                    self.end_worker(to, Exit::Killed);
                }
            }
            Message::Ask(index, request) => self.store(index, *request),
            message => self.happen(to, Happening::Arrives(from, message)),
        }
    }

    fn send(&mut self, from: Host, to: Host, message: Message, extra: u64, sender: u64) {
        let is_datagram = message.is_datagram();
        if is_datagram && from != to {
            let is_lost = self.rng.per_mille(self.network.loss) || self.network.is_cut(from, to);
            if is_lost {
                return;
            }
            if self.rng.per_mille(self.network.twice) {
                let at = self.now + self.network.delay(&mut self.rng);
                let message = message.clone();
                self.schedule(
                    at,
                    Next::Deliver {
                        from,
                        to,
                        message,
                        sender,
                    },
                );
            }
        }
        let at = self.now + self.network.delay(&mut self.rng) + extra;
        self.schedule(
            at,
            Next::Deliver {
                from,
                to,
                message,
                sender,
            },
        );
    }

    fn store(&mut self, index: usize, request: StoreRequest) {
        let (id, before) = (request.id(), self.record.version);
        let mut reply = match (self.sabotage, request) {
            (Some(Sabotage::StoreForgets), StoreRequest::Swap { record, .. })
                if record.generation > self.record.generation =>
            {
                StoreReply { id, record }
            }
            (Some(Sabotage::StoreComparesNothing), StoreRequest::Swap { record, .. }) => {
                self.record = record;
                StoreReply {
                    id,
                    record: self.record.clone(),
                }
            }
            (_, request) => self.record.execute(request),
        };
        reply.id = id;
        if self.record.version != before {
            let record = self.record.clone();
            self.tell(Fact::Stored(record));
        }
        let (from, to) = (self.network_store(), self.script.workers + index);
        self.send(from, to, Message::Answer(Box::new(reply)), 0, 0);
    }

    fn network_store(&self) -> Host {
        self.script.workers + self.script.coordinators
    }

    // Processes.

    fn happen(&mut self, host: Host, happening: Happening) {
        let workers = self.script.workers;
        if host < workers {
            let Some(mut process) = self.workers[host].take() else {
                return;
            };
            if let Some(paused) = &mut process.paused {
                paused.push_back(happening);
                self.workers[host] = Some(process);
                return;
            }
            let life = process.life;
            let effects = self.with_effects(|fx| act(&mut process.body, happening, fx));
            self.workers[host] = Some(process);
            self.do_all(host, life, effects);
            return;
        }
        let Some(mut process) = self
            .coordinators
            .get_mut(host - workers)
            .and_then(Option::take)
        else {
            return;
        };
        if let Some(paused) = &mut process.paused {
            paused.push_back(happening);
            self.coordinators[host - workers] = Some(process);
            return;
        }
        let life = process.life;
        let effects = self.with_effects(|fx| match happening {
            Happening::Arrives(from, message) => process.body.take(from, message, fx),
            _ => process.body.ring(fx),
        });
        self.coordinators[host - workers] = Some(process);
        self.do_all(host, life, effects);
    }

    fn with_effects(&mut self, act: impl FnOnce(&mut Effects<'_>)) -> Vec<Effect> {
        let first = self.script.workers;
        let mut fx = Effects {
            now: self.now,
            rng: &mut self.rng,
            sabotage: self.sabotage,
            is_traced: self.trace.is_some(),
            coordinators: first..first + self.script.coordinators,
            disk: &mut self.disk,
            done: Vec::new(),
        };
        act(&mut fx);
        fx.done
    }

    fn do_all(&mut self, host: Host, life: u64, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message, extra } => self.send(host, to, message, extra, life),
                Effect::Alarm(at, alarm) => self.schedule(at, Next::Ring { host, life, alarm }),
                Effect::Exit(exit) => self.end_worker(host, exit),
                Effect::Over => {
                    let index = host - self.script.workers;
                    self.coordinators[index] = None;
                    self.done[index] = true;
                }
                Effect::Fact(fact) => self.tell(fact),
                Effect::Note(line) => self.note(|| line),
            }
        }
    }

    fn start_worker(&mut self, host: Host, worker: WorkerId) {
        if self.workers[host].is_some() {
            return;
        }
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4000 + host as u16);
        let name = format!("host {host}");
        let me = Member {
            worker,
            place: Place(host as u64),
            host: name,
            address,
        };
        let (settings, run) = (self.settings(), self.run);
        self.lives += 1;
        let life = self.lives;
        let mut body = None;
        let effects = self.with_effects(|fx| body = Some(Worker::new(me, settings, run, fx)));
        self.workers[host] = body.map(|body| Process {
            body,
            life,
            paused: None,
        });
        self.do_all(host, life, effects);
        self.agent(host);
    }

    fn end_worker(&mut self, host: Host, exit: Exit) {
        let Some(process) = self.workers[host].take() else {
            return;
        };
        let (worker, place) = (process.body.id, Place(host as u64));
        self.note(|| format!("worker {worker} at place {place} is gone: {exit:?}"));
        self.tell(Fact::WorkerEnded(worker, exit));
        let cause = Worker::exit_cause(exit);
        self.ended[host] = Some((worker, cause.clone()));
        // The kernel closes its connections: peers see it unless the link is cut.
        for (generation, to, peer) in process.body.connections() {
            if !self.network.is_cut(host, peer) {
                let part = Part::Closed { has_ended: true };
                let frame = Frame {
                    to,
                    from: worker,
                    generation,
                    part,
                };
                self.send(host, peer, Message::Frame(Box::new(frame)), 0, 0);
            }
        }
        for index in 0..self.script.coordinators {
            let to = self.script.workers + index;
            self.send(host, to, Message::Disconnected(worker), 0, 0);
            self.send(
                host,
                to,
                Message::Exited(worker, place, cause.clone()),
                0,
                0,
            );
        }
        self.agent(host);
    }

    fn agent(&mut self, host: Host) {
        let state = PlaceState {
            place: Place(host as u64),
            worker: self.workers[host].as_ref().map(|process| process.body.id),
            ended: self.ended[host].clone(),
        };
        for index in 0..self.script.coordinators {
            let message = Message::Agent(format!("host {host}"), vec![state.clone()]);
            self.send(host, self.script.workers + index, message, 0, 0);
        }
    }

    fn start_coordinator(&mut self, index: usize) {
        if self.coordinators[index].is_some() || self.done[index] {
            return;
        }
        self.lives += 1;
        let (life, store, settings) = (self.lives, self.network_store(), self.settings());
        let id = CoordinatorId(life);
        let mut body = None;
        let effects = self.with_effects(|fx| {
            body = Some(Coordinator::new(id, index, store, settings, fx));
        });
        self.coordinators[index] = body.map(|body| Process {
            body,
            life,
            paused: None,
        });
        self.do_all(self.script.workers + index, life, effects);
    }

    fn pause(&mut self, host: Host, duration: u64) {
        let workers = self.script.workers;
        let life = if host < workers {
            let process = self.workers[host].as_mut();
            process.map(|process| (process.life, process.paused.get_or_insert_default()).0)
        } else {
            let process = self.coordinators[host - workers].as_mut();
            process.map(|process| (process.life, process.paused.get_or_insert_default()).0)
        };
        if let Some(life) = life {
            self.schedule(self.now + duration, Next::Resume { host, life });
        }
    }

    fn resume(&mut self, host: Host, life: u64) {
        if self.life(host) != Some(life) {
            return;
        }
        self.note(|| format!("--- process on host {host} goes on"));
        let workers = self.script.workers;
        let missed = if host < workers {
            self.workers[host]
                .as_mut()
                .and_then(|process| process.paused.take())
        } else {
            self.coordinators[host - workers]
                .as_mut()
                .and_then(|process| process.paused.take())
        };
        for happening in missed.into_iter().flatten() {
            self.happen(host, happening);
        }
    }

    // The script.

    fn fault(&mut self, fault: Fault) {
        let workers = self.script.workers;
        match fault {
            Fault::Kill(places) => {
                for place in places {
                    self.end_worker(place, Exit::Killed);
                }
            }
            Fault::Pause(place, duration) => self.pause(place, duration),
            Fault::KillCoordinator(index, duration) => {
                self.coordinators[index] = None;
                self.schedule(self.now + duration, Next::StartCoordinator(index));
            }
            Fault::PauseCoordinator(index, duration) => self.pause(workers + index, duration),
            Fault::Partition {
                side,
                is_two_way,
                duration,
            } => {
                let hosts = workers + self.script.coordinators + 1;
                let pairs = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to)));
                let links = pairs.filter(|(from, to)| {
                    let (from, to) = (side >> from & 1, side >> to & 1);
                    from != to && (is_two_way || from == 1)
                });
                self.cut(links.collect(), duration);
            }
            Fault::Link(one, other, duration) => {
                self.cut(vec![(one, other), (other, one)], duration);
            }
            Fault::Drain(place) => self.happen(place, Happening::Signal(WorkerEvent::Drain)),
            Fault::Scale(workers) => self.tell_coordinators(&Event::Scale { workers }),
            Fault::Stop => self.tell_coordinators(&Event::Stop {
                by: "SIGTERM".to_owned(),
            }),
        }
    }

    fn cut(&mut self, links: Vec<(Host, Host)>, duration: u64) {
        for &(from, to) in &links {
            self.network.cut(from, to, true);
        }
        self.schedule(self.now + duration, Next::Mend(links));
    }

    /// An operator tells all coordinators that run.
    fn tell_coordinators(&mut self, event: &Event) {
        for index in 0..self.script.coordinators {
            let Some(mut process) = self.coordinators[index].take() else {
                continue;
            };
            let effects = self.with_effects(|fx| process.body.event(event.clone(), fx));
            let life = process.life;
            self.coordinators[index] = Some(process);
            self.do_all(self.script.workers + index, life, effects);
        }
    }

    fn calm(&mut self) {
        self.note(|| "--- calm: nothing goes wrong any more".to_owned());
        self.tell(Fact::Calm);
        self.is_calm = true;
        self.network.calm();
        for host in 0..self.script.workers + self.script.coordinators {
            if let Some(life) = self.life(host) {
                self.resume(host, life);
            }
        }
        for index in 0..self.script.coordinators {
            self.start_coordinator(index);
        }
    }
}

fn act(worker: &mut Worker, happening: Happening, fx: &mut Effects<'_>) {
    match happening {
        Happening::Arrives(_, Message::ToWorker(to, message)) if to == worker.id => {
            worker.event(WorkerEvent::Coordinator(*message), fx);
        }
        Happening::Arrives(_, Message::Frame(frame)) if frame.to == worker.id => {
            worker.frame(*frame, fx);
        }
        Happening::Arrives(..) => {}
        Happening::Rings(alarm) => worker.ring(alarm, fx),
        Happening::Signal(event) => worker.event(event, fx),
    }
}
