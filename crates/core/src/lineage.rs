//! [`ParentPlan`]: the plan and the step from which a run with other settings continues, as part of its identity.

use serde::{Deserialize, Serialize};

use crate::identity::PlanIdentity;
use crate::rank::Step;

/// The names of all parts about a plan's parents begin with this.
const PREFIX: &str = "lineage.";

/// A plan from which another one continues.
///
/// The bits of an extended run depend on its plan, on the parent's plan and on the step in between. All three are in the
/// identity, so two runs with equal identities have the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentPlan {
    /// The hash of the parent's plan, 64 hexadecimal digits. It covers the parents of the parent.
    pub plan: String,
    /// The number of steps that were trained with the parent's plan and earlier ones.
    pub step: Step,
    /// The parts that changed, as [`PlanIdentity::changes_since`] writes them.
    pub changes: String,
}

impl PlanIdentity {
    /// Returns the plans from which this one continues, the oldest first; none for a run from step 0.
    #[must_use]
    pub fn lineage(&self) -> Vec<ParentPlan> {
        let part = |number: usize, name: &str| self.part(&part_name(number, name));
        let parent = |number| {
            Some(ParentPlan {
                plan: part(number, "plan")?.to_owned(),
                step: Step(part(number, "step")?.parse().ok()?),
                changes: part(number, "changes").unwrap_or_default().to_owned(),
            })
        };
        (0..).map_while(parent).collect()
    }

    /// Replaces the plans from which this one continues, the oldest first.
    pub fn set_lineage(&mut self, parents: &[ParentPlan]) {
        self.remove_under(PREFIX);
        for (number, parent) in parents.iter().enumerate() {
            self.set(part_name(number, "plan"), &parent.plan);
            self.set(part_name(number, "step"), parent.step.0.to_string());
            self.set(part_name(number, "changes"), &parent.changes);
        }
    }

    /// Returns whether a run with this plan may continue from the state that a run with another plan had after a number of
    /// steps: the plans are equal, or the other one is its parent at this step.
    #[must_use]
    pub fn continues_from(&self, earlier: &Self, step: Step) -> bool {
        let is_parent = |parent: ParentPlan| parent.step == step && parent.plan == earlier.hex();
        self == earlier || self.lineage().pop().is_some_and(is_parent)
    }

    /// Returns the step at which a run with this plan left the run with another plan, if that is before `step`: the state
    /// that the other run had after this number of steps is then not part of the history of this plan.
    #[must_use]
    pub fn left_before(&self, earlier: &Self, step: Step) -> Option<Step> {
        let parent = self.lineage().pop()?;
        (parent.step < step && parent.plan == earlier.hex()).then_some(parent.step)
    }
}

/// Returns the name of a part about a parent: `lineage.000.plan`.
fn part_name(number: usize, name: &str) -> String {
    format!("{PREFIX}{number:03}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_continues_from_itself_and_from_its_last_parent_at_its_step() {
        let mut first = PlanIdentity::default();
        first.set("train.epochs", "3");
        let extended = |epochs: &str, parent: &PlanIdentity, step| {
            let mut plan = first.clone();
            plan.set("train.epochs", epochs);
            let mut parents = parent.lineage();
            parents.push(ParentPlan {
                plan: parent.hex(),
                step: Step(step),
                changes: plan.changes_since(parent).unwrap_or_default(),
            });
            plan.set_lineage(&parents);
            plan
        };
        let second = extended("5", &first, 69);
        let third = extended("9", &second, 115);
        assert_eq!(first.lineage(), []);
        assert_eq!(second.lineage()[0].plan, first.hex());
        assert_eq!(third.lineage().len(), 2);
        assert_eq!(third.lineage()[0], second.lineage()[0]);
        assert_eq!(third.lineage()[1].step, Step(115));
        for (plan, earlier, step, expected) in [
            (&first, &first, 5, true),
            (&second, &first, 69, true),
            (&second, &first, 68, false),
            (&third, &second, 115, true),
            (&third, &first, 69, false),
            (&first, &second, 69, false),
        ] {
            let continues = plan.continues_from(earlier, Step(step));
            assert_eq!(continues, expected, "{plan:?} from {earlier:?} at {step}");
        }
        // The parent continued after the step at which the second plan left it.
        assert_eq!(second.left_before(&first, Step(92)), Some(Step(69)));
        assert_eq!(second.left_before(&first, Step(69)), None);
        assert_eq!(third.left_before(&first, Step(138)), None);
        let other_step = extended("5", &first, 46);
        assert_ne!(other_step.hash(), second.hash());
    }
}
