//! [`Transport`]: ordered streams of bytes to every other member, and one wait over all of them.
//!
//! Everything above it (frames, collectives, messages, failure) is the same for every transport.

pub(crate) mod in_process;
mod peer_stream;
mod poller;
pub(crate) mod striped;
pub(crate) mod tcp;
pub(crate) mod tls;
mod unanswered;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use peer_stream::PeerStream;

/// The events of one peer's streams that are of interest, or that are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Bytes, or the end of the stream, can be read.
    pub read: bool,
    /// Bytes can be written.
    pub write: bool,
}

/// Ends a [`Transport::wait`] from another thread.
pub trait Waker: Send + Sync + Debug {
    /// Makes the current wait, or else the next one, return at once.
    fn wake(&self);
}

/// Streams to the members of a group, used by one thread. Nothing but [`Transport::wait`] blocks.
///
/// Peers are group ranks; a member has no stream to itself.
pub trait Transport: Send + Debug {
    /// Reads available bytes; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none are available yet; any other error means that the stream is lost.
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of `head` and then `body` as fits; returns the number of bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing fits; any other error means that the stream is lost.
    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize>;

    /// Waits, by peer, until an event of `interest` is possible, or until woken or `limit` has
    /// passed (`None` waits without limit); then sets `interest` to the events that are possible. It may
    /// return early, as if woken.
    ///
    /// # Errors
    /// When the system call fails.
    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()>;

    /// Ends this member's stream to `peer`; bytes written before still arrive.
    fn finish(&mut self, peer: usize);

    /// Returns a waker for this transport's wait.
    fn waker(&self) -> Arc<dyn Waker>;

    /// Returns the peers whose hosts have not acknowledged data although it was retransmitted: a path
    /// between the two hosts is cut, or that host is down. A stopped process does not count. Empty
    /// if a transport cannot know.
    ///
    /// Cost: may read a system table; intended for use after a failure.
    fn unanswered(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Takes the stream to `peer` out of this transport, for a later one; `None` if it has none, or cannot.
    fn release(&mut self, peer: usize) -> Option<PeerStream> {
        let _kept = peer;
        None
    }
}

#[cfg(test)]
mod conformance;
