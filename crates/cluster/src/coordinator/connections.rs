//! [`ConnectionHandler`]: authenticates connections to a coordinator and turns their messages into
//! inputs for the deciding thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::{Identity, JoinToken, Member};
use ronde_protocol::WorkerSlot;

use crate::messages::{
    FromAgent, PROTOCOL, RequestBody, SLOTS_MAX, ToAgent, TokenReply, TokenRequest,
};
use crate::record_writer::RecordReply;
use crate::secure::{
    AcceptHandler, AcceptedConnection, Authentication, ConnectionEnd, Outbox, pump,
};

/// Time limit for the answer to a request.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// An input of the deciding thread.
pub(super) enum CoordinatorInput {
    /// An agent has connected.
    AgentConnected(Box<AgentHello>),
    /// A message of an agent, with the number of its connection.
    AgentMessage(u64, Box<FromAgent>),
    /// A connection has ended.
    Disconnected(u64, String),
    /// A request that was authenticated by a token.
    Request(Box<RequestBody>, SocketAddr, SyncSender<TokenReply>),
    /// A peer was refused.
    Refused(SocketAddr, String),
    /// The store has answered or failed.
    Store(RecordReply),
}

/// An authenticated agent.
pub(super) struct AgentHello {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) host: String,
    /// A number that differs for every agent process.
    pub(super) agent: u64,
    pub(super) count: u32,
    pub(super) first: Option<WorkerSlot>,
    pub(super) follows: Option<u64>,
}

/// The handler of a coordinator's connections.
pub(super) struct ConnectionHandler {
    identity: Identity,
    token: JoinToken,
    inputs: SyncSender<CoordinatorInput>,
    numbers: AtomicU64,
}

impl ConnectionHandler {
    pub(super) fn new(
        identity: Identity,
        token: JoinToken,
        inputs: SyncSender<CoordinatorInput>,
    ) -> Self {
        Self {
            identity,
            token,
            inputs,
            numbers: AtomicU64::new(0),
        }
    }

    /// Sends an input; fails if the coordinator has ended.
    fn tell(&self, input: CoordinatorInput) -> Result<(), String> {
        self.inputs
            .send(input)
            .map_err(|_| "the coordinator has ended".to_owned())
    }

    /// Answers a request of a client without a certificate.
    fn question(&self, from: SocketAddr, line: &[u8]) -> TokenReply {
        let Ok(question) = serde_json::from_slice::<TokenRequest>(line) else {
            let why = "its first line is not a valid request".to_owned();
            let _ = self.tell(CoordinatorInput::Refused(from, why.clone()));
            return TokenReply::Refused { reason: why };
        };
        // The token is checked first, so that a client without it learns nothing else.
        let is_known = question
            .token
            .parse::<JoinToken>()
            .is_ok_and(|shown| self.token.matches(&shown));
        if !is_known {
            let _ = self.tell(CoordinatorInput::Refused(from, "wrong token".to_owned()));
            let reason = "wrong token: it belongs to another job".to_owned();
            return TokenReply::Refused { reason };
        }
        if question.protocol != PROTOCOL {
            let theirs = question.protocol;
            let reason = format!("unsupported protocol {theirs}: expected {PROTOCOL}");
            return TokenReply::Refused { reason };
        }
        let (reply, answer) = sync_channel(1);
        let asked = self.tell(CoordinatorInput::Request(
            Box::new(question.asks),
            from,
            reply,
        ));
        let answer = asked
            .ok()
            .and_then(|()| answer.recv_timeout(ANSWER_MAX).ok());
        answer.unwrap_or_else(|| TokenReply::Refused {
            reason: "this coordinator is ending".to_owned(),
        })
    }

    /// Validates an agent's hello against its certificate.
    fn hello(
        &self,
        certificate: &CertificateDer<'_>,
        line: &[u8],
        outbox: &Arc<Outbox>,
    ) -> Result<AgentHello, String> {
        let hello: FromAgent = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let FromAgent::Hello {
            protocol,
            host,
            agent,
            count,
            first,
            follows,
        } = hello
        else {
            return Err("the first message must be a hello".to_owned());
        };
        if protocol != PROTOCOL {
            return Err(format!(
                "unsupported protocol {protocol}: expected {PROTOCOL}"
            ));
        }
        let is_it = self
            .identity
            .check_peer(certificate, &Member::Host(host.clone()));
        is_it.map_err(|error| error.to_string())?;
        if !(1..=SLOTS_MAX).contains(&count) {
            return Err(format!(
                "invalid number of slots {count}: expected 1 to {SLOTS_MAX}"
            ));
        }
        Ok(AgentHello {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            outbox: Arc::clone(outbox),
            host,
            agent,
            count,
            first,
            follows,
        })
    }
}

impl AcceptHandler for ConnectionHandler {
    fn greet(&self, mut greeted: AcceptedConnection) {
        let Ok(outbox) = Outbox::new().map(Arc::new) else {
            // Out of file descriptors: the peer will try again.
            return;
        };
        let (from, line) = (greeted.from, std::mem::take(&mut greeted.line));
        let rest = std::mem::take(&mut greeted.rest);
        let number = match &greeted.way {
            Authentication::JoinToken => {
                outbox.send(&self.question(from, &line));
                outbox.close();
                None
            }
            Authentication::Certificate(certificate) => {
                match self.hello(certificate, &line, &outbox) {
                    Ok(came) => Some((came.number, came)),
                    Err(reason) => {
                        let _ = self.tell(CoordinatorInput::Refused(from, reason.clone()));
                        outbox.send(&ToAgent::Refused { reason });
                        outbox.close();
                        None
                    }
                }
            }
        };
        let number = number.map(|(number, came)| {
            if self
                .tell(CoordinatorInput::AgentConnected(Box::new(came)))
                .is_err()
            {
                outbox.close();
            }
            number
        });
        let mut deliver = |line: &[u8]| match number {
            Some(number) => {
                let said = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                self.tell(CoordinatorInput::AgentMessage(number, Box::new(said)))
            }
            None => Err("unexpected second line".to_owned()),
        };
        let end = pump(&mut greeted.stream, &outbox, rest, &mut deliver);
        if let Some(number) = number {
            let cause = match end {
                ConnectionEnd::Local => "closed by the coordinator".to_owned(),
                ConnectionEnd::Peer(cause) | ConnectionEnd::Invalid(cause) => cause,
            };
            let _ = self.tell(CoordinatorInput::Disconnected(number, cause));
        }
    }

    fn turn_away(&self, from: SocketAddr, why: String) {
        let _ = self.tell(CoordinatorInput::Refused(from, why));
    }
}
