//! [`ConnectionPool`]: the connections of a generation, kept for the next one.
//!
//! Authenticated connections between all members cost a handshake for each pair. When a generation ends, most of its members
//! meet again in the next one, so the next group of a process takes the streams of the previous one out of it and
//! continues them: see [`super::resume`]. A stream belongs to a group or to the pool, and a process that
//! drops its end of a stream closes it, so that the other process makes a new connection too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::stream_executor::Mailbox;
use crate::transport::PeerStream;

/// How long to wait for the streams of the previous group.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// A stream of an earlier group, with the bytes of that group that are still under way.
#[derive(Debug)]
pub(crate) struct KeptStream {
    pub(crate) stream: PeerStream,
    /// Bytes to send before anything else: the rest of a frame that is partly sent, and the frames after it.
    pub(crate) unsent: Vec<u8>,
    /// Bytes that were read and not used.
    pub(crate) unread: Vec<u8>,
    /// The number of bytes to skip, which are the rest of a frame; `unread` starts with them.
    pub(crate) skipped: u64,
}

impl KeptStream {
    /// Returns a stream without bytes under way.
    pub(crate) fn idle(stream: PeerStream) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            unread: Vec::new(),
            skipped: 0,
        }
    }
}

/// Keeps the connections of a process's group for its next group of the same job, so that only those to new members are made.
///
/// All groups that are given clones of one pool by [`crate::GroupConfig::connection_pool`] follow each other: the next one
/// takes the connections when it joins, which ends the one before. A peer is recognised by its listening address and by
/// its certificate. Members with and without a pool, or whose connections were lost, connect as usual.
#[derive(Debug, Clone, Default)]
pub struct ConnectionPool(Arc<Mutex<KeptStreams>>);

#[derive(Debug, Default)]
struct KeptStreams {
    /// By the peer's listening address.
    idle: HashMap<SocketAddr, KeptStream>,
    holder: Option<StreamHolder>,
}

/// The group that uses the streams.
#[derive(Debug)]
struct StreamHolder {
    mailbox: Weak<Mailbox>,
    /// The members' listening addresses by group rank.
    peers: Vec<SocketAddr>,
}

impl ConnectionPool {
    fn state(&self) -> MutexGuard<'_, KeptStreams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group that uses the streams, and takes those to the given members, by group rank; the others are closed.
    pub(crate) fn take(&self, peers: &[SocketAddr]) -> Vec<Option<KeptStream>> {
        self.reclaim();
        let mut idle = std::mem::take(&mut self.state().idle);
        peers.iter().map(|peer| idle.remove(peer)).collect()
    }

    /// Ends the group that uses the streams, and keeps those that can be continued.
    pub(crate) fn reclaim(&self) {
        let holder = self.state().holder.take();
        if let Some(StreamHolder { mailbox, peers }) = holder
            && let Some(mailbox) = mailbox.upgrade()
            && let Ok(streams) = mailbox.hand_over().recv_timeout(HAND_OVER_MAX)
        {
            self.keep(&peers, streams.into_iter());
        }
    }

    /// Keeps streams for the next group, by group rank; later ones replace earlier ones to the same member.
    pub(crate) fn keep(
        &self,
        peers: &[SocketAddr],
        streams: impl Iterator<Item = (usize, KeptStream)>,
    ) {
        let by_address = streams.map(|(rank, kept)| (peers[rank], kept));
        self.state().idle.extend(by_address);
    }

    /// Records the group that uses the streams from now on.
    pub(crate) fn lend_to(&self, mailbox: &Arc<Mailbox>, peers: &[SocketAddr]) {
        self.state().holder = Some(StreamHolder {
            mailbox: Arc::downgrade(mailbox),
            peers: peers.to_vec(),
        });
    }
}
