//! [`Transport`]: ordered streams of bytes to every other member, and one wait over all of them.
//!
//! Everything above it (frames, collectives, messages, failure) is the same for every transport.

pub(crate) mod in_process;
pub(crate) mod near;
pub(crate) mod striped;
pub(crate) mod tcp;
pub(crate) mod tls;
mod unanswered;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What is wanted of, or possible with, one peer's streams.
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
    /// Reads what is there; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there yet; else the stream is lost.
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of `head` and then `body` as there is room for; returns how many bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room; else the stream is lost.
    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize>;

    /// Waits, by peer, until something of `interest` is possible, or until woken or `limit` has
    /// passed (`None` waits without limit); then tells in `interest` what is possible. It may return
    /// earlier, as if woken.
    ///
    /// # Errors
    /// When the system refuses to wait.
    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()>;

    /// Ends this member's stream to `peer`; what was written before still arrives.
    fn finish(&mut self, peer: usize);

    /// Wakes this transport's wait.
    fn waker(&self) -> Arc<dyn Waker>;

    /// Peers whose hosts have not acknowledged what was sent to them, although it was sent again: a way
    /// between the two hosts is cut, or that host is down. A process that is stopped does not count. Empty
    /// where a transport cannot know.
    ///
    /// Cost: may read a table of the system; for when something has gone wrong.
    fn unanswered(&self) -> Vec<usize> {
        Vec::new()
    }
}

#[cfg(test)]
mod conformance;
