//! [`Poller`]: one wait over many sockets. Its cost depends on the number of those that are ready, not of all: a large group
//! waits often, mostly for one peer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::{Interest, Waker};

/// Maximum number of sockets that one wait reports; the next wait reports the others.
const EVENTS_MAX: usize = 64;
/// The waker, among the numbers of peers.
const WAKER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct EventfdWaker(OwnedFd);

impl Waker for EventfdWaker {
    fn wake(&self) {
        // It can only fail when it is signalled already.
        let _rung = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Waits for sockets, by peer, and for a waker.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    waker: Arc<EventfdWaker>,
    /// The events that the system reports, by peer; empty if it reports none.
    reported: Vec<EventFlags>,
}

impl Poller {
    /// Creates a poller for a number of peers.
    pub(super) fn new(size: usize) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let rings = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &rings, EventData::new_u64(WAKER), EventFlags::IN)?;
        Ok(Self {
            epoll,
            waker: Arc::new(EventfdWaker(rings)),
            reported: vec![EventFlags::empty(); size],
        })
    }

    pub(super) fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }

    /// Sets which events of a peer's socket the next waits report.
    pub(super) fn set(
        &mut self,
        peer: usize,
        socket: BorrowedFd<'_>,
        events: Interest,
    ) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, events.read);
        flags.set(EventFlags::OUT, events.write);
        let before = std::mem::replace(&mut self.reported[peer], flags);
        if before == flags {
            return Ok(());
        }
        let data = EventData::new_u64(peer as u64);
        if flags.is_empty() {
            epoll::delete(&self.epoll, socket)?;
        } else if before.is_empty() {
            epoll::add(&self.epoll, socket, data, flags)?;
        } else {
            epoll::modify(&self.epoll, socket, data, flags)?;
        }
        Ok(())
    }

    /// Waits for the waker or any socket, and sets `possible` by peer to the events that are possible, where a lost connection
    /// counts as readable and writable.
    pub(super) fn wait(
        &self,
        possible: &mut [Interest],
        limit: Option<Duration>,
    ) -> io::Result<()> {
        possible.fill(Interest::default());
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        });
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let (events, _) = match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            Ok(events) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let lost = EventFlags::ERR | EventFlags::HUP;
        for event in events {
            let (flags, data) = (event.flags, event.data);
            match data.u64() {
                WAKER => {
                    let mut rings = [0; 8];
                    let _silenced = rustix::io::read(&self.waker.0, &mut rings);
                }
                peer => {
                    possible[peer as usize] = Interest {
                        read: flags.intersects(EventFlags::IN | lost),
                        write: flags.intersects(EventFlags::OUT | lost),
                    };
                }
            }
        }
        Ok(())
    }
}
