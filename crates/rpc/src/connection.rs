//! [`RpcConnection`]: one connection with the frames that wait to be written. Any thread may write; one thread reads.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use ronde_peer_memory::{LendingMark, LendingOffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frame::{ADDRESS_BYTES, FrameBody, HEAD_BYTES_MAX};
use crate::stream::RpcStream;

/// The bytes of values from which they are lent: to write shorter ones takes as long as to read them.
const LENT_BYTES_MIN: usize = 64 << 10;
/// Short frames are written together up to this many bytes.
const TOGETHER_BYTES: usize = 64 << 10;
/// Values of up to this many bytes are copied beside their header, which saves a second buffer.
const COPIED_BYTES: usize = 4 << 10;
/// How often a full socket is tried again before a thread waits for it.
const YIELDS: u32 = 256;
/// How often, and how long each time, a thread that calls or answers then waits for a full socket.
const WAITS: u32 = 8;
const FULL_SOCKET: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000,
};

/// A connection whose frames are written by the threads that produce them.
pub(crate) struct RpcConnection {
    pub(crate) number: u64,
    pub(crate) stream: RpcStream,
    queue: Mutex<VecDeque<Arc<FrameBody>>>,
    queued_bytes: AtomicUsize,
    writer: Mutex<FrameWriter>,
    /// The socket takes nothing more: the thread that polls continues.
    pub(crate) is_blocked: AtomicBool,
    /// Frames may be written: the first messages have been exchanged.
    is_open: AtomicBool,
    is_closed: AtomicBool,
    /// Ends before the lent values, also when the connection is dropped.
    mark: Option<LendingMark>,
    /// The peer can read this process's memory.
    may_lend: AtomicBool,
    /// Frames whose values the peer has not read yet, in the order of their transmission.
    lent: Mutex<VecDeque<Arc<FrameBody>>>,
    /// Frames with lent values that this side has read and the peer does not know about.
    to_return: AtomicU64,
}

#[derive(Default)]
struct FrameWriter {
    /// Headers, heads and short values that are not written yet: `bytes[at..]`.
    bytes: Vec<u8>,
    at: usize,
    /// The frame whose values follow, and how many of their bytes were written.
    values: Option<(Arc<FrameBody>, usize)>,
    sequence: u32,
}

impl RpcConnection {
    pub(crate) fn new(number: u64, stream: RpcStream) -> Self {
        let mark = stream.is_plain_on_host().then(LendingMark::new).flatten();
        Self {
            mark,
            may_lend: AtomicBool::new(false),
            lent: Mutex::default(),
            to_return: AtomicU64::new(0),
            number,
            stream,
            queue: Mutex::default(),
            queued_bytes: AtomicUsize::new(0),
            writer: Mutex::default(),
            is_blocked: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Queues bytes that are not a frame, before any frame.
    pub(crate) fn queue_raw(&self, bytes: &[u8]) {
        self.writer().bytes.extend_from_slice(bytes);
    }

    /// Allows frames.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Queues a frame. [`RpcConnection::write`] writes it.
    pub(crate) fn queue(&self, frame: Arc<FrameBody>) {
        self.queued_bytes.fetch_add(frame.bytes(), Ordering::SeqCst);
        self.frames().push_back(frame);
    }

    /// Returns how the peer may read lent values, if it runs on this host.
    pub(crate) fn offer(&self) -> Option<LendingOffer> {
        self.mark.as_ref().map(LendingMark::offer)
    }

    /// The peer has read `count` further frames with lent values. Returns whether that many were lent.
    pub(crate) fn returned(&self, count: u64) -> bool {
        self.may_lend.store(self.mark.is_some(), Ordering::SeqCst);
        let mut lent = self.lent_frames();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > lent.len() {
            return false;
        }
        let frames: Vec<Arc<FrameBody>> = lent.drain(..count).collect();
        drop(lent);
        let bytes: usize = frames.iter().map(|frame| frame.bytes()).sum();
        self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
        true
    }

    /// This side has read `count` further frames with lent values. The next frame notifies the peer.
    pub(crate) fn to_return(&self, count: u64) {
        self.to_return.fetch_add(count, Ordering::SeqCst);
    }

    /// Queues the pending notice about lent values; returns whether there is something.
    pub(crate) fn queue_returned(&self) -> bool {
        let count = self.to_return.swap(0, Ordering::SeqCst);
        if count > 0 {
            self.queue(Arc::new(FrameBody::returned(count)));
        }
        count > 0
    }

    /// Returns the bytes of frames that no write has begun, and of those whose lent values the peer has not read.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::SeqCst)
    }

    /// Closes the socket, which the reading thread detects.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.stream.shut_down();
        self.frames().clear();
        if let Some(mark) = &self.mark {
            mark.end();
        }
        self.lent_frames().clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Returns whether everything was written, and lent values were read.
    pub(crate) fn is_idle(&self) -> bool {
        let writer = self.writer();
        let is_written = writer.at == writer.bytes.len() && writer.values.is_none();
        let is_read = self.lent_frames().is_empty();
        is_written && is_read && self.frames().is_empty() && !self.stream.has_unsent()
    }

    /// Writes queued frames on the polling thread, which continues when the socket is full.
    pub(crate) fn write(&self) {
        let is_full = self.write_until_full();
        if is_full {
            self.is_blocked.store(true, Ordering::SeqCst);
        }
    }

    /// Writes queued frames on another thread; returns whether the polling thread must continue. Waits shortly while the
    /// socket is full: to pass long values from thread to thread would take longer than to write them.
    pub(crate) fn write_patiently(&self) -> bool {
        for _ in 0..YIELDS {
            if !self.write_until_full() {
                return false;
            }
            thread::yield_now();
        }
        for _ in 0..WAITS {
            let mut fds = [PollFd::from_borrowed_fd(self.stream.fd(), PollFlags::OUT)];
            let is_writable = poll(&mut fds, Some(&FULL_SOCKET)).is_ok_and(|ready| ready > 0);
            if is_writable && !self.write_until_full() {
                return false;
            }
        }
        self.is_blocked.store(true, Ordering::SeqCst);
        true
    }

    /// Writes queued frames until none is left or the socket is full; returns whether it is full. A thread that finds
    /// another one writing leaves its frames to that one.
    fn write_until_full(&self) -> bool {
        loop {
            let mut writer = match self.writer.try_lock() {
                Ok(writer) => writer,
                Err(TryLockError::WouldBlock) => return false,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            };
            match self.write_with(&mut writer) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    // The reading thread finds the end of the stream and its reason.
                    self.stream.shut_down();
                    return false;
                }
            }
            self.is_blocked.store(false, Ordering::SeqCst);
            drop(writer);
            // Another thread may have queued a frame and found this one writing.
            if !self.is_open.load(Ordering::SeqCst) || self.frames().is_empty() {
                return false;
            }
        }
    }

    fn write_with(&self, writer: &mut FrameWriter) -> io::Result<()> {
        loop {
            self.stream.flush()?;
            if self.is_open.load(Ordering::SeqCst) {
                self.fill(writer);
            }
            let rest = &writer.bytes[writer.at..];
            let values = match &writer.values {
                Some((frame, at)) => &frame.values.as_bytes()[*at..],
                None => &[],
            };
            if rest.is_empty() && values.is_empty() {
                writer.bytes.clear();
                writer.at = 0;
                return Ok(());
            }
            let total = rest.len() + values.len();
            let from_rest = rest.len();
            let count = match self
                .stream
                .write(&mut [IoSlice::new(rest), IoSlice::new(values)])
            {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome?,
            };
            writer.at += count.min(from_rest);
            if let Some((_, at)) = &mut writer.values {
                *at += count.saturating_sub(from_rest);
            }
            if count == total {
                writer.values = None;
            }
        }
    }

    /// Takes queued frames up to the next one with long values.
    fn fill(&self, writer: &mut FrameWriter) {
        if writer.values.is_some() || writer.at < writer.bytes.len() {
            return;
        }
        writer.bytes.clear();
        writer.at = 0;
        let mut frames = self.frames();
        if !frames.is_empty() {
            let count = self.to_return.swap(0, Ordering::SeqCst);
            if count > 0 {
                let frame = FrameBody::returned(count);
                writer.bytes.extend(frame.header(writer.sequence).encode());
                writer.sequence = writer.sequence.wrapping_add(1);
            }
        }
        while writer.bytes.len() < TOGETHER_BYTES && writer.values.is_none() {
            let Some(frame) = frames.pop_front() else {
                return;
            };
            let sequence = writer.sequence;
            writer.sequence = sequence.wrapping_add(1);
            if self.lends(&frame) {
                let (header, address) = frame.lent_header(sequence);
                writer.bytes.extend(header.encode());
                writer.bytes.extend_from_slice(&frame.head);
                writer.bytes.extend(address);
                self.lent_frames().push_back(frame);
                continue;
            }
            self.queued_bytes.fetch_sub(frame.bytes(), Ordering::SeqCst);
            writer.bytes.extend(frame.header(sequence).encode());
            writer.bytes.extend_from_slice(&frame.head);
            let values = frame.values.as_bytes();
            if values.len() <= COPIED_BYTES {
                writer.bytes.extend_from_slice(values);
            } else {
                writer.values = Some((frame, 0));
            }
        }
    }

    /// Returns whether the peer reads the values of a frame from this process's memory.
    fn lends(&self, frame: &FrameBody) -> bool {
        self.may_lend.load(Ordering::SeqCst)
            && frame.values.as_bytes().len() >= LENT_BYTES_MIN
            && frame.head.len() + ADDRESS_BYTES <= HEAD_BYTES_MAX
    }

    fn lent_frames(&self) -> MutexGuard<'_, VecDeque<Arc<FrameBody>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<Arc<FrameBody>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, FrameWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
