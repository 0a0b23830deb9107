//! [`pump`]: transfers lines over one connection after its handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_identity::explain;
use ronde_identity::rustls::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// Maximum number of queued bytes for a peer; a slower peer is disconnected.
const WAITING_BYTES_MAX: usize = 64 << 20;
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

    fn take(&self) -> (Vec<u8>, bool) {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(n) if n > 0) {}
        let mut state = self.lock();
        (std::mem::take(&mut state.bytes), state.closed)
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
/// error ends the connection. `held` contains bytes read with the handshake and the first line.
pub(crate) fn pump(
    tls: &mut Connection,
    stream: &TcpStream,
    outbox: &Outbox,
    mut held: Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> ConnectionEnd {
    if let Err(error) = stream.set_nonblocking(true) {
        return ConnectionEnd::Peer(error.to_string());
    }
    tls.set_buffer_limit(None);
    // Data received with the handshake.
    if let Err(problem) = read(tls, &mut held) {
        return ConnectionEnd::Peer(problem);
    }
    let end = loop {
        if let Err(problem) = cut(&mut held, deliver) {
            break ConnectionEnd::Invalid(problem);
        }
        let (bytes, closed) = outbox.take();
        if !bytes.is_empty() && tls.writer().write_all(&bytes).is_err() {
            break ConnectionEnd::Local;
        }
        if let Err(error) = flush(tls, stream) {
            break ConnectionEnd::Peer(error.to_string());
        }
        if closed {
            break ConnectionEnd::Local;
        }
        wait(tls.wants_write(), stream, outbox);
        match fill(tls, stream, &mut held) {
            Ok(true) => {}
            Ok(false) => break ConnectionEnd::Peer("closed by the peer".to_owned()),
            Err(problem) => break ConnectionEnd::Peer(problem),
        }
    };
    outbox.close();
    // Lines received before the end are still delivered.
    if matches!(end, ConnectionEnd::Peer(_)) {
        let _ = cut(&mut held, deliver);
    }
    send_remaining(tls, stream);
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

fn wait(wants_write: bool, stream: &TcpStream, outbox: &Outbox) {
    let interest = match wants_write {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut fds = [
        PollFd::new(stream, interest),
        PollFd::new(&outbox.woken, PollFlags::IN),
    ];
    // An error is an interrupting signal: the caller checks everything anyway.
    let _ = poll(&mut fds, Some(&TURN));
}

fn flush(tls: &mut Connection, mut stream: &TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads available data; returns false at the end of the stream.
fn fill(tls: &mut Connection, mut stream: &TcpStream, held: &mut Vec<u8>) -> Result<bool, String> {
    let open = match tls.read_tls(&mut stream) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            true
        }
        Err(error) => return Err(error.to_string()),
    };
    Ok(read(tls, held)? && open)
}

/// Takes decrypted data; returns false if the peer will send no more.
fn read(tls: &mut Connection, held: &mut Vec<u8>) -> Result<bool, String> {
    let state = tls.process_new_packets().map_err(|error| explain(&error))?;
    let start = held.len();
    held.resize(start + state.plaintext_bytes_to_read(), 0);
    let read = tls.reader().read_exact(&mut held[start..]);
    read.map_err(|error| error.to_string())?;
    Ok(!state.peer_has_closed())
}

fn send_remaining(tls: &mut Connection, stream: &TcpStream) {
    tls.send_close_notify();
    let deadline = ronde_clock::now() + FLUSH_MAX;
    while tls.wants_write() && ronde_clock::now() < deadline && flush(tls, stream).is_ok() {
        ronde_clock::pause(Duration::from_millis(1));
    }
    let _ = stream.shutdown(Shutdown::Both);
}
