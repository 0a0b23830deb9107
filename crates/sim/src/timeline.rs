//! [`Timeline`]: the virtual clock of a simulation, its pending events and its trace.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The limit of events of a simulation, which also ends a storm of messages.
const EVENTS_MAX: u64 = 200_000;

/// The time of a simulation, in nanoseconds, and the future events. Events of the same time happen in the order in which they
/// were scheduled.
#[derive(Debug)]
pub struct Timeline<E> {
    now: u64,
    end: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// The events of the queue by index; unused indexes are in `free`.
    events: Vec<Option<E>>,
    free: Vec<usize>,
    scheduled: u64,
    trace: Option<Vec<(u64, String)>>,
}

impl<E> Timeline<E> {
    /// Creates a timeline without events that ends at a time.
    #[must_use]
    pub fn new(end: u64, is_traced: bool) -> Self {
        Self {
            now: 0,
            end,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
            trace: is_traced.then(Vec::new),
        }
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Schedules an event.
    pub fn schedule(&mut self, at: u64, event: E) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = Some(event);
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled, index)));
    }

    /// Schedules an event after a delay.
    pub fn schedule_after(&mut self, delay: u64, event: E) {
        self.schedule(self.now + delay, event);
    }

    /// Moves the clock to the next event and returns the event; `None` if there is none, if the time is over, or if there were
    /// too many.
    pub fn next_event(&mut self) -> Option<E> {
        let Reverse((at, _, index)) = self.queue.pop()?;
        if self.scheduled > EVENTS_MAX {
            self.note(|| "--- too many events".to_owned());
            return None;
        }
        if at > self.end {
            return None;
        }
        self.now = at.max(self.now);
        self.free.push(index);
        self.events[index].take()
    }

    /// Returns the number of events that were scheduled.
    #[must_use]
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Returns whether a trace is recorded.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Adds a line to the trace, if one is recorded.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push((self.now, line()));
        }
    }

    /// Takes the lines of the trace, with their times.
    pub fn take_trace(&mut self) -> Vec<(u64, String)> {
        self.trace.take().unwrap_or_default()
    }
}
