//! Where the members of a new generation stand, and what each has to do before the next step.
//!
//! The largest step that any of them has committed wins: it is final, for all voted on it. A member
//! that voted on the same step but missed the outcome holds its gradient and applies it now; any
//! other takes the state over from those that have it. Pure, and equal on all ranks.

use crate::Step;

/// What a member says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its next step: all before it are committed and applied.
    pub next: Step,
    /// Whether it holds the complete reduced gradient of that step.
    pub holds_gradient: bool,
    /// Whether its state is complete: false while it takes the state over from others.
    pub is_whole: bool,
}

/// What a member has to do before the group goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// Nothing: it has the newest state.
    Level,
    /// To commit one step more and apply the gradient that it holds.
    Apply,
    /// To take the state over from the others.
    Heal,
}

/// How a group goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Courses {
    /// The step that all begin with.
    pub next: Step,
    /// What each rank does first.
    pub each: Vec<Course>,
}

impl Courses {
    /// Decides for all members; `None` when no member has a complete state.
    #[must_use]
    pub fn of(standings: &[Standing]) -> Option<Self> {
        let whole = standings.iter().filter(|standing| standing.is_whole);
        let next = whole.map(|standing| standing.next).max()?;
        let each = standings
            .iter()
            .map(|standing| match next.0.saturating_sub(standing.next.0) {
                _ if !standing.is_whole => Course::Heal,
                0 => Course::Level,
                1 if standing.holds_gradient => Course::Apply,
                _ => Course::Heal,
            })
            .collect();
        Some(Self { next, each })
    }

    /// The first rank with the newest state.
    #[must_use]
    pub fn leader(&self) -> usize {
        let level = |course: &Course| *course == Course::Level;
        self.each.iter().position(level).unwrap_or_default()
    }

    /// The ranks that have the newest state once each has done what it has to, and those that take it
    /// over from them.
    #[must_use]
    pub fn sides(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.each.len()).partition(|&rank| self.each[rank] != Course::Heal)
    }

    /// How many ranks compute at once: the ones before those that heal, when these are the last ones.
    /// `None` when they are not, or when nobody heals.
    #[must_use]
    pub fn computing(&self) -> Option<u32> {
        let (whole, healing) = self.sides();
        let is_tail = healing.first() == Some(&whole.len());
        is_tail.then_some(whole.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next: u64, holds_gradient: bool) -> Standing {
        Standing {
            next: Step(next),
            holds_gradient,
            is_whole: true,
        }
    }

    #[test]
    fn the_largest_committed_step_wins() {
        let courses =
            Courses::of(&[at(6, true), at(7, false), at(6, false), at(0, false)]).unwrap();
        assert_eq!(courses.next, Step(7));
        assert_eq!(
            courses.each,
            [Course::Apply, Course::Level, Course::Heal, Course::Heal]
        );
        assert_eq!(courses.leader(), 1);
        assert_eq!(courses.sides(), (vec![0, 1], vec![2, 3]));
        assert_eq!(courses.computing(), Some(2));
    }

    #[test]
    fn a_gradient_of_an_older_step_is_of_no_use() {
        let courses = Courses::of(&[at(5, true), at(7, true)]).unwrap();
        assert_eq!(courses.each, [Course::Heal, Course::Level]);
        // The one that heals is not the last: nobody computes meanwhile.
        assert_eq!(courses.computing(), None);
    }

    #[test]
    fn a_state_in_parts_is_no_state() {
        let broken = Standing {
            is_whole: false,
            ..at(9, false)
        };
        let courses = Courses::of(&[at(7, false), broken]).unwrap();
        assert_eq!(courses.next, Step(7));
        assert_eq!(courses.each, [Course::Level, Course::Heal]);
        assert_eq!(Courses::of(&[broken, broken]), None);
    }

    #[test]
    fn a_fresh_group_has_nothing_to_do() {
        let courses = Courses::of(&[at(0, false), at(0, false)]).unwrap();
        assert_eq!(courses.each, [Course::Level, Course::Level]);
        assert_eq!(courses.computing(), None);
    }
}
