//! [`CoreContention`]: detects that ranks that wait for each other share a core while another may be idle.
//!
//! Two threads that yield to each other on one core never sleep and never wait long: to the scheduler
//! they run well, and it leaves them there for seconds, at half their speed. A thread that sleeps is
//! woken on an idle core if there is one. So after several waits in a row in which another thread used
//! the core, a rank sleeps instead of yielding once more. This does not apply if there are more ranks than
//! cores: then they have to share, and waking takes longer.

use std::time::Duration;

/// A yield at least this long means that another thread ran; otherwise it takes less than 1 µs.
const OTHER_RAN_MIN: Duration = Duration::from_micros(4);
/// Number of such waits in a row after which the rank sleeps.
const WAITS: u32 = 16;

/// The observations of the last waits of one rank.
#[derive(Debug)]
pub(super) struct CoreContention {
    /// Whether there may be a core for each rank.
    has_room: bool,
    /// Consecutive waits in which another thread ran on the core.
    waits: u32,
    /// In the current wait: whether this rank yielded, and whether for long.
    yielded: bool,
    other_ran: bool,
}

impl CoreContention {
    /// Starts observing for a group of `ranks` on hosts with `cores`.
    pub(super) fn new(ranks: usize, cores: usize) -> Self {
        Self {
            has_room: ranks <= cores,
            waits: 0,
            yielded: false,
            other_ran: false,
        }
    }

    /// Records that this rank yielded for `took`.
    pub(super) fn yielded(&mut self, took: Duration) {
        self.yielded = true;
        self.other_ran |= took >= OTHER_RAN_MIN;
    }

    /// Starts a wait, and returns whether to sleep in it.
    pub(super) fn should_sleep(&mut self) -> bool {
        // A wait without a yield gives no information.
        if std::mem::take(&mut self.yielded) {
            let waits = std::mem::take(&mut self.waits);
            self.waits = if self.other_ran { waits + 1 } else { 0 };
        }
        self.other_ran = false;
        let is_due = self.has_room && self.waits >= WAITS;
        if is_due {
            self.waits = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how many of `times` equal waits sleep.
    fn sleeps(contention: &mut CoreContention, took: &[Duration], times: u32) -> u32 {
        let mut slept = 0;
        for _ in 0..times {
            took.iter().for_each(|took| contention.yielded(*took));
            slept += u32::from(contention.should_sleep());
        }
        slept
    }

    #[test]
    fn a_rank_sleeps_after_many_waits_in_which_others_had_the_core() {
        let mut contention = CoreContention::new(2, 2);
        let brief = Duration::from_nanos(400);
        assert_eq!(
            sleeps(&mut contention, &[OTHER_RAN_MIN, brief], WAITS - 1),
            0
        );
        // No yield: no information.
        assert_eq!(sleeps(&mut contention, &[], 100), 0);
        assert_eq!(sleeps(&mut contention, &[brief, OTHER_RAN_MIN], 1), 1);
        assert_eq!(sleeps(&mut contention, &[OTHER_RAN_MIN], 4 * WAITS), 4);
        assert_eq!(sleeps(&mut contention, &[OTHER_RAN_MIN], WAITS - 1), 0);
        // This rank has the core to itself.
        assert_eq!(sleeps(&mut contention, &[brief, brief], 1), 0);
        assert_eq!(sleeps(&mut contention, &[OTHER_RAN_MIN], WAITS - 1), 0);
        // There are fewer cores than ranks.
        let mut contention = CoreContention::new(3, 2);
        assert_eq!(sleeps(&mut contention, &[OTHER_RAN_MIN], 9 * WAITS), 0);
    }
}
