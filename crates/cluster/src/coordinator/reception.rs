//! [`Room`]: those who come to a coordinator: who they are, and what they say, as inputs for the one
//! thread that decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use ronde_elastic::WorkerSlot;
use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::{Identity, JoinToken, Member};

use crate::keeper::Kept;
use crate::secure::{Greeted, Outbox, Pumped, Reception, Way, pump};
use crate::talk::{Answer, Asks, FromAgent, SLOTS_MAX, PROTOCOL, Question, ToAgent};

/// How long a question may wait for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What the deciding thread hears.
pub(super) enum Input {
    /// An agent is here.
    Came(Box<Came>),
    /// An agent says something, on the connection of this number.
    Said(u64, Box<FromAgent>),
    /// A connection is over.
    Gone(u64, String),
    /// Somebody with a token asks something.
    Asked(Box<Asks>, SocketAddr, SyncSender<Answer>),
    /// Somebody did not belong here.
    TurnedAway(SocketAddr, String),
    /// The store has answered, or could not.
    Kept(Kept),
}

/// An agent that has shown who it is.
pub(super) struct Came {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) host: String,
    /// Another number for every agent process.
    pub(super) agent: u64,
    pub(super) count: u32,
    pub(super) first: Option<WorkerSlot>,
    pub(super) follows: Option<u64>,
}

/// Where they come.
pub(super) struct Room {
    identity: Identity,
    token: JoinToken,
    inputs: SyncSender<Input>,
    numbers: AtomicU64,
}

impl Room {
    pub(super) fn new(identity: Identity, token: JoinToken, inputs: SyncSender<Input>) -> Self {
        Self {
            identity,
            token,
            inputs,
            numbers: AtomicU64::new(0),
        }
    }

    /// The coordinator may be gone: then nobody needs to know.
    fn tell(&self, input: Input) -> Result<(), String> {
        self.inputs
            .send(input)
            .map_err(|_| "the coordinator has ended".to_owned())
    }

    /// Somebody with a token, or without a good one.
    fn question(&self, from: SocketAddr, line: &[u8]) -> Answer {
        let Ok(question) = serde_json::from_slice::<Question>(line) else {
            let why = "its first line is no question".to_owned();
            let _ = self.tell(Input::TurnedAway(from, why.clone()));
            return Answer::Refused { reason: why };
        };
        // The token comes first: who does not know it learns nothing else.
        let is_known = question
            .token
            .parse::<JoinToken>()
            .is_ok_and(|shown| self.token.matches(&shown));
        if !is_known {
            let _ = self.tell(Input::TurnedAway(from, "it shows a wrong token".to_owned()));
            let reason = "wrong token: it is not the one of this job".to_owned();
            return Answer::Refused { reason };
        }
        if question.protocol != PROTOCOL {
            let theirs = question.protocol;
            let reason = format!("protocol {theirs}; this coordinator speaks {PROTOCOL}");
            return Answer::Refused { reason };
        }
        let (reply, answer) = sync_channel(1);
        let asked = self.tell(Input::Asked(Box::new(question.asks), from, reply));
        let answer = asked
            .ok()
            .and_then(|()| answer.recv_timeout(ANSWER_MAX).ok());
        answer.unwrap_or_else(|| Answer::Refused {
            reason: "this coordinator is ending".to_owned(),
        })
    }

    /// The hello of an agent, against its certificate.
    fn hello(
        &self,
        certificate: &CertificateDer<'_>,
        line: &[u8],
        outbox: &Arc<Outbox>,
    ) -> Result<Came, String> {
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
                "protocol {protocol}; this coordinator speaks {PROTOCOL}"
            ));
        }
        let is_it = self
            .identity
            .check_peer(certificate, &Member::Host(host.clone()));
        is_it.map_err(|error| error.to_string())?;
        if !(1..=SLOTS_MAX).contains(&count) {
            return Err(format!("{count} slots; expected 1 to {SLOTS_MAX}"));
        }
        Ok(Came {
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

impl Reception for Room {
    fn greet(&self, mut greeted: Greeted) {
        let Ok(outbox) = Outbox::new().map(Arc::new) else {
            // Out of file descriptors: the other side tries again.
            return;
        };
        let (from, line) = (greeted.from, std::mem::take(&mut greeted.line));
        let rest = std::mem::take(&mut greeted.rest);
        let number = match &greeted.way {
            Way::Joining => {
                outbox.send(&self.question(from, &line));
                outbox.close();
                None
            }
            Way::Member(certificate) => match self.hello(certificate, &line, &outbox) {
                Ok(came) => Some((came.number, came)),
                Err(reason) => {
                    let _ = self.tell(Input::TurnedAway(from, reason.clone()));
                    outbox.send(&ToAgent::Refused { reason });
                    outbox.close();
                    None
                }
            },
        };
        let number = number.map(|(number, came)| {
            if self.tell(Input::Came(Box::new(came))).is_err() {
                outbox.close();
            }
            number
        });
        let mut deliver = |line: &[u8]| match number {
            Some(number) => {
                let said = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                self.tell(Input::Said(number, Box::new(said)))
            }
            None => Err("a second line".to_owned()),
        };
        let end = pump(
            &mut greeted.tls,
            &greeted.stream,
            &outbox,
            rest,
            &mut deliver,
        );
        if let Some(number) = number {
            let cause = match end {
                Pumped::Here => "closed by the coordinator".to_owned(),
                Pumped::There(cause) | Pumped::Broken(cause) => cause,
            };
            let _ = self.tell(Input::Gone(number, cause));
        }
    }

    fn turn_away(&self, from: SocketAddr, why: String) {
        let _ = self.tell(Input::TurnedAway(from, why));
    }
}
