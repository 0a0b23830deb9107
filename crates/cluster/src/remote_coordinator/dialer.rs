//! [`Dialer`]: keeps an agent connected to any coordinator of its job.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ronde_identity::{Identity, Member};

use super::addresses::CoordinatorAddresses;
use crate::job::JobFolder;
use crate::messages::ToAgent;
use crate::peer_address::PeerAddress;
use crate::secure::{ConnectionEnd, DialError, MEMBERS, Outbox, connect, pump};

/// Time limit for the handshake with one coordinator, which a stopped one never completes.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// The same when no name can be resolved.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of queued messages for the agent; beyond it the coordinator's socket fills up.
const DELIVERIES_MAX: usize = 4_096;

/// An event on the connection to the coordinator.
pub(super) enum DialerEvent {
    /// The connection was established; this host's address on it.
    Connected(Arc<Outbox>, IpAddr),
    /// A message was received.
    Message(Box<ToAgent>),
    /// The connection ended, with the reason.
    Disconnected(String),
    /// No connection could be established.
    Failed {
        why: String,
        /// Whether no process listens at the address.
        is_absent: bool,
    },
}

/// A thread that connects and forwards messages.
pub(crate) struct Dialer {
    shared: Arc<DialerShared>,
    deliveries: Receiver<DialerEvent>,
}

struct DialerShared {
    identity: Identity,
    addresses: CoordinatorAddresses,
    closing: AtomicBool,
}

impl Dialer {
    pub(crate) fn start(
        identity: Identity,
        named: Vec<PeerAddress>,
        folder: Option<JobFolder>,
    ) -> Self {
        let shared = Arc::new(DialerShared {
            identity,
            addresses: CoordinatorAddresses::new(named, folder),
            closing: AtomicBool::new(false),
        });
        let (sender, deliveries) = sync_channel(DELIVERIES_MAX);
        let dialing = Arc::clone(&shared);
        thread::spawn(move || dialing.run(&sender));
        Self { shared, deliveries }
    }

    /// Returns the next event, if there is one.
    pub(super) fn next(&self) -> Option<DialerEvent> {
        self.deliveries.try_recv().ok()
    }

    /// Waits for the next event.
    pub(super) fn wait(&self, limit: Duration) -> Option<DialerEvent> {
        self.deliveries.recv_timeout(limit).ok()
    }

    /// Adds addresses of coordinators.
    pub(super) fn learn(&self, more: Vec<SocketAddr>) {
        self.shared.addresses.learn(more);
    }

    /// Returns the number of known coordinators.
    pub(super) fn knows(&self) -> usize {
        self.shared.addresses.candidates().len()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
    }
}

impl DialerShared {
    fn run(&self, sender: &SyncSender<DialerEvent>) {
        let mut last = None;
        while !self.closing.load(Ordering::SeqCst) {
            let mut all = self.addresses.candidates();
            // The address after the last one that was tried.
            let at = all.iter().position(|address| Some(*address) == last);
            let mut next = at.map_or(0, |at| (at + 1) % all.len());
            let mut problems = Vec::new();
            if next == 0 {
                problems = self.addresses.resolve(CONNECT_MAX);
                (all, next) = (self.addresses.candidates(), 0);
            }
            let delivery = match all.get(next) {
                None => {
                    if problems.is_empty() {
                        problems.push("no address of a coordinator is known".to_owned());
                    }
                    failed(problems.join("; "))
                }
                Some(&address) => {
                    last = Some(address);
                    match self.visit(address, sender) {
                        DialerEvent::Failed { why, is_absent } => {
                            let is_absent = is_absent && problems.is_empty();
                            problems.push(why);
                            let why = problems.join("; ");
                            DialerEvent::Failed { why, is_absent }
                        }
                        other => other,
                    }
                }
            };
            let pause = match all.is_empty() {
                true => RESOLVE_PAUSE,
                false => PAUSE,
            };
            if sender.send(delivery).is_err() {
                return;
            }
            ronde_clock::pause(pause);
        }
    }

    /// Runs one connection from its beginning to its end.
    fn visit(&self, address: SocketAddr, sender: &SyncSender<DialerEvent>) -> DialerEvent {
        let connected = self
            .identity
            .client_config(MEMBERS)
            .and_then(|config| Ok((config, self.identity.name_of(&Member::Coordinator)?)))
            .map_err(DialError::from)
            .and_then(|(config, name)| connect(address, config, name, CONNECT_MAX));
        let mut stream = match connected {
            Ok(connected) => connected,
            Err(error) => {
                return DialerEvent::Failed {
                    why: format!("{address}: {error}"),
                    is_absent: error.is_absent(),
                };
            }
        };
        let prepared =
            Outbox::new().and_then(|outbox| Ok((outbox, stream.socket().local_addr()?.ip())));
        let (outbox, here) = match prepared {
            Ok((outbox, here)) => (Arc::new(outbox), here),
            Err(error) => return failed(format!("{address}: {error}")),
        };
        if sender
            .send(DialerEvent::Connected(Arc::clone(&outbox), here))
            .is_err()
        {
            return DialerEvent::Disconnected("this agent has ended".to_owned());
        }
        let mut deliver = |line: &[u8]| {
            let said = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            sender
                .send(DialerEvent::Message(Box::new(said)))
                .map_err(|_| "this agent has ended".to_owned())
        };
        match pump(&mut stream, &outbox, Vec::new(), &mut deliver) {
            ConnectionEnd::Local => {
                DialerEvent::Disconnected(format!("{address} stopped answering"))
            }
            ConnectionEnd::Peer(why) | ConnectionEnd::Invalid(why) => {
                DialerEvent::Disconnected(format!("{address}: {why}"))
            }
        }
    }
}

fn failed(why: String) -> DialerEvent {
    DialerEvent::Failed {
        why,
        is_absent: false,
    }
}
