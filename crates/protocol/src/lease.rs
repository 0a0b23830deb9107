//! [`Lease`]: the right to lead. Terms only increase, and at most one coordinator leads at a time.
//!
//! The holder renews the lease by changing the record's version. Another coordinator may take it
//! when the version has not changed for the lease's length plus a quarter *on its own clock*, so
//! two clocks are never compared. The holder counts the length from the moment at which it *sent*
//! the change, which is earlier; so it stops before another coordinator can start. If the holder's
//! process is known to have ended, no wait is needed: the store executes only one of its last
//! change and its successor's first change.

use std::time::Duration;

use crate::journal::{JobRecord, StoreReply, StoreRequest};
use crate::membership::{CoordinatorId, Term};
use crate::time::Time;

/// The effect of a reply or of elapsed time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This coordinator leads from now on.
    Taken,
    /// The requested record was stored.
    Published,
    /// This coordinator no longer leads.
    Lost {
        /// The term that has ended.
        term: Term,
        /// The cause.
        cause: String,
    },
    /// Another coordinator leads.
    Other {
        /// The other coordinator's term.
        term: Term,
    },
}

#[derive(Debug, Clone)]
struct PendingRequest {
    id: u64,
    sent: Time,
    swap: Option<JobRecord>,
}

/// One coordinator's view of the record and of its own lease.
#[derive(Debug, Clone)]
pub struct Lease {
    me: CoordinatorId,
    length: Duration,
    timeout: Duration,
    record: JobRecord,
    /// When this version of the record was first read.
    seen: Option<Time>,
    /// The end of this coordinator's lease.
    until: Option<Time>,
    in_flight: Option<PendingRequest>,
    /// When the first swap with unknown outcome was sent.
    unknown: Option<Time>,
    next_id: u64,
    next_read: Time,
    /// A coordinator whose process has ended.
    ended: Option<CoordinatorId>,
}

impl Lease {
    /// Returns a lease that has not read the record yet.
    #[must_use]
    pub fn new(me: CoordinatorId, length: Duration, timeout: Duration) -> Self {
        Self {
            me,
            length,
            timeout,
            record: JobRecord::default(),
            seen: None,
            until: None,
            in_flight: None,
            unknown: None,
            next_id: 1,
            next_read: Time(0),
            ended: None,
        }
    }

    /// Notes that a coordinator's process has certainly ended. Its lease, if it has one, is free.
    pub fn ended(&mut self, coordinator: CoordinatorId) {
        if self.ended.replace(coordinator) != Some(coordinator) {
            self.next_read = Time(0);
        }
    }

    /// Returns the record as last read. It is up to date while this coordinator leads.
    #[must_use]
    pub fn record(&self) -> &JobRecord {
        &self.record
    }

    /// Returns whether this coordinator leads at `now`.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns whether a change is in flight; another one has to wait for it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns the effect of elapsed time and the next request, if one is due.
    pub fn tick(&mut self, now: Time) -> (Option<LeaseEvent>, Option<StoreRequest>) {
        let event = match self.until {
            Some(until) if now >= until => Some(self.lose("the lease was not renewed in time")),
            _ => None,
        };
        if let Some(flight) = &self.in_flight {
            if now < flight.sent.after(self.timeout) {
                return (event, None);
            }
            if flight.swap.is_some() {
                self.unknown.get_or_insert(flight.sent);
            }
            self.in_flight = None;
            return (event, Some(self.read(now)));
        }
        let request = match self.until {
            Some(until) if until.since(now) <= self.length - self.length / 3 => {
                let renewed = self.record.clone();
                Some(self.swap(now, renewed))
            }
            Some(_) => None,
            None if now >= self.next_read => Some(self.read(now)),
            None => None,
        };
        (event, request)
    }

    /// Returns the time at which [`Lease::tick`] is next due.
    #[must_use]
    pub fn wake(&self) -> Time {
        let timer = match (&self.in_flight, self.until) {
            (Some(flight), _) => flight.sent.after(self.timeout),
            (None, Some(until)) => Time(
                until
                    .0
                    .saturating_sub((self.length - self.length / 3).as_nanos() as u64),
            ),
            (None, None) => self.next_read,
        };
        self.until.map_or(timer, |until| timer.min(until))
    }

    /// Requests a changed record. Only valid while this coordinator leads and no change is in
    /// flight.
    pub fn propose(&mut self, now: Time, change: impl FnOnce(&mut JobRecord)) -> StoreRequest {
        let mut record = self.record.clone();
        change(&mut record);
        self.swap(now, record)
    }

    /// Processes an answer of the store.
    pub fn reply(
        &mut self,
        now: Time,
        reply: StoreReply,
    ) -> (Vec<LeaseEvent>, Option<StoreRequest>) {
        let Some(flight) = self.in_flight.take_if(|flight| flight.id == reply.id) else {
            return (Vec::new(), None);
        };
        let done = flight.swap.as_ref() == Some(&reply.record);
        let advanced = reply.record.version > self.record.version;
        if self.seen.is_none() || advanced {
            self.seen = Some(now);
        }
        self.record = reply.record;
        // A change that was not executed can still be executed later only if nothing else was.
        let unknown = if advanced { self.unknown.take() } else { None };
        let led = self.until.is_some();
        if self.record.holder != Some(self.me) {
            let lost = led.then(|| self.lose("another coordinator has taken the lease"));
            let (more, request) = self.stand_by(now);
            return (lost.into_iter().chain(more).collect(), request);
        }
        // The lease counts from the moment at which the executed change was sent.
        let sent = if done { Some(flight.sent) } else { unknown };
        if let Some(sent) = sent {
            self.until = self.until.max(Some(sent.after(self.length)));
        }
        if !self.leads(now) {
            let lost = led.then(|| self.lose("the lease was not renewed in time"));
            let (more, request) = self.stand_by(now);
            return (lost.into_iter().chain(more).collect(), request);
        }
        let event = if led {
            LeaseEvent::Published
        } else {
            LeaseEvent::Taken
        };
        (vec![event], None)
    }

    /// Gives up the lease because a worker knows a higher term.
    pub fn deposed(&mut self) -> LeaseEvent {
        self.next_read = Time(0);
        self.lose("a worker knows a higher term")
    }

    fn lose(&mut self, cause: &str) -> LeaseEvent {
        self.until = None;
        LeaseEvent::Lost {
            term: self.record.term,
            cause: cause.to_owned(),
        }
    }

    /// Takes the lease if it is free; otherwise schedules another read.
    fn stand_by(&mut self, now: Time) -> (Vec<LeaseEvent>, Option<StoreRequest>) {
        let length = self.length + self.length / 4;
        let unchanged = self.seen.is_some_and(|seen| now.since(seen) >= length);
        let has_ended = self.ended.is_some() && self.record.holder == self.ended;
        if self.record.holder.is_none() || has_ended || unchanged {
            let mut record = self.record.clone();
            record.term.0 += 1;
            record.holder = Some(self.me);
            return (Vec::new(), Some(self.swap(now, record)));
        }
        self.next_read = now.after(self.length / 6);
        (
            vec![LeaseEvent::Other {
                term: self.record.term,
            }],
            None,
        )
    }

    fn read(&mut self, now: Time) -> StoreRequest {
        let id = self.sent(now, None);
        StoreRequest::Read { id }
    }

    fn swap(&mut self, now: Time, mut record: JobRecord) -> StoreRequest {
        record.version = self.record.version + 1;
        let id = self.sent(now, Some(record.clone()));
        StoreRequest::Swap { id, record }
    }

    fn sent(&mut self, now: Time, swap: Option<JobRecord>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight = Some(PendingRequest {
            id,
            sent: now,
            swap,
        });
        id
    }
}

#[cfg(test)]
mod tests;
