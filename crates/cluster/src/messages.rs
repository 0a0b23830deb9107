//! Messages between agents, commands and a coordinator: one JSON object per line, versioned.

use std::net::SocketAddr;

use ronde_core::Event;
use ronde_protocol::{
    JobEnding, LossCause, Reason, Settings, SlotStatus, Term, ToWorker, WorkerId, WorkerReport,
    WorkerSlot,
};
use serde::{Deserialize, Serialize};

use crate::journal::EventLines;
use crate::status::Status;

/// Version of these messages; mixed versions are refused.
pub(crate) const PROTOCOL: u32 = 2;
/// Maximum number of slots of one host. Its slots are numbered consecutively from its first one.
pub(crate) const SLOTS_MAX: u32 = 1_000;

/// The first and only line of a client with a join token and without a certificate.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenRequest {
    pub(crate) protocol: u32,
    pub(crate) token: String,
    pub(crate) asks: RequestBody,
}

/// A request that is authenticated by a join token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum RequestBody {
    /// Requests a certificate for the agent of this host.
    Certificate { host: String },
    /// Requests the job's status.
    Status,
    /// Requests the lines of the job's event file from this byte on.
    Events { from: u64 },
    /// Changes the target number of workers.
    Scale { workers: u32 },
}

/// The answer to a [`TokenRequest`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TokenReply {
    /// Certificate, authority and key for the agent of the requesting host.
    Certificate { job: String, identity: String },
    /// The job's status.
    Status(Box<Status>),
    /// Lines of the job's event file.
    Events(EventLines),
    /// The request will be carried out; a note for the user.
    Done { note: String },
    /// The request is refused.
    Refused { reason: String },
    /// This coordinator does not lead; the addresses of the others.
    StandsBy { others: Vec<SocketAddr> },
}

/// A message from an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromAgent {
    /// The first message.
    Hello {
        protocol: u32,
        host: String,
        /// A number that differs for every agent process.
        agent: u64,
        /// The number of slots that it offers.
        count: u32,
        /// The number of its first slot, if it has one already.
        first: Option<WorkerSlot>,
        /// The number of the job's events that it knows, if it follows all of them.
        follows: Option<u64>,
    },
    /// The status of its slots, sent after every change. An empty list: no more workers are started
    /// here.
    #[serde(rename = "places")]
    Slots {
        #[serde(rename = "places")]
        slots: Vec<SlotStatus>,
    },
    /// A worker's report.
    Report { body: WorkerReport },
    /// A worker's process lacks CPU time, and therefore does not report.
    Busy { worker: WorkerId },
    /// An event of a worker. Numbered by the agent, and repeated until acknowledged.
    Event { number: u64, body: Event },
    /// The connection to a worker is lost.
    Unlinked { worker: WorkerId, cause: String },
    /// A worker's process has ended.
    Ended {
        worker: WorkerId,
        #[serde(rename = "place")]
        slot: WorkerSlot,
        cause: LossCause,
    },
    /// A heartbeat.
    Alive,
    /// Requests the end of the job in good order, after a last checkpoint.
    Finish { by: String },
    /// Requests the immediate end of the job.
    Stop { by: String },
    /// The last message of an agent without workers.
    Bye,
}

/// A message from a coordinator to an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// Accepts a hello.
    Welcome(Box<Welcome>),
    /// Rejects a hello.
    Refused { reason: String },
    /// A message to a worker.
    #[serde(rename = "told")]
    ToWorker { to: WorkerId, body: ToWorker },
    /// Start a worker.
    Start {
        #[serde(rename = "place")]
        slot: WorkerSlot,
        worker: WorkerId,
        /// The worker's certificate, authority and key.
        identity: String,
    },
    /// Kill an unresponsive worker.
    Kill {
        #[serde(rename = "place")]
        slot: WorkerSlot,
        worker: WorkerId,
    },
    /// All events up to this one are stored.
    #[serde(rename = "heard")]
    Stored { number: u64 },
    /// An event of the job for agents that follow it, numbered by the journal.
    #[serde(rename = "happened")]
    Event { number: u64, body: Event },
    /// A heartbeat.
    Alive {
        /// The term in which this coordinator leads, if it does. It accepts events only then; in a
        /// new term all unacknowledged events are sent again.
        leads: Option<Term>,
        /// The addresses of the job's coordinators.
        coordinators: Vec<SocketAddr>,
        /// Why it cannot store events or the record, if so.
        #[serde(default)]
        problem: Option<String>,
    },
    /// The job is over.
    End { ending: JobEnding, reason: Reason },
}

/// The job's data that an agent needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) protocol: u32,
    pub(crate) job: String,
    pub(crate) task: String,
    pub(crate) settings: Settings,
    /// Program and arguments of a worker; empty for ronde's own worker.
    pub(crate) command: Vec<String>,
    /// The number of the agent's first slot.
    pub(crate) first: WorkerSlot,
}
