//! [`MemberState`]: what a member of a new generation has of a state that may be divided, and whether the members have all of it.

use crate::Step;
use crate::holdings::HeldRanges;

/// A member's state before a generation begins, as all members see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberState {
    /// Whether the member has a complete state after at least one step.
    pub has_state: bool,
    /// The term of its checkpoints; 0: none.
    pub term: u64,
    /// The member's next step.
    pub next: Step,
    /// Whether the member holds the reduced gradient of that step, of all elements that it holds.
    pub holds_gradient: bool,
    /// The elements of the state that the member holds.
    pub held: HeldRanges,
}

impl MemberState {
    /// Encodes the state for other members: 40 bytes, and 16 per range.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let held = self.held.encode();
        let mut words = vec![
            u64::from(self.has_state),
            self.term,
            self.next.0,
            u64::from(self.holds_gradient),
            held.len() as u64,
        ];
        words.extend(held);
        words
    }

    /// Decodes the states of all members, one after the other by rank; `None` if the words are not those of states.
    #[must_use]
    pub fn decode_all(mut words: &[u64]) -> Option<Vec<Self>> {
        let mut members = Vec::new();
        while let Some((header, rest)) = words.split_first_chunk::<5>() {
            let [has_state, term, next, holds_gradient, len] = *header;
            let (held, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            members.push(Self {
                has_state: has_state == 1,
                term,
                next: Step(next),
                holds_gradient: holds_gradient == 1,
                held: HeldRanges::decode(held)?,
            });
            words = rest;
        }
        words.is_empty().then_some(members)
    }

    /// Returns whether the members with the newest state hold all of its `elements` together, so that the group continues
    /// from it; those that only miss the outcome of its last step count. True if no member has a state.
    #[must_use]
    pub fn is_covered(members: &[Self], elements: usize) -> bool {
        let with_state = || members.iter().filter(|member| member.has_state);
        let Some(newest) = with_state().map(|member| member.next).max() else {
            return true;
        };
        let is_newest = |member: &&Self| {
            let applies = member.holds_gradient && member.next.next() == newest;
            member.next == newest || applies
        };
        let held = with_state().filter(is_newest);
        let held = HeldRanges::new(held.flat_map(|member| member.held.ranges().to_vec()));
        held.len() == elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(next: u64, holds_gradient: bool, held: std::ops::Range<usize>) -> MemberState {
        MemberState {
            has_state: next > 0,
            term: 3,
            next: Step(next),
            holds_gradient,
            held: HeldRanges::new([held]),
        }
    }

    #[test]
    fn members_with_the_newest_state_must_hold_all_of_it() {
        let covered = |members: &[MemberState]| MemberState::is_covered(members, 10);
        assert!(covered(&[member(7, false, 0..6), member(7, false, 4..10)]));
        assert!(covered(&[member(7, false, 0..6), member(6, true, 4..10)]));
        assert!(!covered(&[member(7, false, 0..6), member(6, false, 4..10)]));
        assert!(!covered(&[member(7, false, 0..6), member(5, true, 4..10)]));
        assert!(covered(&[member(0, false, 0..6)]), "no member has a state");
    }

    #[test]
    fn states_survive_encoding_and_damaged_ones_are_refused() {
        let members = [member(7, true, 0..6), member(0, false, 0..0)];
        let words: Vec<u64> = members.iter().flat_map(MemberState::encode).collect();
        assert_eq!(MemberState::decode_all(&words).unwrap(), members);
        for len in [1, 4, 6, words.len() - 1] {
            assert_eq!(MemberState::decode_all(&words[..len]), None);
        }
        assert_eq!(MemberState::decode_all(&[1, 0, 0, 0, u64::MAX]), None);
    }
}
