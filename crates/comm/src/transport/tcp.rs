//! Streams over TCP: one connection per pair of members, polled together.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ronde_wire::{WireStream, retry_interrupted};

use super::poller::Poller;
use super::unanswered::unanswered;
use super::{Interest, PeerStream, Transport, Waker};

/// How long sent bytes may stay unacknowledged before the system closes the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(120);
/// Socket buffer sizes in bytes between two processes of one host, for the sender and the receiver.
///
/// Without latency to hide, larger buffers only exceed the cache. This is twice as fast as
/// the system's default from 4 MiB upwards.
const LOOPBACK_BYTES: (usize, usize) = (128 << 10, 1 << 20);
/// How long an idle connection is not probed.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Connections to all other members, by group rank.
#[derive(Debug)]
pub(crate) struct Tcp {
    streams: Vec<Option<TcpStream>>,
    poller: Poller,
}

impl Tcp {
    /// Takes connected streams that are set up; the member's own entry is `None`.
    pub(crate) fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        let poller = Poller::new(streams.len())?;
        Ok(Self { streams, poller })
    }

    fn stream(&mut self, peer: usize) -> io::Result<&mut TcpStream> {
        self.streams[peer]
            .as_mut()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

/// Prepares a connected socket for a transport: it never blocks and detects a dead peer.
pub(crate) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&probes)?;
    if stream.peer_addr()?.ip().is_loopback() {
        socket.set_send_buffer_size(LOOPBACK_BYTES.0)?;
        socket.set_recv_buffer_size(LOOPBACK_BYTES.1)?;
    }
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

impl Transport for Tcp {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        let stream = self.stream(peer)?;
        retry_interrupted(|| stream.read(into))
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let stream = self.stream(peer)?;
        retry_interrupted(|| stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]))
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let wanted = interest.to_vec();
        let streams = self.streams.iter().zip(&wanted).enumerate();
        let sockets = streams
            .filter_map(|(peer, (stream, wanted))| Some((peer, stream.as_ref()?.as_fd(), *wanted)));
        self.poller.wait(sockets, interest, limit)?;
        // Only events of interest are reported, but a lost connection counts as both.
        for (possible, wanted) in interest.iter_mut().zip(wanted) {
            possible.read &= wanted.read;
            possible.write &= wanted.write;
        }
        Ok(())
    }

    fn finish(&mut self, peer: usize) {
        if let Some(stream) = &self.streams[peer] {
            // An error means that the connection is gone, which is the goal.
            let _gone = stream.shutdown(Shutdown::Write);
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.poller.waker()
    }

    fn unanswered(&self) -> Vec<usize> {
        let streams = self.streams.iter().enumerate();
        unanswered(streams.filter_map(|(peer, stream)| Some((peer, stream.as_ref()?))))
    }

    fn release(&mut self, peer: usize) -> Option<PeerStream> {
        let stream = self.streams[peer].take()?;
        self.poller.forget(peer, stream.as_fd()).ok()?;
        Some(PeerStream::released(WireStream::Plain(stream)))
    }
}
