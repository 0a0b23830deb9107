//! [`Dialler`]: an agent's way to whichever coordinator of its job answers, again and again.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ronde_identity::{Identity, Member};

use crate::clock;
use crate::job::JobFolder;
use crate::secure::{DialError, MEMBERS, Outbox, Pumped, connect, pump};
use crate::talk::ToAgent;

/// How long one coordinator may take to shake hands; one that is stopped never does.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// What waits for the agent at most; beyond that the coordinator's socket fills up.
const DELIVERIES_MAX: usize = 4_096;

/// What becomes of the connection.
pub(super) enum Delivery {
    /// It stands; this is this host's address on it.
    Up(Arc<Outbox>, IpAddr),
    /// The coordinator says something.
    Said(Box<ToAgent>),
    /// It is over, and why.
    Down(String),
    /// No connection could be made with a coordinator, and why.
    Failed(String),
}

/// A thread that connects and carries what is said.
pub(crate) struct Dialler {
    shared: Arc<Shared>,
    deliveries: Receiver<Delivery>,
}

struct Shared {
    identity: Identity,
    folder: Option<JobFolder>,
    /// Where coordinators listen, for all that is known.
    known: Mutex<Vec<SocketAddr>>,
    closing: AtomicBool,
}

impl Dialler {
    pub(crate) fn start(
        identity: Identity,
        known: Vec<SocketAddr>,
        folder: Option<JobFolder>,
    ) -> Self {
        let shared = Arc::new(Shared {
            identity,
            folder,
            known: Mutex::new(known),
            closing: AtomicBool::new(false),
        });
        let (sender, deliveries) = sync_channel(DELIVERIES_MAX);
        let dialling = Arc::clone(&shared);
        thread::spawn(move || dialling.run(&sender));
        Self { shared, deliveries }
    }

    /// What has come, if anything has.
    pub(super) fn next(&self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }

    /// Waits for what comes next.
    pub(super) fn wait(&self, limit: Duration) -> Option<Delivery> {
        self.deliveries.recv_timeout(limit).ok()
    }

    /// Coordinators also listen there.
    pub(super) fn learn(&self, more: Vec<SocketAddr>) {
        let mut known = self
            .shared
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for address in more {
            if !known.contains(&address) {
                known.push(address);
            }
        }
    }

    /// How many coordinators there may be.
    pub(super) fn knows(&self) -> usize {
        self.shared.candidates().len()
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    /// Where to try: what the job's folder says, the newest first, then what else is known.
    fn candidates(&self) -> Vec<SocketAddr> {
        let listed = self
            .folder
            .as_ref()
            .and_then(|folder| folder.coordinators().ok());
        let mut all = listed.unwrap_or_default();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(known.iter());
        let mut seen = Vec::new();
        all.retain(|address| {
            !seen.contains(address) && {
                seen.push(*address);
                true
            }
        });
        all
    }

    fn run(&self, sender: &SyncSender<Delivery>) {
        let mut last = None;
        while !self.closing.load(Ordering::SeqCst) {
            let all = self.candidates();
            // The one after the last that was tried.
            let at = all.iter().position(|address| Some(*address) == last);
            let next = at.map_or(0, |at| (at + 1) % all.len());
            let delivery = match all.get(next) {
                None => Delivery::Failed("nobody knows where a coordinator listens".to_owned()),
                Some(&address) => {
                    last = Some(address);
                    self.visit(address, sender)
                }
            };
            if sender.send(delivery).is_err() {
                return;
            }
            clock::pause(PAUSE);
        }
    }

    /// One connection, from its beginning to its end.
    fn visit(&self, address: SocketAddr, sender: &SyncSender<Delivery>) -> Delivery {
        let connected = self
            .identity
            .client_config(MEMBERS)
            .and_then(|config| Ok((config, self.identity.name_of(&Member::Coordinator)?)))
            .map_err(DialError::from)
            .and_then(|(config, name)| connect(address, config, name, CONNECT_MAX));
        let (mut tls, stream) = match connected {
            Ok(connected) => connected,
            Err(DialError::Later(why) | DialError::Never(why)) => {
                return Delivery::Failed(format!("{address}: {why}"));
            }
        };
        let prepared = Outbox::new().and_then(|outbox| Ok((outbox, stream.local_addr()?.ip())));
        let (outbox, here) = match prepared {
            Ok((outbox, here)) => (Arc::new(outbox), here),
            Err(error) => return Delivery::Failed(format!("{address}: {error}")),
        };
        if sender
            .send(Delivery::Up(Arc::clone(&outbox), here))
            .is_err()
        {
            return Delivery::Down("this agent has ended".to_owned());
        }
        let mut deliver = |line: &[u8]| {
            let said = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            sender
                .send(Delivery::Said(Box::new(said)))
                .map_err(|_| "this agent has ended".to_owned())
        };
        match pump(&mut tls, &stream, &outbox, Vec::new(), &mut deliver) {
            Pumped::Here => Delivery::Down(format!("{address} did not answer any more")),
            Pumped::There(why) | Pumped::Broken(why) => Delivery::Down(format!("{address}: {why}")),
        }
    }
}
