//! [`MemberState`]: a member's parts of a state that may be divided, and [`StateSource`]: from which state
//! the members continue.

use ronde_core::Step;

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
    /// Whether the member has a complete state, which may be that before the first step, and the reduced gradient of its next step, of
    /// all elements that it holds.
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

    /// Returns whether the member has the state before step `next`, possibly after it applies the gradient that it holds.
    fn reaches(&self, next: Step) -> bool {
        let has_applied = self.has_state && self.next == next;
        has_applied || self.holds_gradient && self.next.next() == next
    }
}

/// The state from which the members of a new generation continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSource {
    /// No member has a state: the run begins, or resumes from a checkpoint.
    Initial,
    /// The state before this step, which the members have together. Members with a later one have only parts of it, and give
    /// them up.
    Members(Step),
    /// The newest checkpoint: some members have parts of a state, but together they have all of none.
    Checkpoint,
}

impl StateSource {
    /// Decides for all members from their states: the newest step before which they have all `elements` of the state
    /// together counts; those that only miss the outcome of the last step have it too.
    #[must_use]
    pub fn of(members: &[MemberState], elements: usize) -> Self {
        let with_state = members.iter().filter(|member| member.has_state);
        let mut steps: Vec<Step> = with_state.map(|member| member.next).collect();
        steps.sort_unstable();
        if steps.is_empty() {
            return Self::Initial;
        }
        let is_covered = |next: &Step| {
            let have = members.iter().filter(|member| member.reaches(*next));
            let held = HeldRanges::new(have.flat_map(|member| member.held.ranges().to_vec()));
            held.len() == elements
        };
        let newest = steps.into_iter().rev().find(is_covered);
        newest.map_or(Self::Checkpoint, Self::Members)
    }

    /// Returns whether a member whose next step is `next` has only parts of a later state, which it gives up.
    #[must_use]
    pub fn is_before(&self, next: Step) -> bool {
        matches!(self, Self::Members(step) if *step < next)
    }
}

/// The action of the ranks after each has tried to load its slices of the newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadAgreement {
    /// All ranks have loaded the checkpoint of this step; `None`: there is none that all of them can read.
    Agreed(Option<Step>),
    /// The ranks have loaded different checkpoints: each loads the newest one before this step.
    RetryBefore(Step),
}

impl LoadAgreement {
    /// Decides for all ranks from the steps that they have loaded. A rank that can read no checkpoint has none.
    #[must_use]
    pub fn of(loaded: &[Option<Step>]) -> Self {
        let first = loaded.first().copied().flatten();
        if loaded.iter().all(|step| *step == first) {
            return Self::Agreed(first);
        }
        // Ranks may have loaded an older checkpoint because the newest is damaged for them.
        let oldest = loaded.iter().map(|step| step.map_or(Step(0), Step::next));
        Self::RetryBefore(oldest.min().unwrap_or_default())
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
    fn members_continue_from_the_newest_state_that_they_have_together() {
        let source = |members: &[MemberState]| StateSource::of(members, 10);
        let at = |next| StateSource::Members(Step(next));
        assert_eq!(
            source(&[member(7, false, 0..6), member(7, false, 4..10)]),
            at(7)
        );
        assert_eq!(
            source(&[member(7, false, 0..6), member(6, true, 4..10)]),
            at(7)
        );
        assert_eq!(
            source(&[member(1, false, 0..6), member(0, true, 4..10)]),
            at(1),
            "the gradient of the first step"
        );
        let lost = StateSource::Checkpoint;
        assert_eq!(
            source(&[member(7, false, 0..6), member(6, false, 4..10)]),
            lost
        );
        assert_eq!(
            source(&[member(7, false, 0..6), member(5, true, 4..10)]),
            lost
        );
        // No member has the outcome of step 6.
        assert_eq!(
            source(&[member(6, true, 0..6), member(6, true, 4..9)]),
            lost
        );
        assert_eq!(source(&[member(0, false, 0..6)]), StateSource::Initial);
        let members = [
            member(6, false, 0..6),
            member(9, true, 2..8),
            member(6, false, 5..10),
        ];
        assert_eq!(source(&members), at(6), "the later state is not complete");
        assert!(source(&members).is_before(Step(9)) && !source(&members).is_before(Step(6)));
    }

    #[test]
    fn ranks_that_loaded_different_checkpoints_load_an_older_one() {
        let of = |loaded: &[Option<u64>]| {
            let loaded: Vec<Option<Step>> = loaded.iter().map(|step| step.map(Step)).collect();
            LoadAgreement::of(&loaded)
        };
        assert_eq!(
            of(&[Some(8), Some(8)]),
            LoadAgreement::Agreed(Some(Step(8)))
        );
        assert_eq!(of(&[None, None]), LoadAgreement::Agreed(None));
        assert_eq!(of(&[Some(8), Some(4)]), LoadAgreement::RetryBefore(Step(5)));
        assert_eq!(of(&[Some(8), None]), LoadAgreement::RetryBefore(Step(0)));
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
