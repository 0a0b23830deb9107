//! [`Lease`]: who leads. Terms only grow; at most one coordinator leads at a time.
//!
//! The holder renews by changing the record's version. Somebody else may take the lease when the
//! version has not changed for the lease's length (and a quarter more) *on its own clock*, so no two
//! clocks are compared. The holder counts its own length from the moment it *sent* the change, which
//! is earlier; so it stops before another one can begin. When the holder's process is known to have ended
//! there is nothing to wait for: of its last change and the first one of its successor the store does one.

use std::time::Duration;

use crate::{CoordinatorId, Record, StoreReply, StoreRequest, Term, Time};

/// What became of a reply or of time passing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This coordinator leads from now on.
    Taken,
    /// The record that it asked for stands.
    Published,
    /// It leads no longer.
    Lost {
        /// The term that is over.
        term: Term,
        /// What took it away.
        cause: String,
    },
    /// Somebody else leads.
    Other {
        /// In this term.
        term: Term,
    },
}

#[derive(Debug, Clone)]
struct InFlight {
    id: u64,
    sent: Time,
    swap: Option<Record>,
}

/// One coordinator's view of the record and of its own right to lead.
#[derive(Debug, Clone)]
pub struct Lease {
    me: CoordinatorId,
    length: Duration,
    timeout: Duration,
    record: Record,
    /// When this version of the record was first seen.
    seen: Option<Time>,
    /// Leads until then.
    until: Option<Time>,
    in_flight: Option<InFlight>,
    /// When the first of the swaps was sent whose outcome is not known.
    unknown: Option<Time>,
    next_id: u64,
    next_read: Time,
    /// A coordinator whose process has ended.
    ended: Option<CoordinatorId>,
}

impl Lease {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(me: CoordinatorId, length: Duration, timeout: Duration) -> Self {
        Self {
            me,
            length,
            timeout,
            record: Record::default(),
            seen: None,
            until: None,
            in_flight: None,
            unknown: None,
            next_id: 1,
            next_read: Time(0),
            ended: None,
        }
    }

    /// A coordinator's process has ended, for certain. If it holds the lease, that is free.
    pub fn ended(&mut self, coordinator: CoordinatorId) {
        if self.ended.replace(coordinator) != Some(coordinator) {
            self.next_read = Time(0);
        }
    }

    /// The record as last seen. While this coordinator leads, the truth.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether this coordinator leads at this moment.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether a change is under way; another one has to wait for it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// What time has brought, and the request that is due, if any.
    pub fn tick(&mut self, now: Time) -> (Option<LeaseEvent>, Option<StoreRequest>) {
        let event = match self.until {
            Some(until) if now >= until => {
                Some(self.lose("the lease could not be renewed in time"))
            }
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

    /// When [`Lease::tick`] has something to do next.
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

    /// Asks for a changed record. Only while this coordinator leads and is not busy.
    pub fn propose(&mut self, now: Time, change: impl FnOnce(&mut Record)) -> StoreRequest {
        let mut record = self.record.clone();
        change(&mut record);
        self.swap(now, record)
    }

    /// Takes an answer in.
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
        // A change that was not done can be done later only as long as nothing else was.
        let unknown = if advanced { self.unknown.take() } else { None };
        let led = self.until.is_some();
        if self.record.holder != Some(self.me) {
            let lost = led.then(|| self.lose("another coordinator has taken the lease"));
            let (more, request) = self.stand_by(now);
            return (lost.into_iter().chain(more).collect(), request);
        }
        // The right to lead counts from the moment at which the change was sent that was done.
        let sent = if done { Some(flight.sent) } else { unknown };
        if let Some(sent) = sent {
            self.until = self.until.max(Some(sent.after(self.length)));
        }
        if !self.leads(now) {
            let lost = led.then(|| self.lose("the lease could not be renewed in time"));
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

    /// Somebody has heard of a higher term.
    pub fn deposed(&mut self) -> LeaseEvent {
        self.next_read = Time(0);
        self.lose("a worker has heard of a higher term")
    }

    fn lose(&mut self, cause: &str) -> LeaseEvent {
        self.until = None;
        LeaseEvent::Lost {
            term: self.record.term,
            cause: cause.to_owned(),
        }
    }

    /// Not leading: takes the lease when it is free, looks again later when it is not.
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

    fn swap(&mut self, now: Time, mut record: Record) -> StoreRequest {
        record.version = self.record.version + 1;
        let id = self.sent(now, Some(record.clone()));
        StoreRequest::Swap { id, record }
    }

    fn sent(&mut self, now: Time, swap: Option<Record>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight = Some(InFlight {
            id,
            sent: now,
            swap,
        });
        id
    }
}

#[cfg(test)]
mod tests;
