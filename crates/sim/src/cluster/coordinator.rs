//! [`SimulatedCoordinator`]: a simulated coordinator process: the real state machine and its connections.

use std::collections::BTreeMap;

use ronde_protocol::{
    CoordinatorCommand, CoordinatorEvent, CoordinatorId, CoordinatorMachine, Settings, WorkerId,
    WorkerReport,
};

use crate::clock::{MS, ProcessClock};
use crate::cluster::effect::{Alarm, Effect, Effects, HostMessage};
use crate::cluster::fact::Fact;
use crate::cluster::injected_bug::InjectedBug;
use crate::network::HostIndex;

/// A coordinator process.
#[derive(Debug)]
pub(super) struct SimulatedCoordinator {
    id: CoordinatorId,
    index: usize,
    store: HostIndex,
    clock: ProcessClock,
    machine: CoordinatorMachine,
    /// The host from which each worker's last message was received.
    hosts: BTreeMap<WorkerId, HostIndex>,
    /// The last report of each worker, for an injected bug that repeats them.
    reports: BTreeMap<WorkerId, WorkerReport>,
    alarm: u64,
}

impl SimulatedCoordinator {
    /// Creates a process that has just started.
    ///
    /// # Panics
    /// If the settings are invalid, which is a bug of the simulator.
    pub(super) fn new(
        id: CoordinatorId,
        index: usize,
        store: HostIndex,
        settings: Settings,
        fx: &mut Effects<'_>,
    ) -> Self {
        let machine =
            CoordinatorMachine::new(id, settings).expect("the simulator's settings are valid");
        let clock = ProcessClock::new(fx.rng);
        let mut coordinator = Self {
            id,
            index,
            store,
            clock,
            machine,
            hosts: BTreeMap::new(),
            reports: BTreeMap::new(),
            alarm: 0,
        };
        coordinator.event(CoordinatorEvent::Tick, fx);
        coordinator
    }

    /// Handles an alarm.
    pub(super) fn ring(&mut self, fx: &mut Effects<'_>) {
        self.event(CoordinatorEvent::Tick, fx);
    }

    /// Handles a message from a host.
    pub(super) fn take(&mut self, from: HostIndex, message: HostMessage, fx: &mut Effects<'_>) {
        let event = match message {
            HostMessage::Report(report) => {
                self.hosts.insert(report.member.worker, from);
                CoordinatorEvent::Report(*report)
            }
            HostMessage::Written(generation, next) => {
                CoordinatorEvent::CheckpointWritten { generation, next }
            }
            HostMessage::Disconnected(worker) => CoordinatorEvent::Disconnected {
                worker,
                cause: "closed by the worker".to_owned(),
            },
            HostMessage::Agent(host, slots) => CoordinatorEvent::HostUp { host, slots },
            HostMessage::Exited(worker, slot, cause) => CoordinatorEvent::Exited {
                worker,
                slot,
                cause,
            },
            HostMessage::Answer(reply) => CoordinatorEvent::Store(*reply),
            _ => return,
        };
        if fx.has(InjectedBug::DeadAreHeard) {
            return self.hear_the_dead(event, fx);
        }
        self.event(event, fx);
    }

    fn hear_the_dead(&mut self, event: CoordinatorEvent, fx: &mut Effects<'_>) {
        match event {
            CoordinatorEvent::Disconnected { .. } | CoordinatorEvent::Exited { .. } => return,
            CoordinatorEvent::HostUp { .. } => {
                for mut report in self.reports.clone().into_values() {
                    report.sequence += 1;
                    self.reports.insert(report.member.worker, report.clone());
                    self.event(CoordinatorEvent::Report(report), fx);
                }
                return;
            }
            CoordinatorEvent::Report(ref report) => {
                self.reports.insert(report.member.worker, report.clone());
            }
            _ => {}
        }
        self.event(event, fx);
    }

    /// Passes an event to the state machine.
    pub(super) fn event(&mut self, event: CoordinatorEvent, fx: &mut Effects<'_>) {
        let now = self.clock.show(fx.now);
        let commands = self.machine.handle(now, event);
        for command in commands {
            self.execute(command, fx);
        }
        if self.machine.leads(now) {
            fx.fact(Fact::Leads(self.id, self.machine.record().term));
        }
        let Some(at) = self
            .machine
            .wake_at(now)
            .map(|at| self.clock.when(at).max(fx.now + MS))
        else {
            return;
        };
        if self.alarm <= fx.now || at < self.alarm {
            self.alarm = at;
            fx.done.push(Effect::Alarm(at, Alarm::Wake));
        }
    }

    fn execute(&mut self, command: CoordinatorCommand, fx: &mut Effects<'_>) {
        let id = self.id;
        fx.note(|| match &command {
            CoordinatorCommand::Log(reason) => format!("coordinator {id}: {reason}"),
            CoordinatorCommand::End { ending, reason } => {
                format!("coordinator {id}: {ending:?}: {reason}")
            }
            CoordinatorCommand::Send { to, message } => {
                let mut told = format!("{message:?}");
                told.truncate(70);
                format!("coordinator {id} to worker {to}: {told}")
            }
            CoordinatorCommand::Store(request) => {
                let mut told = format!("{request:?}");
                told.truncate(70);
                format!("coordinator {id} sends to the store: {told}")
            }
            other => format!("coordinator {id}: {other:?}"),
        });
        match command {
            CoordinatorCommand::Store(request) => {
                fx.send(self.store, HostMessage::Ask(self.index, Box::new(request)));
            }
            CoordinatorCommand::Send { to, message } => {
                if let Some(&host) = self.hosts.get(&to) {
                    fx.send(host, HostMessage::ToWorker(to, Box::new(message)));
                }
            }
            CoordinatorCommand::Start { slot, worker, .. } => {
                fx.send(slot.0 as HostIndex, HostMessage::Start(worker));
            }
            CoordinatorCommand::Kill { slot, worker } => {
                fx.send(slot.0 as HostIndex, HostMessage::Kill(worker))
            }
            CoordinatorCommand::Log(_) => {}
            CoordinatorCommand::End { ending, .. } => {
                fx.fact(Fact::Over(ending));
                fx.done.push(Effect::Over);
            }
        }
    }
}
