//! The faults of a world, and their end.

use ronde_protocol::{CoordinatorEvent, WorkerEvent};

use super::{ClusterWorld, ProcessEvent, QueuedEvent};
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::faults::Fault;
use crate::network::HostIndex;

impl ClusterWorld {
    pub(super) fn fault(&mut self, fault: Fault) {
        let workers = self.script.workers;
        match fault {
            Fault::Kill(places) => {
                for place in places {
                    self.end_worker(place, WorkerExit::Killed);
                }
            }
            Fault::Pause(place, duration) => self.pause(place, duration),
            Fault::KillCoordinator(index, duration) => {
                self.coordinators[index] = None;
                self.timeline.schedule(
                    self.timeline.now() + duration,
                    QueuedEvent::StartCoordinator(index),
                );
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
            Fault::Drain(place) => self.happen(place, ProcessEvent::Signal(WorkerEvent::Drain)),
            Fault::Scale(workers) => self.tell_coordinators(&CoordinatorEvent::Scale { workers }),
            Fault::Stop => self.tell_coordinators(&CoordinatorEvent::Stop {
                by: "SIGTERM".to_owned(),
            }),
        }
    }

    pub(super) fn cut(&mut self, links: Vec<(HostIndex, HostIndex)>, duration: u64) {
        for &(from, to) in &links {
            self.network.cut(from, to, true);
        }
        self.timeline
            .schedule(self.timeline.now() + duration, QueuedEvent::Mend(links));
    }

    /// Sends an operator's request to all running coordinators.
    pub(super) fn tell_coordinators(&mut self, event: &CoordinatorEvent) {
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

    pub(super) fn calm(&mut self) {
        self.timeline.note(|| "--- calm: no more faults".to_owned());
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
