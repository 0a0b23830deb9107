//! A ring of two bytes between two threads that sleep: bytes come in order, and no wake-up is lost.

use std::panic::catch_unwind;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use super::atomics::{AtomicU32, AtomicU64, Bug, with_bug};
use super::counts::RingSide;
use super::{Guarded, PREEMPTIONS, check};

/// Bytes of the ring.
const ROOM: u64 = 2;

/// What wakes the other side: a call is kept until it is heard, as a byte in a connection is.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Sleeps until it rings.
    fn hear(&self) {
        let mut has_rung = self.has_rung.lock().unwrap();
        while !std::mem::take(&mut *has_rung) {
            has_rung = self.changed.wait(has_rung).unwrap();
        }
    }
}

/// What both ends share.
#[derive(Default)]
struct Ring {
    counts: [AtomicU64; 2],
    sleeps: [AtomicU32; 2],
    bells: [Bell; 2],
    bytes: [Guarded; ROOM as usize],
}

/// The writer is end 0.
const WRITER: usize = 0;
const READER: usize = 1;

impl Ring {
    fn side(&self, me: usize) -> RingSide<'_> {
        let other = 1 - me;
        RingSide {
            mine: &self.counts[me],
            theirs: &self.counts[other],
            i_sleep: &self.sleeps[me],
            they_sleep: &self.sleeps[other],
        }
    }

    fn byte(&self, number: u64) -> &Guarded {
        &self.bytes[(number % ROOM) as usize]
    }

    /// How many bytes an end that has come to `at` can pass now; sleeps while there are none.
    fn await_some(&self, me: usize, at: u64) -> u64 {
        let side = self.side(me);
        let now = || match me {
            WRITER => ROOM - (at - side.theirs()),
            _ => side.theirs() - at,
        };
        loop {
            if now() > 0 {
                return now();
            }
            side.lie_down();
            if now() == 0 {
                self.bells[me].hear();
            }
            side.get_up();
        }
    }

    /// Tells the other end, and wakes it. A reader does so when half of the ring is free.
    fn pass(&self, me: usize, count: u64, is_enough: bool) {
        let side = self.side(me);
        side.publish(count);
        if is_enough && side.must_wake() {
            self.bells[1 - me].ring();
        }
    }

    fn write(&self, total: u64, most: u64) {
        let mut at = 0;
        while at < total {
            let now = self.await_some(WRITER, at).min(most).min(total - at);
            for number in at..at + now {
                self.byte(number).write(number as u32 + 1);
            }
            at += now;
            self.pass(WRITER, at, true);
        }
    }

    fn read(&self, total: u64, most: u64) {
        let mut at = 0;
        while at < total {
            let held = self.await_some(READER, at);
            let now = held.min(most);
            for number in at..at + now {
                assert_eq!(self.byte(number).read(), number as u32 + 1);
            }
            at += now;
            self.pass(READER, at, held - now <= ROOM / 2);
        }
    }
}

/// `total` bytes, at most `most` at once.
fn transfer(total: u64, most: u64) {
    let ring = Arc::new(Ring::default());
    let writer = Arc::clone(&ring);
    let writing = loom::thread::spawn(move || writer.write(total, most));
    ring.read(total, most);
    writing.join().unwrap();
}

/// A ring that runs full and empty, and both ends sleep.
fn check_all() {
    check(Some(PREEMPTIONS), || transfer(3, 2));
}

#[test]
fn bytes_of_a_ring_come_in_order_and_no_wake_up_is_lost() {
    check(None, || transfer(1, 1));
    check(Some(PREEMPTIONS), || transfer(2, 1));
    check_all();
}

#[test]
fn known_bugs_of_a_ring_are_found() {
    for bug in [Bug::NoAcquire, Bug::NoRelease, Bug::NoFence] {
        let found = with_bug(bug, || catch_unwind(check_all).is_err());
        assert!(found, "{bug:?} was not found");
    }
}
