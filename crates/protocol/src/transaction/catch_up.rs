//! Decides how the members of a new generation reach the same state before the next step.
//!
//! The largest step that any member has committed is final, because all members voted on it. A member
//! that voted on that step but missed the outcome still holds its gradient and applies it now; any other
//! member copies the state from the members that have it. The decision is pure and equal on all ranks.

use ronde_core::Step;

use super::VoteProblem;

/// A member's report of its state before catching up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateReport {
    /// The member's next step: all earlier steps are committed and applied.
    pub next: Step,
    /// Whether the member holds the complete reduced gradient of that step.
    pub holds_gradient: bool,
    /// Whether the member's state is complete: false while it copies the state from other members.
    pub is_complete: bool,
}

/// The number of bytes of an encoded report.
const REPORT_BYTES: usize = 10;

impl StateReport {
    /// Returns the report as bytes for other members.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.next.0.to_le_bytes().to_vec();
        bytes.push(u8::from(self.holds_gradient));
        bytes.push(u8::from(self.is_complete));
        bytes
    }

    /// Decodes the reports of all members, one after the other by rank.
    ///
    /// # Errors
    /// The number of bytes does not fit.
    pub fn decode_all(bytes: &[u8], ranks: usize) -> Result<Vec<Self>, VoteProblem> {
        if bytes.len() != REPORT_BYTES * ranks {
            return Err(VoteProblem::StateReports(bytes.len()));
        }
        let each = bytes.chunks_exact(REPORT_BYTES).map(|bytes| {
            let (next, flags) = bytes.split_at(8);
            Self {
                next: Step(u64::from_le_bytes(next.try_into().unwrap_or_default())),
                holds_gradient: flags[0] == 1,
                is_complete: flags[1] == 1,
            }
        });
        Ok(each.collect())
    }
}

/// The action of a member before the group computes the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// Nothing: the member has the newest state.
    UpToDate,
    /// Commit one more step and apply the gradient that the member holds.
    ApplyGradient,
    /// Copy the state from other members.
    CopyState,
}

/// The plan that brings all members of a group to the same state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatchUpPlan {
    /// The step that all members compute first.
    pub next: Step,
    /// The action of each rank before that step.
    pub each: Vec<CatchUp>,
}

impl CatchUpPlan {
    /// Decides for all members from their reports, by rank; `None` when no member has a complete state.
    #[must_use]
    pub fn new(reports: &[StateReport]) -> Option<Self> {
        let complete = reports.iter().filter(|report| report.is_complete);
        let next = complete.map(|report| report.next).max()?;
        let each = reports
            .iter()
            .map(|report| match next.0.saturating_sub(report.next.0) {
                _ if !report.is_complete => CatchUp::CopyState,
                0 => CatchUp::UpToDate,
                1 if report.holds_gradient => CatchUp::ApplyGradient,
                _ => CatchUp::CopyState,
            })
            .collect();
        Some(Self { next, each })
    }

    /// Returns whether a member needs the snapshot of the [`CatchUpPlan::source`].
    #[must_use]
    pub fn needs_snapshot(&self) -> bool {
        self.each.iter().any(|action| *action != CatchUp::UpToDate)
    }

    /// Returns the first rank with the newest state, which sends the session's state to the others.
    #[must_use]
    pub fn source(&self) -> usize {
        let up_to_date = |action: &CatchUp| *action == CatchUp::UpToDate;
        self.each.iter().position(up_to_date).unwrap_or_default()
    }

    /// Returns the ranks that have the newest state once all gradients are applied, and the ranks that
    /// copy the state from them.
    #[must_use]
    pub fn holders_and_receivers(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.each.len()).partition(|&rank| self.each[rank] != CatchUp::CopyState)
    }

    /// Returns how many ranks can compute while the remaining ranks copy the state. `None` when no rank
    /// copies the state, or when the ranks that do are not the last ones.
    #[must_use]
    pub fn computing(&self) -> Option<u32> {
        let (holders, receivers) = self.holders_and_receivers();
        let is_tail = receivers.first() == Some(&holders.len());
        is_tail.then_some(holders.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next: u64, holds_gradient: bool) -> StateReport {
        StateReport {
            next: Step(next),
            holds_gradient,
            is_complete: true,
        }
    }

    #[test]
    fn the_largest_committed_step_wins() {
        let plan =
            CatchUpPlan::new(&[at(6, true), at(7, false), at(6, false), at(0, false)]).unwrap();
        assert_eq!(plan.next, Step(7));
        assert_eq!(
            plan.each,
            [
                CatchUp::ApplyGradient,
                CatchUp::UpToDate,
                CatchUp::CopyState,
                CatchUp::CopyState
            ]
        );
        assert_eq!(plan.source(), 1);
        assert_eq!(plan.holders_and_receivers(), (vec![0, 1], vec![2, 3]));
        assert_eq!(plan.computing(), Some(2));
    }

    #[test]
    fn a_gradient_of_an_older_step_is_not_used() {
        let plan = CatchUpPlan::new(&[at(5, true), at(7, true)]).unwrap();
        assert_eq!(plan.each, [CatchUp::CopyState, CatchUp::UpToDate]);
        // The rank that copies the state is not the last one, so no rank computes meanwhile.
        assert_eq!(plan.computing(), None);
    }

    #[test]
    fn a_partial_state_does_not_count() {
        let broken = StateReport {
            is_complete: false,
            ..at(9, false)
        };
        let plan = CatchUpPlan::new(&[at(7, false), broken]).unwrap();
        assert_eq!(plan.next, Step(7));
        assert_eq!(plan.each, [CatchUp::UpToDate, CatchUp::CopyState]);
        assert_eq!(CatchUpPlan::new(&[broken, broken]), None);
    }

    #[test]
    fn a_fresh_group_has_nothing_to_do() {
        let plan = CatchUpPlan::new(&[at(0, false), at(0, false)]).unwrap();
        assert_eq!(plan.each, [CatchUp::UpToDate, CatchUp::UpToDate]);
        assert_eq!(plan.computing(), None);
    }
}
