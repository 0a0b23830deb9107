//! [`Effects`]: the actions of a simulated process on its world.

use ronde_core::{Generation, Step};
use ronde_protocol::{
    LossCause, SlotStatus, StoreReply, StoreRequest, ToWorker, WorkerId, WorkerReport, WorkerSlot,
};

use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::group::DataFrame;
use crate::cluster::injected_bug::InjectedBug;
use crate::network::HostIndex;
use crate::rng::Rng;

/// A message between hosts.
#[derive(Debug, Clone)]
pub enum HostMessage {
    /// A message from a worker to all coordinators.
    Report(Box<WorkerReport>),
    /// A message from a coordinator to a worker.
    ToWorker(WorkerId, Box<ToWorker>),
    /// A worker has written a checkpoint.
    Written(Generation, Step),
    /// The control connection of a worker was closed.
    Disconnected(WorkerId),
    /// An agent reports the state of its host.
    Agent(String, Vec<SlotStatus>),
    /// An agent reports the exit of a worker.
    Exited(WorkerId, WorkerSlot, LossCause),
    /// Requests an agent to start a worker.
    Start(WorkerId),
    /// Requests an agent to end a worker.
    Kill(WorkerId),
    /// A request to the store from the coordinator with this index.
    Ask(usize, Box<StoreRequest>),
    /// A response of the store.
    Answer(Box<StoreReply>),
    /// A frame between workers.
    Frame(Box<DataFrame>),
}

impl HostMessage {
    /// Returns whether a link may lose the message; all other messages are resent until they arrive.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        !matches!(self, Self::Frame(_))
    }
}

/// The purpose of an alarm of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    /// The state machine's deadline.
    Wake,
    /// The gradients of its shards are ready.
    Computed(Generation, Step),
    /// An all-gather has taken too long.
    Late(Generation, u64),
    /// A checkpoint is complete.
    Written(Generation, Step),
    /// This rank's part of a checkpoint is written.
    PartWritten(Generation, Step),
    /// The parts of a checkpoint are published.
    Published(Generation, Step),
}

/// An action of a process.
#[derive(Debug)]
pub(super) enum Effect {
    /// Sends a message.
    Send {
        /// The destination host.
        to: HostIndex,
        /// The message.
        message: HostMessage,
        /// The additional delay because of the message's size.
        extra: u64,
    },
    /// Sets an alarm at this time of the simulation.
    Alarm(u64, Alarm),
    /// Exits.
    Exit(WorkerExit),
    /// Declares the end of the job, as a coordinator.
    Over,
    /// Reports a fact to the observer.
    Fact(Fact),
    /// Writes a line to the trace.
    Note(String),
}

/// The context of a process while it handles an event.
pub(super) struct Effects<'a> {
    /// The simulation's time.
    pub now: u64,
    /// The random generator.
    pub rng: &'a mut Rng,
    /// The injected bug, if any.
    pub bug: Option<InjectedBug>,
    /// Whether a trace is recorded.
    pub is_traced: bool,
    /// The hosts of the coordinators.
    pub coordinators: std::ops::Range<HostIndex>,
    /// The job's storage.
    pub disk: &'a mut crate::cluster::disk::Disk,
    /// The actions of the process.
    pub done: Vec<Effect>,
}

impl Effects<'_> {
    /// Sends a message.
    pub(super) fn send(&mut self, to: HostIndex, message: HostMessage) {
        self.done.push(Effect::Send {
            to,
            message,
            extra: 0,
        });
    }

    /// Sends a message to all coordinators.
    pub(super) fn send_to_coordinators(&mut self, message: &HostMessage) {
        for host in self.coordinators.clone() {
            self.send(host, message.clone());
        }
    }

    /// Reports a fact to the observer.
    pub(super) fn fact(&mut self, fact: Fact) {
        self.done.push(Effect::Fact(fact));
    }

    /// Writes a line to the trace, if one is recorded.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.is_traced {
            let line = line();
            self.done.push(Effect::Note(line));
        }
    }

    /// Returns whether this bug is injected.
    #[must_use]
    pub(super) fn has(&self, bug: InjectedBug) -> bool {
        self.bug == Some(bug)
    }
}
