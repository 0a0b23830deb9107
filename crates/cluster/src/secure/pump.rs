//! [`pump`]: the life of one connection after its handshake: lines in, lines out.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_identity::explain;
use ronde_identity::rustls::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::clock;

/// Bytes that wait for a peer at most; one that is slower is given up.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How long the last words may take to leave.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// One look at the socket; nothing depends on it.
const TURN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What waits to be sent on one connection, from any thread.
pub(crate) struct Outbox {
    state: Mutex<Waiting>,
    wake: UnixStream,
    woken: UnixStream,
}

#[derive(Default)]
struct Waiting {
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

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one message; false when the connection is given up.
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

    /// Sends what waits, then ends the connection.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.notify();
    }

    fn notify(&self) {
        // A full pipe wakes as well as a new byte.
        let _ = (&self.wake).write(&[1]);
    }

    fn take(&self) -> (Vec<u8>, bool) {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(n) if n > 0) {}
        let mut state = self.lock();
        (std::mem::take(&mut state.bytes), state.closed)
    }
}

/// Why a connection is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// This side closed it.
    Here,
    /// The peer did, or the network.
    There(String),
    /// The peer sent what nobody should, or whoever takes the lines does not want more.
    Broken(String),
}

/// Carries lines both ways until one side closes. `deliver` takes each line; an error ends the
/// connection. `held`: what was read with the handshake and the first line.
pub(crate) fn pump(
    tls: &mut Connection,
    stream: &TcpStream,
    outbox: &Outbox,
    mut held: Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Pumped {
    if let Err(error) = stream.set_nonblocking(true) {
        return Pumped::There(error.to_string());
    }
    tls.set_buffer_limit(None);
    // What came with the handshake.
    if let Err(problem) = read(tls, &mut held) {
        return Pumped::There(problem);
    }
    let end = loop {
        if let Err(problem) = cut(&mut held, deliver) {
            break Pumped::Broken(problem);
        }
        let (bytes, closed) = outbox.take();
        if !bytes.is_empty() && tls.writer().write_all(&bytes).is_err() {
            break Pumped::Here;
        }
        if let Err(error) = flush(tls, stream) {
            break Pumped::There(error.to_string());
        }
        if closed {
            break Pumped::Here;
        }
        wait(tls.wants_write(), stream, outbox);
        match fill(tls, stream, &mut held) {
            Ok(true) => {}
            Ok(false) => break Pumped::There("the other side closed it".to_owned()),
            Err(problem) => break Pumped::There(problem),
        }
    };
    outbox.close();
    // What arrived before the end still counts.
    if matches!(end, Pumped::There(_)) {
        let _ = cut(&mut held, deliver);
    }
    last_words(tls, stream);
    end
}

/// Hands on all complete lines.
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
    // An error is a signal: the caller looks at everything anyway.
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

/// Reads what is there; false at the end of the stream.
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

/// Takes what was decrypted; false when the peer will send no more.
fn read(tls: &mut Connection, held: &mut Vec<u8>) -> Result<bool, String> {
    let state = tls.process_new_packets().map_err(|error| explain(&error))?;
    let start = held.len();
    held.resize(start + state.plaintext_bytes_to_read(), 0);
    let read = tls.reader().read_exact(&mut held[start..]);
    read.map_err(|error| error.to_string())?;
    Ok(!state.peer_has_closed())
}

fn last_words(tls: &mut Connection, stream: &TcpStream) {
    tls.send_close_notify();
    let deadline = clock::now() + LAST_WORDS_MAX;
    while tls.wants_write() && clock::now() < deadline && flush(tls, stream).is_ok() {
        clock::pause(Duration::from_millis(1));
    }
    let _ = stream.shutdown(Shutdown::Both);
}
