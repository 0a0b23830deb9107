//! The parsers of control lines, individually, for fuzzing; not a stable interface.

use std::net::{Ipv4Addr, SocketAddr};

use ronde_core::{Event, Generation, Step};
use ronde_protocol::{
    GroupFailure, MemberInfo, Reason, Settings, Term, Time, ToWorker, WorkerId, WorkerPhase,
    WorkerReport, WorkerSlot,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::{FromAgent, ToAgent, TokenRequest};
use crate::wire::{FromSupervisor, FromWorker, JobTerms, PROTOCOL};

mod agents;

/// The sender and receiver of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlLine {
    /// A message from a worker to its supervisor.
    FromWorker,
    /// A message from a supervisor to a worker.
    FromSupervisor,
    /// A request to a coordinator that is authenticated by a join token.
    TokenRequest,
    /// A message from an agent to a coordinator.
    FromAgent,
    /// A message from a coordinator to an agent.
    ToAgent,
}

impl ControlLine {
    /// Returns valid lines as a fuzzing corpus.
    #[must_use]
    pub fn samples(self) -> Vec<Vec<u8>> {
        match self {
            Self::FromWorker => from_worker().iter().map(written).collect(),
            Self::FromSupervisor => from_supervisor().iter().map(written).collect(),
            Self::TokenRequest => agents::questions().iter().map(written).collect(),
            Self::FromAgent => agents::from_agent().iter().map(written).collect(),
            Self::ToAgent => agents::to_agent().iter().map(written).collect(),
        }
    }

    /// Parses an untrusted line.
    ///
    /// # Errors
    /// Returns why the line is invalid.
    ///
    /// # Panics
    /// If a parsed line cannot be written and parsed again, which is a bug.
    pub fn read(self, line: &[u8]) -> serde_json::Result<()> {
        match self {
            Self::FromWorker => read::<FromWorker>(line).map(drop),
            Self::FromSupervisor => read::<FromSupervisor>(line).map(drop),
            Self::TokenRequest => read::<TokenRequest>(line).map(drop),
            Self::FromAgent => read::<FromAgent>(line).map(drop),
            Self::ToAgent => read::<ToAgent>(line).map(drop),
        }
    }
}

fn written(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message can be written")
}

fn read<M: Serialize + DeserializeOwned>(line: &[u8]) -> serde_json::Result<M> {
    let message = serde_json::from_slice(line)?;
    let once = written(&message);
    let again: M = serde_json::from_slice(&once).expect("a written message is parsed again");
    assert_eq!(written(&again), once, "a message is written as it was read");
    Ok(message)
}

fn from_worker() -> Vec<FromWorker> {
    vec![
        FromWorker::Hello {
            protocol: PROTOCOL,
            token: "ab".repeat(32),
            rank: 3,
            pid: 4711,
            worker: 1 << 20 | 3,
        },
        FromWorker::Report { body: report() },
        FromWorker::Event {
            body: Event::RunStarted {
                name: "digits \"quoted\"".to_owned(),
                plan: "cd".repeat(32),
                world_size: 4,
                logical_shards: 16,
                parameters: 1 << 40,
                steps: 1000,
                epochs: 3,
                samples: 1797,
                unit: ronde_core::event::SampleUnit::Image,
            },
        },
    ]
}

fn report() -> WorkerReport {
    WorkerReport {
        member: MemberInfo {
            worker: WorkerId(1 << 20 | 3),
            slot: WorkerSlot(3),
            host: "gpu-02".to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 4001)),
        },
        sequence: 9,
        sent: Time(1_000_000),
        term: Term(1),
        generation: Some(Generation(7)),
        phase: WorkerPhase::Training,
        next: Some(Step(1284)),
        has_voted: true,
        lacks_state: false,
        cannot_save: false,
        draining: false,
        trouble: Some(GroupFailure {
            suspect: None,
            is_unreachable: false,
            cause: "lost group rank 2".to_owned(),
        }),
    }
}

fn from_supervisor() -> Vec<FromSupervisor> {
    let reason = "rank 3 has failed".to_owned();
    vec![
        FromSupervisor::Welcome {
            protocol: PROTOCOL,
            terms: Box::new(JobTerms {
                job: "job".to_owned(),
                task: "steps = 3\n".to_owned(),
                host: "gpu-02".to_owned(),
                interface: Ipv4Addr::LOCALHOST.into(),
                settings: Settings::new(4),
            }),
            identity: None,
        },
        FromSupervisor::Coordinator {
            body: ToWorker::Abort {
                term: Term(2),
                generation: Generation(7),
                reason: Reason::Drained,
            },
        },
        FromSupervisor::Refused {
            reason: reason.clone(),
        },
        FromSupervisor::Stop {
            reason,
            failed: true,
        },
    ]
}
