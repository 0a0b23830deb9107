//! [`Poller`]: one wait over many sockets. In a large group, its cost depends on the number of those that are ready, not of all:
//! such a group waits often, mostly for one peer. For a few sockets, naming all of them in each wait is faster.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::{Interest, Waker};

/// Number of peers up to which each wait names all sockets: 10 to 50 % faster for 2 to 4 ranks on two cores, slower for 16.
const POLL_PEERS_MAX: usize = 8;
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
    waker: Arc<EventfdWaker>,
    /// Set for a large group.
    epoll: Option<Epoll>,
}

/// The sockets that the system is to report.
#[derive(Debug)]
struct Epoll {
    descriptor: OwnedFd,
    /// The events that it reports, by peer; empty if it reports none.
    reported: Vec<EventFlags>,
}

/// A peer, its socket and the events of interest.
pub(super) type PolledSocket<'a> = (usize, BorrowedFd<'a>, Interest);

impl Poller {
    /// Creates a poller for a number of peers.
    pub(super) fn new(size: usize) -> io::Result<Self> {
        let rings = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = (size > POLL_PEERS_MAX).then(|| Epoll::new(&rings, size));
        Ok(Self {
            waker: Arc::new(EventfdWaker(rings)),
            epoll: epoll.transpose()?,
        })
    }

    pub(super) fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }

    /// Ends the reports of a socket that is taken out.
    pub(super) fn forget(&mut self, peer: usize, socket: BorrowedFd<'_>) -> io::Result<()> {
        match &mut self.epoll {
            Some(epoll) => epoll.set((peer, socket, Interest::default())),
            None => Ok(()),
        }
    }

    /// Waits for the waker or any event of interest, and sets `possible` by peer to the events that are possible, where a lost
    /// connection counts as readable and writable.
    pub(super) fn wait<'a>(
        &mut self,
        sockets: impl Iterator<Item = PolledSocket<'a>>,
        possible: &mut [Interest],
        limit: Option<Duration>,
    ) -> io::Result<()> {
        possible.fill(Interest::default());
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        });
        let is_woken = match &mut self.epoll {
            Some(epoll) => {
                for socket in sockets {
                    epoll.set(socket)?;
                }
                epoll.wait(possible, limit.as_ref())?
            }
            None => self.poll(sockets, possible, limit.as_ref())?,
        };
        if is_woken {
            let mut rings = [0; 8];
            let _silenced = rustix::io::read(&self.waker.0, &mut rings);
        }
        Ok(())
    }

    /// Waits as [`Poller::wait`] does, at a cost for each socket; returns whether the waker was used.
    fn poll<'a>(
        &self,
        sockets: impl Iterator<Item = PolledSocket<'a>>,
        possible: &mut [Interest],
        limit: Option<&Timespec>,
    ) -> io::Result<bool> {
        let mut polled = vec![PollFd::new(&self.waker.0, PollFlags::IN)];
        let mut peers = Vec::with_capacity(possible.len());
        for (peer, socket, events) in sockets {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, events.read);
            flags.set(PollFlags::OUT, events.write);
            if !flags.is_empty() {
                polled.push(PollFd::from_borrowed_fd(socket, flags));
                peers.push(peer);
            }
        }
        match poll(&mut polled, limit) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let lost = PollFlags::ERR | PollFlags::HUP;
        for (peer, polled) in peers.into_iter().zip(&polled[1..]) {
            possible[peer] = Interest {
                read: polled.revents().intersects(PollFlags::IN | lost),
                write: polled.revents().intersects(PollFlags::OUT | lost),
            };
        }
        Ok(!polled[0].revents().is_empty())
    }
}

impl Epoll {
    fn new(rings: &OwnedFd, size: usize) -> io::Result<Self> {
        let descriptor = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = EventData::new_u64(WAKER);
        epoll::add(&descriptor, rings, waker, EventFlags::IN)?;
        Ok(Self {
            descriptor,
            reported: vec![EventFlags::empty(); size],
        })
    }

    /// Sets which events of a socket are reported.
    fn set(&mut self, (peer, socket, events): PolledSocket<'_>) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, events.read);
        flags.set(EventFlags::OUT, events.write);
        let before = std::mem::replace(&mut self.reported[peer], flags);
        if before == flags {
            return Ok(());
        }
        let data = EventData::new_u64(peer as u64);
        if flags.is_empty() {
            epoll::delete(&self.descriptor, socket)?;
        } else if before.is_empty() {
            epoll::add(&self.descriptor, socket, data, flags)?;
        } else {
            epoll::modify(&self.descriptor, socket, data, flags)?;
        }
        Ok(())
    }

    /// Waits as [`Poller::wait`] does; returns whether the waker was used.
    fn wait(&self, possible: &mut [Interest], limit: Option<&Timespec>) -> io::Result<bool> {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let (events, _) = match epoll::wait(&self.descriptor, &mut events[..], limit) {
            Ok(events) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let lost = EventFlags::ERR | EventFlags::HUP;
        let mut is_woken = false;
        for event in events {
            let (flags, data) = (event.flags, event.data);
            match data.u64() {
                WAKER => is_woken = true,
                peer => {
                    possible[peer as usize] = Interest {
                        read: flags.intersects(EventFlags::IN | lost),
                        write: flags.intersects(EventFlags::OUT | lost),
                    };
                }
            }
        }
        Ok(is_woken)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const READ: Interest = Interest {
        read: true,
        write: false,
    };
    const BOTH: Interest = Interest {
        read: true,
        write: true,
    };

    /// Waits for the events of one peer's socket and returns the possible ones of all peers.
    fn wait(poller: &mut Poller, socket: &UnixStream, events: Interest) -> Vec<Interest> {
        let mut possible = vec![BOTH; 20];
        let sockets = [(17, socket.as_fd(), events)];
        let limit = Some(Duration::ZERO);
        poller
            .wait(sockets.into_iter(), &mut possible, limit)
            .unwrap();
        let others = possible.iter().enumerate().filter(|(peer, _)| *peer != 17);
        for (_, other) in others {
            assert_eq!(*other, Interest::default());
        }
        possible
    }

    #[test]
    fn both_ways_to_wait_report_the_same() {
        for size in [1, 20] {
            let mut poller = Poller::new(size).unwrap();
            assert_eq!(poller.epoll.is_some(), size > POLL_PEERS_MAX);
            let (near, mut far) = UnixStream::pair().unwrap();
            let nothing = Interest::default();
            assert_eq!(wait(&mut poller, &near, READ)[17], nothing);
            let write = Interest {
                read: false,
                ..BOTH
            };
            assert_eq!(wait(&mut poller, &near, BOTH)[17], write);
            far.write_all(&[1]).unwrap();
            assert_eq!(wait(&mut poller, &near, READ)[17], READ);
            assert_eq!(wait(&mut poller, &near, BOTH)[17], BOTH);
            assert_eq!(wait(&mut poller, &near, nothing)[17], nothing);
            // A wait that was ended by the waker does not end the next one.
            poller.waker().wake();
            let mut possible = vec![BOTH; 20];
            for limit in [None, Some(Duration::ZERO)] {
                poller
                    .wait(std::iter::empty(), &mut possible, limit)
                    .unwrap();
                assert!(possible.iter().all(|possible| *possible == nothing));
            }
            drop(far);
            assert_eq!(wait(&mut poller, &near, READ)[17], BOTH);
            poller.forget(17, near.as_fd()).unwrap();
            poller
                .wait(std::iter::empty(), &mut possible, Some(Duration::ZERO))
                .unwrap();
            assert!(possible.iter().all(|possible| *possible == nothing));
        }
    }
}
