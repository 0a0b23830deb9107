//! Streams over TCP: one connection per pair of members, polled together.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::unanswered::unanswered;
use super::{Interest, Transport, Waker};

/// How long sent bytes may stay unacknowledged before the system closes the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(120);
/// Socket buffer sizes in bytes between two processes of one host, for the sender and the receiver.
///
/// There is no latency to hide: larger buffers only exceed the cache. This is twice as fast as
/// the system's default from 4 MiB upwards.
const LOOPBACK_BYTES: (usize, usize) = (128 << 10, 1 << 20);
/// How long an idle connection is not probed.
const KEEPALIVE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct TcpWaker(OwnedFd);

impl TcpWaker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }
}

impl Waker for TcpWaker {
    fn wake(&self) {
        // It can only fail when it is signalled already.
        let _rung = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Connections to all other members, by group rank.
#[derive(Debug)]
pub(crate) struct Tcp {
    streams: Vec<Option<TcpStream>>,
    waker: Arc<TcpWaker>,
}

impl Tcp {
    /// Takes connected streams; the member's own entry is `None`.
    pub(crate) fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        for stream in streams.iter().flatten() {
            set_up(stream)?;
        }
        let waker = Arc::new(TcpWaker::new()?);
        Ok(Self { streams, waker })
    }

    fn stream(&mut self, peer: usize) -> io::Result<&mut TcpStream> {
        self.streams[peer]
            .as_mut()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

/// Prepares a connected socket for a transport: it never blocks and detects a dead peer.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
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

/// Waits for the waker or any of the sockets; returns the possible events of each socket, where a lost
/// connection counts as readable and writable.
pub(super) fn poll_all(
    waker: &TcpWaker,
    sockets: &[(BorrowedFd<'_>, PollFlags)],
    limit: Option<Duration>,
) -> io::Result<Vec<Interest>> {
    let mut fds = Vec::with_capacity(sockets.len() + 1);
    fds.push(PollFd::new(&waker.0, PollFlags::IN));
    fds.extend(sockets.iter().map(|(fd, flags)| PollFd::new(fd, *flags)));
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()) as _,
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let lost = PollFlags::ERR | PollFlags::HUP;
    let possible = fds[1..].iter().map(|fd| Interest {
        read: fd.revents().intersects(PollFlags::IN | lost),
        write: fd.revents().intersects(PollFlags::OUT | lost),
    });
    let possible = possible.collect();
    if !fds[0].revents().is_empty() {
        let mut rings = [0; 8];
        let _silenced = rustix::io::read(&waker.0, &mut rings);
    }
    Ok(possible)
}

/// Repeats a call that a signal has interrupted.
pub(super) fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

impl Transport for Tcp {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        let stream = self.stream(peer)?;
        again(|| stream.read(into))
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let stream = self.stream(peer)?;
        again(|| stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]))
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let mut fds = Vec::with_capacity(interest.len());
        let mut peers = Vec::with_capacity(interest.len());
        for (peer, (stream, wanted)) in self.streams.iter().zip(&*interest).enumerate() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, wanted.read);
            flags.set(PollFlags::OUT, wanted.write);
            if let Some(stream) = stream
                && !flags.is_empty()
            {
                fds.push((stream.as_fd(), flags));
                peers.push(peer);
            }
        }
        let possible = poll_all(&self.waker, &fds, limit)?;
        let wanted = interest.to_vec();
        interest.fill(Interest::default());
        for (&peer, possible) in peers.iter().zip(possible) {
            interest[peer] = Interest {
                read: wanted[peer].read && possible.read,
                write: wanted[peer].write && possible.write,
            };
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
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }

    fn unanswered(&self) -> Vec<usize> {
        let streams = self.streams.iter().enumerate();
        unanswered(streams.filter_map(|(peer, stream)| Some((peer, stream.as_ref()?))))
    }
}
