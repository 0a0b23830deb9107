//! [`pump`]: transfers lines over one connection after its handshake.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_wire::{TlsStream, WireError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// Maximum number of queued bytes for a peer; a slower peer is disconnected.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 32 << 10;
/// Time limit for sending the last messages.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Polling interval of the socket; nothing depends on it.
const TURN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The queue of messages to send on one connection, filled by any thread.
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    wake: UnixStream,
    woken: UnixStream,
}

#[derive(Default)]
struct OutboxState {
    bytes: Vec<u8>,
    closed: bool,
}

impl Outbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Self {
            state: Mutex::default(),
            wake,
            woken,
        })
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues one message; returns false if the connection has ended.
    pub(crate) fn send(&self, message: &impl Serialize) -> bool {
        let Ok(mut line) = serde_json::to_vec(message) else {
            return false;
        };
        line.push(b'\n');
        let taken = {
            let mut state = self.lock();
            state.closed |= state.bytes.len() + line.len() > WAITING_BYTES_MAX;
            if !state.closed {
                state.bytes.extend_from_slice(&line);
            }
            !state.closed
        };
        self.notify();
        taken
    }

    /// Sends all queued messages, then closes the connection.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.notify();
    }

    fn notify(&self) {
        // If the pipe is full, the thread is woken anyway.
        let _ = (&self.wake).write(&[1]);
    }

    /// Appends the queued messages to `unsent`; returns whether they are the last ones.
    fn take(&self, unsent: &mut Vec<u8>) -> bool {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(n) if n > 0) {}
        let mut state = self.lock();
        match unsent.is_empty() {
            true => *unsent = std::mem::take(&mut state.bytes),
            false => unsent.append(&mut state.bytes),
        }
        state.closed
    }
}

/// Why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// This side closed it.
    Local,
    /// The peer closed it, or the network failed.
    Peer(String),
    /// The peer sent invalid data, or the receiver refused a line.
    Invalid(String),
}

/// Transfers lines in both directions until one side closes. `deliver` receives each line; its
/// error ends the connection. `held` contains bytes received after the first line.
pub(crate) fn pump(
    stream: &mut TlsStream,
    outbox: &Outbox,
    mut held: Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> ConnectionEnd {
    if let Err(error) = stream.socket().set_nonblocking(true) {
        return ConnectionEnd::Peer(error.to_string());
    }
    stream.read_by_record(false);
    let mut unsent = UnsentBytes::default();
    let end = loop {
        let received = receive(stream, &mut held);
        if let Err(problem) = cut(&mut held, deliver) {
            break ConnectionEnd::Invalid(problem);
        }
        match received {
            Ok(()) => {}
            Err(WireError::Closed) => break ConnectionEnd::Peer("closed by the peer".to_owned()),
            Err(error) => break ConnectionEnd::Peer(error.to_string()),
        }
        let is_closed = outbox.take(&mut unsent.bytes);
        if let Err(error) = unsent.send(stream) {
            break ConnectionEnd::Peer(error.to_string());
        }
        if is_closed {
            break ConnectionEnd::Local;
        }
        wait(stream, outbox);
    };
    outbox.close();
    unsent.send_last(stream);
    end
}

/// Delivers all complete lines.
fn cut(
    held: &mut Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut from = 0;
    while let Some(length) = held[from..].iter().position(|byte| *byte == b'\n') {
        deliver(&held[from..from + length])?;
        from += length + 1;
    }
    held.drain(..from);
    if held.len() > super::LINE_BYTES_MAX {
        return Err(format!(
            "a line longer than {} bytes",
            super::LINE_BYTES_MAX
        ));
    }
    Ok(())
}

/// Waits until the socket is ready, or a message is queued.
fn wait(stream: &TlsStream, outbox: &Outbox) {
    let interest = match stream.tls().has_unsent() {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut fds = [
        PollFd::new(stream.socket(), interest),
        PollFd::new(&outbox.woken, PollFlags::IN),
    ];
    let limit = match stream.tls().has_more() {
        true => Timespec::default(),
        false => TURN,
    };
    // An error is an interrupting signal: the caller checks everything anyway.
    let _ = poll(&mut fds, Some(&limit));
}

/// Reads once.
fn receive(stream: &mut TlsStream, held: &mut Vec<u8>) -> Result<(), WireError> {
    let start = held.len();
    held.resize(start + READ_BYTES, 0);
    let read = stream.read(&mut held[start..]);
    held.truncate(start + read.as_ref().copied().unwrap_or_default());
    match read {
        Ok(0) => Err(WireError::Closed),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Bytes that the connection has not taken yet: `bytes[at..]`.
#[derive(Default)]
struct UnsentBytes {
    bytes: Vec<u8>,
    at: usize,
}

impl UnsentBytes {
    /// Sends as much as the socket takes.
    fn send(&mut self, stream: &mut TlsStream) -> std::io::Result<()> {
        while self.at < self.bytes.len() {
            match stream.write(&mut [IoSlice::new(&self.bytes[self.at..])]) {
                Ok(count) => self.at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        (self.bytes, self.at) = (Vec::new(), 0);
        match stream.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends the rest and the end of the session, and closes the connection.
    fn send_last(&mut self, stream: &mut TlsStream) {
        let deadline = ronde_clock::deadline(FLUSH_MAX);
        loop {
            let sent = self.send(stream);
            if self.bytes.is_empty() {
                stream.finish();
            }
            let is_over = self.bytes.is_empty() && !stream.tls().has_unsent();
            if is_over || sent.is_err() || ronde_clock::left(deadline).is_zero() {
                break;
            }
            ronde_clock::pause(Duration::from_millis(1));
        }
        let _ = stream.socket().shutdown(Shutdown::Both);
    }
}
