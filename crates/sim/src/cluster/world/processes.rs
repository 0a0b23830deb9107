//! The processes of a world: their events, start and exit.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ronde_protocol::{
    CoordinatorEvent, CoordinatorId, MemberInfo, SlotStatus, WorkerEvent, WorkerId, WorkerSlot,
};

use super::{ClusterWorld, ProcessEvent, QueuedEvent, SimulatedProcess};
use crate::cluster::coordinator::SimulatedCoordinator;
use crate::cluster::effect::{Effect, Effects, HostMessage};
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::group::{DataFrame, FramePayload};
use crate::cluster::worker::SimulatedWorker;
use crate::network::HostIndex;

impl ClusterWorld {
    pub(super) fn happen(&mut self, host: HostIndex, happening: ProcessEvent) {
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
            ProcessEvent::Arrives(from, message) => process.body.take(from, message, fx),
            _ => process.body.ring(fx),
        });
        self.coordinators[host - workers] = Some(process);
        self.do_all(host, life, effects);
    }

    pub(super) fn with_effects(&mut self, act: impl FnOnce(&mut Effects<'_>)) -> Vec<Effect> {
        let first = self.script.workers;
        let mut fx = Effects {
            now: self.timeline.now(),
            rng: &mut self.rng,
            bug: self.bug,
            is_traced: self.timeline.is_traced(),
            coordinators: first..first + self.script.coordinators,
            disk: &mut self.disk,
            done: Vec::new(),
        };
        act(&mut fx);
        fx.done
    }

    pub(super) fn do_all(&mut self, host: HostIndex, life: u64, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message, extra } => self.send(host, to, message, extra, life),
                Effect::Alarm(at, alarm) => self
                    .timeline
                    .schedule(at, QueuedEvent::Ring { host, life, alarm }),
                Effect::Exit(exit) => self.end_worker(host, exit),
                Effect::Over => {
                    let index = host - self.script.workers;
                    self.coordinators[index] = None;
                    self.done[index] = true;
                }
                Effect::Fact(fact) => self.tell(fact),
                Effect::Note(line) => self.timeline.note(|| line),
            }
        }
    }

    pub(super) fn start_worker(&mut self, host: HostIndex, worker: WorkerId) {
        // A request may arrive twice; two processes never have the same id.
        if self.workers[host].is_some() || !self.started.insert(worker) {
            return;
        }
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4000 + host as u16);
        let name = format!("host {host}");
        let me = MemberInfo {
            worker,
            slot: WorkerSlot(host as u64),
            host: name,
            address,
        };
        let (settings, run) = (self.settings(), self.run);
        self.lives += 1;
        let life = self.lives;
        let mut body = None;
        let effects =
            self.with_effects(|fx| body = Some(SimulatedWorker::new(me, settings, run, fx)));
        self.workers[host] = body.map(|body| SimulatedProcess {
            body,
            life,
            paused: None,
        });
        self.do_all(host, life, effects);
        self.agent(host);
    }

    pub(super) fn end_worker(&mut self, host: HostIndex, exit: WorkerExit) {
        let Some(process) = self.workers[host].take() else {
            return;
        };
        let (worker, slot) = (process.body.id, WorkerSlot(host as u64));
        self.timeline
            .note(|| format!("worker {worker} in slot {slot} ended: {exit:?}"));
        self.tell(Fact::WorkerEnded(worker, exit));
        let cause = SimulatedWorker::exit_cause(exit);
        self.ended[host] = Some((worker, cause.clone()));
        // The kernel closes the connections; peers notice unless the link is cut.
        for (generation, to, peer) in process.body.connections() {
            if !self.network.is_cut(host, peer) {
                let part = FramePayload::Closed { has_ended: true };
                let frame = DataFrame {
                    to,
                    from: worker,
                    generation,
                    part,
                };
                self.send(host, peer, HostMessage::Frame(Box::new(frame)), 0, 0);
            }
        }
        for index in 0..self.script.coordinators {
            let to = self.script.workers + index;
            self.send(host, to, HostMessage::Disconnected(worker), 0, 0);
            self.send(
                host,
                to,
                HostMessage::Exited(worker, slot, cause.clone()),
                0,
                0,
            );
        }
        self.agent(host);
    }

    pub(super) fn agent(&mut self, host: HostIndex) {
        let state = SlotStatus {
            slot: WorkerSlot(host as u64),
            worker: self.workers[host].as_ref().map(|process| process.body.id),
            ended: self.ended[host].clone(),
        };
        for index in 0..self.script.coordinators {
            let message = HostMessage::Agent(format!("host {host}"), vec![state.clone()]);
            self.send(host, self.script.workers + index, message, 0, 0);
        }
    }

    pub(super) fn start_coordinator(&mut self, index: usize) {
        if self.coordinators[index].is_some() || self.done[index] {
            return;
        }
        self.lives += 1;
        let (life, store, settings) = (self.lives, self.network_store(), self.settings());
        let id = CoordinatorId(life);
        let before = self.last_coordinator[index].replace(id);
        // Half of the new coordinators know that the previous process on their host has exited.
        let before = before.filter(|_| life % 2 == 0);
        let mut body = None;
        let effects = self.with_effects(|fx| {
            let mut coordinator = SimulatedCoordinator::new(id, index, store, settings, fx);
            if let Some(coordinator_before) = before {
                let ended = CoordinatorEvent::CoordinatorEnded {
                    coordinator: coordinator_before,
                };
                coordinator.event(ended, fx);
            }
            body = Some(coordinator);
        });
        self.coordinators[index] = body.map(|body| SimulatedProcess {
            body,
            life,
            paused: None,
        });
        self.do_all(self.script.workers + index, life, effects);
    }

    pub(super) fn pause(&mut self, host: HostIndex, duration: u64) {
        let workers = self.script.workers;
        let life = if host < workers {
            let process = self.workers[host].as_mut();
            process.map(|process| (process.life, process.paused.get_or_insert_default()).0)
        } else {
            let process = self.coordinators[host - workers].as_mut();
            process.map(|process| (process.life, process.paused.get_or_insert_default()).0)
        };
        if let Some(life) = life {
            self.timeline.schedule(
                self.timeline.now() + duration,
                QueuedEvent::Resume { host, life },
            );
        }
    }

    pub(super) fn resume(&mut self, host: HostIndex, life: u64) {
        if self.life(host) != Some(life) {
            return;
        }
        self.timeline
            .note(|| format!("--- process on host {host} resumes"));
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
}

fn act(worker: &mut SimulatedWorker, happening: ProcessEvent, fx: &mut Effects<'_>) {
    match happening {
        ProcessEvent::Arrives(_, HostMessage::ToWorker(to, message)) if to == worker.id => {
            worker.event(WorkerEvent::Coordinator(*message), fx);
        }
        ProcessEvent::Arrives(_, HostMessage::Frame(frame)) if frame.to == worker.id => {
            worker.frame(*frame, fx);
        }
        ProcessEvent::Arrives(..) => {}
        ProcessEvent::Rings(alarm) => worker.ring(alarm, fx),
        ProcessEvent::Signal(event) => worker.event(event, fx),
    }
}
