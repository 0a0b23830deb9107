//! [`CoreContention`]: whether ranks that wait for each other share a core, while another one may be idle.
//!
//! Two that give way to each other on one core never sleep and never wait long: to the system they are
//! programs that run well where they are, and it leaves them there for seconds, at half their speed. Who
//! sleeps is woken on an idle core if there is one. So after some waits in a row in which somebody else
//! had the core, one sleeps in place of giving way once more; not where there are more ranks than cores,
//! for then they have to share, and being woken takes longer.

use std::time::Duration;

/// The core was somebody else's if giving way took so long; else it takes less than a microsecond.
const AWAY: Duration = Duration::from_micros(4);
/// So many such waits in a row make one sleep.
const WAITS: u32 = 16;

/// What the last waits of one rank have shown.
#[derive(Debug)]
pub(super) struct CoreContention {
    /// Whether there may be a core for each rank.
    has_room: bool,
    /// Waits in a row in which somebody else had the core.
    waits: u32,
    /// In the wait under way: whether this rank gave way, and for long.
    gave_way: bool,
    was_away: bool,
}

impl CoreContention {
    /// For a group of so many ranks on hosts of so many cores.
    pub(super) fn new(ranks: usize, cores: usize) -> Self {
        Self {
            has_room: ranks <= cores,
            waits: 0,
            gave_way: false,
            was_away: false,
        }
    }

    /// This rank has given way, and went on after so long.
    pub(super) fn gave_way(&mut self, took: Duration) {
        self.gave_way = true;
        self.was_away |= took >= AWAY;
    }

    /// A wait begins; whether to sleep in it.
    pub(super) fn is_to_sleep(&mut self) -> bool {
        // Of a wait in which nobody gave way nothing is known.
        if std::mem::take(&mut self.gave_way) {
            let waits = std::mem::take(&mut self.waits);
            self.waits = if self.was_away { waits + 1 } else { 0 };
        }
        self.was_away = false;
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

    /// Whether the next of waits like this one sleeps, one after the other.
    fn sleeps(crowd: &mut CoreContention, took: &[Duration], times: u32) -> u32 {
        let mut slept = 0;
        for _ in 0..times {
            took.iter().for_each(|took| crowd.gave_way(*took));
            slept += u32::from(crowd.is_to_sleep());
        }
        slept
    }

    #[test]
    fn one_sleeps_after_many_waits_in_which_others_had_the_core() {
        let mut crowd = CoreContention::new(2, 2);
        let brief = Duration::from_nanos(400);
        assert_eq!(sleeps(&mut crowd, &[AWAY, brief], WAITS - 1), 0);
        // Nobody gave way: nothing new is known.
        assert_eq!(sleeps(&mut crowd, &[], 100), 0);
        assert_eq!(sleeps(&mut crowd, &[brief, AWAY], 1), 1);
        assert_eq!(sleeps(&mut crowd, &[AWAY], 4 * WAITS), 4);
        assert_eq!(sleeps(&mut crowd, &[AWAY], WAITS - 1), 0);
        // The core is this rank's own.
        assert_eq!(sleeps(&mut crowd, &[brief, brief], 1), 0);
        assert_eq!(sleeps(&mut crowd, &[AWAY], WAITS - 1), 0);
        // No core is free for anybody.
        let mut crowd = CoreContention::new(3, 2);
        assert_eq!(sleeps(&mut crowd, &[AWAY], 9 * WAITS), 0);
    }
}
