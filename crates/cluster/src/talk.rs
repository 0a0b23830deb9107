//! What agents, commands and a coordinator say to each other: JSON, one message a line, versioned.

use std::net::SocketAddr;

use ronde_core::Event;
use ronde_elastic::{
    JobEnding, LossCause, WorkerSlot, SlotStatus, Reason, WorkerReport, Settings, Term, ToWorker, WorkerId,
};
use serde::{Deserialize, Serialize};

use crate::board::Status;

/// Version of these messages; a mixture is refused.
pub(crate) const PROTOCOL: u32 = 1;
/// Places of one host at most; the numbers of its places are those after its first one.
pub(crate) const SLOTS_MAX: u32 = 1_000;

/// The first and only line of somebody who has a join token and no certificate.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    pub(crate) protocol: u32,
    pub(crate) token: String,
    pub(crate) asks: Asks,
}

/// What is asked with a join token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Asks {
    /// A certificate for the agent of this host.
    Certificate { host: String },
    /// How the job is.
    Status,
    /// Another count of workers.
    Scale { workers: u32 },
}

/// The answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Certificate, authority and key, for the agent of the host that asked.
    Certificate { job: String, identity: String },
    /// How the job is.
    Status(Box<Status>),
    /// It will be done; what people should know about it.
    Done { note: String },
    /// No, and why.
    Refused { reason: String },
    /// This coordinator does not lead; where the others are.
    StandsBy { others: Vec<SocketAddr> },
}

/// What an agent says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromAgent {
    /// The first line.
    Hello {
        protocol: u32,
        host: String,
        /// Another number for every agent process.
        agent: u64,
        /// Places that it offers.
        count: u32,
        /// The number of its first place, once it has one.
        first: Option<WorkerSlot>,
        /// Events of the job that it knows already, when it wants to hear of all.
        follows: Option<u64>,
    },
    /// What is at its places; whenever that changes. Empty: nothing more is started here.
    #[serde(rename = "places")]
    Slots {
        #[serde(rename = "places")]
        slots: Vec<SlotStatus>,
    },
    /// A worker says how it is.
    Report { body: WorkerReport },
    /// A worker recorded an event. Numbered by the agent, sent again until heard.
    Event { number: u64, body: Event },
    /// The connection to a worker is gone.
    Unlinked { worker: WorkerId, cause: String },
    /// A worker's process has ended.
    Ended {
        worker: WorkerId,
        #[serde(rename = "place")]
        slot: WorkerSlot,
        cause: LossCause,
    },
    /// Nothing new.
    Alive,
    /// The job has to end in good order, after a last checkpoint.
    Finish { by: String },
    /// The job has to end.
    Stop { by: String },
    /// Nothing runs here any more, and all is said.
    Bye,
}

/// What a coordinator says to an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// The answer to a good hello.
    Welcome(Box<Welcome>),
    /// The answer to any other.
    Refused { reason: String },
    /// To a worker.
    Told { to: WorkerId, body: ToWorker },
    /// Start a worker.
    Start {
        #[serde(rename = "place")]
        slot: WorkerSlot,
        worker: WorkerId,
        /// Its certificate, authority and key.
        identity: String,
    },
    /// End a worker that does not answer.
    Kill {
        #[serde(rename = "place")]
        slot: WorkerSlot,
        worker: WorkerId,
    },
    /// All events up to this one are written down.
    Heard { number: u64 },
    /// An event of the job, to those who follow it; numbered by the journal.
    Happened { number: u64, body: Event },
    /// Nothing new.
    Alive {
        /// The term in which this coordinator leads, if it does. Only then it takes events; to a new
        /// term all are sent again that were not heard.
        leads: Option<Term>,
        /// Where coordinators of this job listen.
        coordinators: Vec<SocketAddr>,
    },
    /// The job is over.
    End { ending: JobEnding, reason: Reason },
}

/// What an agent has to know of the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) protocol: u32,
    pub(crate) job: String,
    pub(crate) task: String,
    pub(crate) settings: Settings,
    /// Program and arguments of a worker; empty: a worker of ronde's own.
    pub(crate) command: Vec<String>,
    /// The number of the agent's first place.
    pub(crate) first: WorkerSlot,
}
