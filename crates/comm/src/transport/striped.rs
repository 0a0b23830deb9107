//! [`Striped`]: one stream per peer over several connections, so that a link that one connection cannot
//! saturate is used fully, and several threads can encrypt for one peer.
//!
//! The bytes for a peer are cut into stripes. Each is sent on one connection with a header that has its
//! number, and the receiver reads stripes in the order of their numbers from whichever connection carries
//! them. Small amounts use only the first connection. A connection that ends without the end marker is a
//! lost peer, even if other connections remain.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use ronde_core::byte_reader::number;

use super::{Interest, PeerStream, Transport, Waker};

/// Maximum size of a stripe, in bytes.
pub(super) const STRIPE_BYTES: usize = 256 << 10;
/// Minimum size of a write that is spread over connections, in bytes.
pub(super) const SPREAD_BYTES_MIN: usize = 64 << 10;
/// Size of a header in bytes: number of a stripe, and its length.
const HEADER_BYTES: usize = 12;
/// Replaces a stripe's number to mark the orderly end of a connection.
const END: u64 = u64::MAX;
/// How long a closing member tries to send its remaining bytes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Bytes to be sent on one connection.
#[derive(Debug, Default)]
struct StripeSender {
    /// The rest of a stripe that did not fit: `pending[at..]`.
    pending: Vec<u8>,
    at: usize,
    /// The end marker was written.
    ended: bool,
    closed: bool,
}

impl StripeSender {
    fn is_free(&self) -> bool {
        self.at == self.pending.len()
    }
}

/// The state of receiving on one connection.
#[derive(Debug, Default)]
struct StripeReceiver {
    header: [u8; HEADER_BYTES],
    have: usize,
    /// Number of the current stripe, and its missing bytes.
    stripe: Option<(u64, usize)>,
    ended: bool,
    lost: bool,
}

impl StripeReceiver {
    /// Returns whether the next bytes on this connection can be used: a header, or the stripe `next`.
    fn is_wanted(&self, next: u64) -> bool {
        let in_turn = self.stripe.is_none_or(|(number, _)| number == next);
        in_turn && !self.ended && !self.lost
    }
}

/// Both directions of the stream to one peer.
#[derive(Debug)]
pub(crate) struct Stripes {
    sending: Vec<StripeSender>,
    receiving: Vec<StripeReceiver>,
    /// Numbers of the next stripe to send and to read.
    next_out: u64,
    next_in: u64,
    /// The connection to use next.
    turn: usize,
    /// Whether bytes did not fit, so that the next ones use the first connection.
    first_only: bool,
    finishing: bool,
}

impl Stripes {
    fn new(connections: usize) -> Self {
        Self {
            sending: (0..connections).map(|_| StripeSender::default()).collect(),
            receiving: (0..connections)
                .map(|_| StripeReceiver::default())
                .collect(),
            next_out: 0,
            next_in: 0,
            turn: 0,
            first_only: false,
            finishing: false,
        }
    }
}

/// Streams to all other members, each over several connections.
#[derive(Debug)]
pub(crate) struct Striped {
    /// The connection `c` to peer `p` is its stream `p * connections + c`.
    inner: Box<dyn Transport>,
    connections: usize,
    peers: Vec<Stripes>,
}

impl Striped {
    /// Wraps a transport with `connections` streams for each peer, one peer after another. `None`: the peer's stream
    /// is new.
    pub(crate) fn new(
        inner: Box<dyn Transport>,
        connections: usize,
        peers: Vec<Option<Stripes>>,
    ) -> Self {
        let peers = peers.into_iter();
        let peers = peers.map(|kept| kept.unwrap_or_else(|| Stripes::new(connections)));
        Self {
            inner,
            connections,
            peers: peers.collect(),
        }
    }

    fn stream(&self, peer: usize, connection: usize) -> usize {
        peer * self.connections + connection
    }

    /// Sends one stripe from `taken` bytes into `head` and `body`; returns 0 if nothing fits.
    fn send_stripe(
        &mut self,
        (peer, connection): (usize, usize),
        (head, body): (&[u8], &[u8]),
        taken: usize,
        len: usize,
    ) -> io::Result<usize> {
        let stream = self.stream(peer, connection);
        let stripes = &mut self.peers[peer];
        let mut first = Vec::with_capacity(HEADER_BYTES + head.len());
        first.extend(stripes.next_out.to_le_bytes());
        first.extend((len as u32).to_le_bytes());
        let of_head = &head[taken.min(head.len())..(taken + len).min(head.len())];
        first.extend(of_head);
        let from = (taken + of_head.len()).saturating_sub(head.len());
        let body = &body[from..from + len - of_head.len()];
        let gone = match self.inner.write(stream, &first, body) {
            Ok(gone) => gone,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        stripes.next_out += 1;
        let sending = &mut stripes.sending[connection];
        sending.pending.clear();
        sending.at = 0;
        sending.pending.extend(&first[gone.min(first.len())..]);
        sending
            .pending
            .extend(&body[gone.saturating_sub(first.len())..]);
        Ok(len)
    }

    /// Sends the rest of a connection's stripe, and its end marker after the last one.
    fn flush(&mut self, peer: usize, connection: usize) -> io::Result<()> {
        let stream = self.stream(peer, connection);
        let stripes = &mut self.peers[peer];
        let sending = &mut stripes.sending[connection];
        loop {
            while !sending.is_free() {
                let rest = &sending.pending[sending.at..];
                sending.at += self.inner.write(stream, rest, &[])?;
            }
            if !stripes.finishing || sending.closed {
                return Ok(());
            }
            if sending.ended {
                sending.closed = true;
                self.inner.finish(stream);
                return Ok(());
            }
            sending.ended = true;
            sending.at = 0;
            sending.pending.clear();
            sending.pending.extend(END.to_le_bytes());
            sending.pending.extend([0; 4]);
        }
    }

    /// Reads headers where one is expected; returns whether one was complete.
    fn read_headers(&mut self, peer: usize) -> io::Result<bool> {
        let mut any = false;
        for connection in 0..self.connections {
            let stream = self.stream(peer, connection);
            let next = self.peers[peer].next_in;
            let receiving = &mut self.peers[peer].receiving[connection];
            if receiving.stripe.is_some() || !receiving.is_wanted(next) {
                continue;
            }
            match self
                .inner
                .read(stream, &mut receiving.header[receiving.have..])
            {
                Ok(0) => receiving.lost = true,
                Ok(count) => receiving.have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if receiving.have == HEADER_BYTES {
                receiving.have = 0;
                any = true;
                let (which, len) = receiving.header.split_at(8);
                match (number(which), number(len) as usize) {
                    (END, _) => receiving.ended = true,
                    (which, len @ 1..=STRIPE_BYTES) if which >= next => {
                        receiving.stripe = Some((which, len));
                    }
                    (which, len) => {
                        let problem =
                            format!("stripe {which} of {len} bytes, expected stripe {next}");
                        return Err(io::Error::new(ErrorKind::InvalidData, problem));
                    }
                }
            }
        }
        Ok(any)
    }

    /// Reads from the next stripe; returns 0 at the end of the stream.
    fn read_some(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let next = self.peers[peer].next_in;
            let in_turn = |r: &StripeReceiver| r.stripe.is_some_and(|(number, _)| number == next);
            let found = self.peers[peer].receiving.iter().position(in_turn);
            if let Some(connection) = found
                && let Some((_, left)) = self.peers[peer].receiving[connection].stripe
            {
                let room = into.len().min(left);
                let stream = self.stream(peer, connection);
                let count = self.inner.read(stream, &mut into[..room])?;
                if count == 0 {
                    return Err(lost());
                }
                let stripes = &mut self.peers[peer];
                stripes.receiving[connection].stripe = Some((next, left - count));
                if count == left {
                    stripes.receiving[connection].stripe = None;
                    stripes.next_in += 1;
                }
                return Ok(count);
            }
            if !self.read_headers(peer)? {
                let receiving = &self.peers[peer].receiving;
                if receiving.iter().all(|r| r.ended) {
                    return Ok(0);
                }
                if receiving.iter().any(|r| r.lost) {
                    return Err(lost());
                }
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Returns the interest in each connection, by stream.
    fn wanted(&self, interest: &[Interest]) -> Vec<Interest> {
        let of = |(stripes, wanted): (&Stripes, &Interest)| -> Vec<Interest> {
            let links = stripes.sending.iter().zip(&stripes.receiving).enumerate();
            let of_link =
                |(connection, (sending, receiving)): (usize, (&StripeSender, &StripeReceiver))| {
                    let may_take = connection == 0 || !stripes.first_only;
                    let unfinished = stripes.finishing && !sending.closed;
                    Interest {
                        read: wanted.read && receiving.is_wanted(stripes.next_in),
                        write: !sending.is_free() || unfinished || (wanted.write && may_take),
                    }
                };
            links.map(of_link).collect()
        };
        self.peers.iter().zip(interest).flat_map(of).collect()
    }
}

fn lost() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "connection closed")
}

impl Transport for Striped {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < into.len() {
            match self.read_some(peer, &mut into[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                // The next read returns the error again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        if self.peers[peer].finishing {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let total = head.len() + body.len();
        let (mut taken, mut tried) = (0, 0);
        while taken < total && tried < self.connections {
            let rest = total - taken;
            let stripes = &mut self.peers[peer];
            stripes.first_only = rest < SPREAD_BYTES_MIN;
            let connection = if stripes.first_only { 0 } else { stripes.turn };
            stripes.turn = (stripes.turn + 1) % self.connections;
            let len = rest.min(STRIPE_BYTES);
            let sent = if stripes.sending[connection].is_free() {
                self.send_stripe((peer, connection), (head, body), taken, len)?
            } else {
                0
            };
            taken += sent;
            tried = if sent > 0 { 0 } else { tried + 1 };
        }
        match taken {
            0 if total > 0 => Err(ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let mut possible = self.wanted(interest);
        self.inner.wait(&mut possible, limit)?;
        for (peer, wanted) in interest.iter_mut().enumerate() {
            let (mut read, mut write) = (false, false);
            for connection in 0..self.connections {
                let can = possible[self.stream(peer, connection)];
                read |= can.read;
                // The next write or read returns the error again.
                let flushed = can.write && self.flush(peer, connection).is_ok();
                let stripes = &self.peers[peer];
                let may_take = connection == 0 || !stripes.first_only;
                write |=
                    can.write && may_take && (!flushed || stripes.sending[connection].is_free());
            }
            wanted.read &= read;
            wanted.write &= write;
        }
        Ok(())
    }

    fn finish(&mut self, peer: usize) {
        self.peers[peer].finishing = true;
        for connection in 0..self.connections {
            // Bytes that do not fit are sent in the next wait.
            let _later = self.flush(peer, connection);
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }

    fn unanswered(&self) -> Vec<usize> {
        let streams = self.inner.unanswered().into_iter();
        let mut peers: Vec<usize> = streams.map(|stream| stream / self.connections).collect();
        peers.dedup();
        peers
    }

    fn release(&mut self, peer: usize) -> Option<PeerStream> {
        let streams = (0..self.connections).map(|connection| self.stream(peer, connection));
        let streams: Vec<usize> = streams.collect();
        let inner = &mut self.inner;
        let released = streams.into_iter().map(|stream| inner.release(stream));
        let released: Option<Vec<PeerStream>> = released.collect();
        let connections = released?.into_iter().flat_map(|stream| stream.connections);
        let fresh = Stripes::new(self.connections);
        Some(PeerStream {
            connections: connections.collect(),
            stripes: Some(std::mem::replace(&mut self.peers[peer], fresh)),
            is_set_up: true,
        })
    }
}

impl Drop for Striped {
    fn drop(&mut self) {
        let end = ronde_clock::deadline(LAST_WORDS);
        let mut nothing = vec![Interest::default(); self.peers.len()];
        let unsent = |stripes: &Stripes| stripes.sending.iter().any(|s| !s.is_free());
        while self.peers.iter().any(unsent) && !ronde_clock::left(end).is_zero() {
            let before: usize = self.pending();
            let waited = self.wait(&mut nothing, Some(ronde_clock::left(end)));
            if waited.is_err() || self.pending() == before {
                return;
            }
        }
    }
}

impl Striped {
    /// Returns the bytes that are still to be sent.
    fn pending(&self) -> usize {
        let sending = self.peers.iter().flat_map(|stripes| &stripes.sending);
        sending.map(|s| s.pending.len() - s.at).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

    use super::*;
    use crate::transport::tcp::{self, Tcp};

    const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

    /// Returns a member with two connections to its peer 1, and the bare other ends.
    fn with_bare_ends() -> (Striped, [TcpStream; 2]) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let pair = || {
            let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            tcp::set_up(&dialled).unwrap();
            (Some(dialled), listener.accept().unwrap().0)
        };
        let [(one, first), (other, second)] = [pair(), pair()];
        let tcp = Tcp::new(vec![None, None, one, other]).unwrap();
        (
            Striped::new(Box::new(tcp), 2, vec![None, None]),
            [first, second],
        )
    }

    /// Reads until the result is not `WouldBlock`.
    fn read(striped: &mut Striped, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match striped.read(1, into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            let mut interest = [Interest::default(); 2];
            interest[1].read = true;
            striped.wait(&mut interest, LIMIT).unwrap();
            assert!(interest[1].read, "nothing received");
        }
    }

    fn stripe(number: u64, bytes: &[u8]) -> Vec<u8> {
        let header = [
            number.to_le_bytes().to_vec(),
            (bytes.len() as u32).to_le_bytes().to_vec(),
        ];
        [header.concat(), bytes.to_vec()].concat()
    }

    #[test]
    fn stripes_are_read_in_their_order_and_a_lost_connection_is_a_lost_stream() {
        use std::io::Write;
        let (mut striped, [mut first, mut second]) = with_bare_ends();
        second.write_all(&stripe(1, b"late")).unwrap();
        first.write_all(&stripe(0, b"early, ")).unwrap();
        let mut got = [0; 11];
        let mut count = 0;
        while count < got.len() {
            count += read(&mut striped, &mut got[count..]).unwrap();
        }
        assert_eq!(&got, b"early, late");
        second.shutdown(Shutdown::Write).unwrap();
        let error = read(&mut striped, &mut got).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn impossible_stripes_are_refused() {
        use std::io::Write;
        let too_long = [1_u64.to_le_bytes().to_vec(), vec![0xff; 4]].concat();
        for bytes in [too_long, stripe(0, b"")] {
            let (mut striped, [mut first, _second]) = with_bare_ends();
            first.write_all(&bytes).unwrap();
            let error = read(&mut striped, &mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
    }
}
