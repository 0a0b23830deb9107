//! Streams over TLS 1.3: one connection per pair of members over non-blocking sockets.
//!
//! A connection within one host may continue without encryption once both ends have authenticated each
//! other, see [`TlsStream::leave_tls`].
//!
//! Bytes that TLS has accepted but the socket has not are sent in [`Transport::wait`].

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ronde_wire::{TlsStream, WireStream};

use super::poller::Poller;
use super::unanswered::unanswered;
use super::{Interest, PeerStream, Transport, Waker};

/// Connections to all other members, by group rank.
#[derive(Debug)]
pub(crate) struct Tls {
    streams: Vec<Option<TlsStream>>,
    poller: Poller,
}

impl Tls {
    /// Takes connected streams that are set up; the member's own entry is `None`.
    pub(crate) fn new(mut streams: Vec<Option<TlsStream>>) -> io::Result<Self> {
        for stream in streams.iter_mut().flatten() {
            stream.read_by_record(false);
        }
        let poller = Poller::new(streams.len())?;
        Ok(Self { streams, poller })
    }

    fn stream(&mut self, peer: usize) -> io::Result<&mut TlsStream> {
        self.streams[peer]
            .as_mut()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Transport for Tls {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        self.stream(peer)?.read(into)
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let mut pieces = [IoSlice::new(head), IoSlice::new(body)];
        self.stream(peer)?.write(&mut pieces)
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let wanted = interest.to_vec();
        let streams = self.streams.iter().zip(&wanted).enumerate();
        let streams = streams.filter_map(|(peer, (stream, wanted))| {
            let stream = stream.as_ref()?;
            Some((peer, stream, *wanted))
        });
        let at_once =
            (streams.clone()).any(|(_, stream, wanted)| wanted.read && stream.tls().has_more());
        let limit = if at_once { Some(Duration::ZERO) } else { limit };
        let sockets = streams.map(|(peer, stream, wanted)| {
            let write = wanted.write || stream.tls().has_unsent();
            (peer, stream.socket().as_fd(), Interest { write, ..wanted })
        });
        self.poller.wait(sockets, interest, limit)?;
        for (peer, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let possible = interest[peer];
            // The next write or read returns the error again.
            let flushed = possible.write && stream.flush().is_ok();
            interest[peer] = Interest {
                read: wanted[peer].read && (possible.read || stream.tls().has_more()),
                write: wanted[peer].write
                    && possible.write
                    && (flushed || !stream.tls().has_unsent()),
            };
        }
        Ok(())
    }

    fn finish(&mut self, peer: usize) {
        if let Some(stream) = &mut self.streams[peer] {
            stream.finish();
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.poller.waker()
    }

    fn unanswered(&self) -> Vec<usize> {
        let streams = self.streams.iter().enumerate();
        unanswered(streams.filter_map(|(peer, stream)| Some((peer, stream.as_ref()?.socket()))))
    }

    fn release(&mut self, peer: usize) -> Option<PeerStream> {
        let stream = self.streams[peer].take()?;
        let socket = stream.socket().as_fd();
        self.poller.forget(peer, socket).ok()?;
        Some(PeerStream::released(WireStream::Tls(Box::new(stream))))
    }
}
