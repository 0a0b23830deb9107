//! What a simulated process can do to its world: [`Effects`].

use ronde_core::{Generation, Step};
use ronde_elastic::{
    LossCause, SlotStatus, StoreReply, StoreRequest, ToWorker, WorkerId, WorkerReport, WorkerSlot,
};

use crate::fact::{Exit, Fact};
use crate::group::Frame;
use crate::network::Host;
use crate::rng::Rng;
use crate::sabotage::Sabotage;

/// A message between hosts.
#[derive(Debug, Clone)]
pub enum Message {
    /// A worker to all coordinators.
    Report(Box<WorkerReport>),
    /// A coordinator to a worker.
    ToWorker(WorkerId, Box<ToWorker>),
    /// A worker has written a checkpoint.
    Written(Generation, Step),
    /// The control connection of a worker was closed.
    Disconnected(WorkerId),
    /// An agent tells how its host stands.
    Agent(String, Vec<SlotStatus>),
    /// An agent tells of the end of a worker.
    Exited(WorkerId, WorkerSlot, LossCause),
    /// To an agent: start a worker.
    Start(WorkerId),
    /// To an agent: end a worker.
    Kill(WorkerId),
    /// To the store, from the coordinator of this index.
    Ask(usize, Box<StoreRequest>),
    /// From the store.
    Answer(Box<StoreReply>),
    /// Between workers.
    Frame(Box<Frame>),
}

impl Message {
    /// Whether it is lost when its link loses it: the others are sent until they arrive.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        !matches!(self, Self::Frame(_))
    }
}

/// What a process set its alarm for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    /// Its machine's.
    Wake,
    /// The gradients of its shards are ready.
    Computed(Generation, Step),
    /// An all-gather has taken too long.
    Late(Generation, u64),
    /// A checkpoint is complete.
    Written(Generation, Step),
}

/// Something that a process does.
#[derive(Debug)]
pub enum Effect {
    /// It sends.
    Send {
        /// To which host.
        to: Host,
        /// What.
        message: Message,
        /// How much later than usual it arrives, for its size.
        extra: u64,
    },
    /// It sets an alarm, at this moment of the simulation.
    Alarm(u64, Alarm),
    /// It ends.
    Exit(Exit),
    /// A coordinator calls the job over.
    Over,
    /// The observer sees something.
    Fact(Fact),
    /// For the trace.
    Note(String),
}

/// What a process has while it handles something.
pub struct Effects<'a> {
    /// The simulation's time.
    pub now: u64,
    /// Chance.
    pub rng: &'a mut Rng,
    /// The bug, if one is put in.
    pub sabotage: Option<Sabotage>,
    /// Whether a trace is wanted.
    pub is_traced: bool,
    /// Hosts of the coordinators.
    pub coordinators: std::ops::Range<Host>,
    /// The job's storage.
    pub disk: &'a mut crate::disk::Disk,
    /// What it did.
    pub done: Vec<Effect>,
}

impl Effects<'_> {
    /// Sends a message.
    pub fn send(&mut self, to: Host, message: Message) {
        self.done.push(Effect::Send {
            to,
            message,
            extra: 0,
        });
    }

    /// Sends a message to all coordinators.
    pub fn send_to_coordinators(&mut self, message: &Message) {
        for host in self.coordinators.clone() {
            self.send(host, message.clone());
        }
    }

    /// Tells the observer.
    pub fn fact(&mut self, fact: Fact) {
        self.done.push(Effect::Fact(fact));
    }

    /// Writes a line into the trace, if there is one.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.is_traced {
            let line = line();
            self.done.push(Effect::Note(line));
        }
    }

    /// Whether this bug is put in.
    #[must_use]
    pub fn has(&self, bug: Sabotage) -> bool {
        self.sabotage == Some(bug)
    }
}
