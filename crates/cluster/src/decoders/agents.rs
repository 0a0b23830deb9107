//! Sample messages between agents, commands and coordinators.

use std::net::{Ipv4Addr, SocketAddr};

use ronde_core::{Event, Generation, Rank, Step};
use ronde_protocol::GenerationPurpose;
use ronde_protocol::{
    GenerationAssignment, JobEnding, LossCause, MemberInfo, Reason, Settings, SlotStatus,
    StartFrom, SwitchTiming, Term, ToWorker, WorkerId, WorkerLoss, WorkerSlot,
};

use crate::messages::{FromAgent, PROTOCOL, RequestBody, ToAgent, TokenRequest, Welcome};

/// Requests that are authenticated by a join token.
pub(super) fn questions() -> Vec<TokenRequest> {
    let asks = [
        RequestBody::Certificate {
            host: "gpu-02".to_owned(),
        },
        RequestBody::Status,
        RequestBody::Events { from: 1 << 40 },
        RequestBody::Scale { workers: 5 },
    ];
    let question = |asks| TokenRequest {
        protocol: PROTOCOL,
        token: format!("ronde-join-1.{}.{}", "ab".repeat(16), "cd".repeat(32)),
        asks,
    };
    asks.map(question).into()
}

fn worker() -> WorkerId {
    WorkerId(1 << 20 | 3)
}

fn loss() -> WorkerLoss {
    WorkerLoss {
        worker: worker(),
        rank: Rank(3),
        host: "gpu-02".to_owned(),
        cause: LossCause::Silent(std::time::Duration::from_millis(1200)),
    }
}

/// Messages from an agent.
pub(super) fn from_agent() -> Vec<FromAgent> {
    let slot = WorkerSlot(1003);
    let by = "SIGTERM".to_owned();
    vec![
        FromAgent::Hello {
            protocol: PROTOCOL,
            host: "gpu-02".to_owned(),
            agent: u64::MAX,
            count: 8,
            first: Some(WorkerSlot(1000)),
            follows: Some(0),
        },
        FromAgent::Slots {
            slots: vec![
                SlotStatus {
                    slot,
                    worker: Some(worker()),
                    ended: None,
                },
                SlotStatus {
                    slot: WorkerSlot(1004),
                    worker: None,
                    ended: Some((WorkerId(2), LossCause::ExitCode(101))),
                },
            ],
        },
        FromAgent::Report {
            body: super::report(),
        },
        FromAgent::Busy { worker: worker() },
        FromAgent::Event {
            number: 17,
            body: Event::WorkerStarted {
                place: 1003,
                host: "gpu-02".to_owned(),
                pid: 4711,
            },
        },
        FromAgent::Unlinked {
            worker: worker(),
            cause: "its control connection was closed".to_owned(),
        },
        FromAgent::Ended {
            worker: worker(),
            slot,
            cause: LossCause::Signal(9),
        },
        FromAgent::Alive,
        FromAgent::Finish { by: by.clone() },
        FromAgent::Stop { by },
        FromAgent::Bye,
    ]
}

/// Messages from a coordinator to an agent.
pub(super) fn to_agent() -> Vec<ToAgent> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4711));
    let slot = WorkerSlot(1003);
    let reason = Reason::Lost {
        losses: vec![loss()],
        generation: Generation(7),
        workers: 3,
        redone: Some(Step(1284)),
    };
    let assignment = GenerationAssignment {
        term: Term(2),
        generation: Generation(7),
        members: vec![MemberInfo {
            worker: worker(),
            slot,
            host: "gpu-02".to_owned(),
            address,
        }],
        start: StartFrom::Checkpoint(Some(Step(1200))),
        purpose: GenerationPurpose::Train,
        awaited: 0,
        when: SwitchTiming::Boundary,
        reason: reason.clone(),
    };
    vec![
        ToAgent::Welcome(Box::new(Welcome {
            protocol: PROTOCOL,
            job: "job".to_owned(),
            task: "steps = 3\n".to_owned(),
            settings: Settings::new(4),
            command: vec!["program".to_owned(), "--flag".to_owned()],
            first: WorkerSlot(1000),
        })),
        ToAgent::Refused {
            reason: "wrong token".to_owned(),
        },
        ToAgent::ToWorker {
            to: worker(),
            body: ToWorker::Assign(assignment),
        },
        ToAgent::Start {
            slot,
            worker: worker(),
            identity: "-----BEGIN CERTIFICATE-----".to_owned(),
        },
        ToAgent::Kill {
            slot,
            worker: worker(),
        },
        ToAgent::Stored { number: 17 },
        ToAgent::Event {
            number: 99,
            body: Event::Notice {
                rank: Some(Rank(1)),
                message: "two \"lines\"\n".to_owned(),
            },
        },
        ToAgent::Alive {
            leads: Some(Term(2)),
            coordinators: vec![address],
            problem: Some("cannot write events.jsonl: no space".to_owned()),
        },
        ToAgent::End {
            ending: JobEnding::Stopped,
            reason,
        },
    ]
}
