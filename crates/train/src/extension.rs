//! [`Extension`]: decides whether a run may continue from a checkpoint with other settings, and records the lineage.

use ronde_core::{ParentPlan, PlanIdentity};

use crate::checkpoints::{self, NewestCheckpoint};
use crate::config::nearest;
use crate::error::TrainError;
use crate::plan::Plan;

/// The part of an identity that is known only after the model was built.
const TENSORS: &str = "model.tensors";

/// The changes of a resumed run that its user has named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extension {
    /// Names of settings: dotted keys, sections, or keys of `[train]`, such as `learning_rate`.
    pub allowed: Vec<String>,
}

/// Whether a setting may change when a run continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeRule {
    /// Without being named: the length of the run.
    Free,
    /// If the user names it.
    Named,
    /// If the user names it and the checkpoint is at the end of an epoch.
    NamedAtEpochEnd,
    /// Never, for a reason.
    Never(&'static str),
}

impl ChangeRule {
    /// Returns the rule of a part of an identity.
    fn of(part: &str) -> Self {
        match part {
            "train.epochs" | "train.steps" => Self::Free,
            "run.seed" | "train.shuffle" => Self::NamedAtEpochEnd,
            "train.global_batch_size" | "train.drop_last" => {
                Self::Never("it determines the steps of an epoch, of which the checkpoint has some")
            }
            "workers.logical_shards" => {
                Self::Never("it determines the form of all sums and of the batches")
            }
            "sync.kind" | "sync.inner_steps" | "sync.round_updates" | "sync.replicas"
            | "sync.inner_state" | "sync.stages" | "sync.borders" | "sync.round_steps"
            | "sync.hidden" => {
                Self::Never("it determines the steps of the run and what a checkpoint of them has")
            }
            "compression.codec" | "compression.senders" | "compression.rank" => {
                Self::Never("it determines the residuals in a checkpoint")
            }
            "version" => Self::Never("it is the version of the run file"),
            _ if part.starts_with("model.") => {
                Self::Never("the checkpoint has the tensors of the earlier model")
            }
            _ if part.starts_with("data.") => {
                Self::Never("the checkpoint has the samples that were used of the earlier data")
            }
            _ => Self::Named,
        }
    }
}

impl Extension {
    /// Checks how the settings of a plan differ from those of the checkpoint that its run continues from, and adds the
    /// lineage to the plan. Returns the new parent if there is a difference; without one, the run continues as it was.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] names the first setting that may not change, and what to do instead.
    pub fn bind(
        &self,
        plan: &mut Plan,
        from: &NewestCheckpoint,
    ) -> Result<Option<ParentPlan>, TrainError> {
        let mut lineage = from.identity.lineage();
        plan.identity.set_lineage(&lineage);
        let (mut mine, mut theirs) = (plan.identity.clone(), from.identity.clone());
        if mine.part(TENSORS).is_none() {
            theirs.remove_under(TENSORS);
        }
        self.check_known(&mine, &theirs)?;
        let Some(changes) = mine.changes_since(&theirs) else {
            return Ok(None);
        };
        check_state(plan, from)?;
        let is_epoch_end = from
            .step
            .0
            .is_multiple_of(plan.batches.steps_per_epoch().max(1));
        for part in mine.differing(&theirs) {
            if let Err((cause, hint)) = self.check(&part, is_epoch_end) {
                let is_part = |name: &str| {
                    let rest = name.strip_prefix(part.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                mine.retain(is_part);
                theirs.retain(is_part);
                let change = mine.changes_since(&theirs).unwrap_or(part);
                return Err(TrainError::Impossible {
                    problem: format!("cannot resume: {change}{cause}"),
                    hint,
                });
            }
        }
        if plan.steps <= from.step.0 {
            return Err(TrainError::Impossible {
                problem: format!(
                    "cannot resume with other settings: the run would have {} steps, and the checkpoint has {} already",
                    plan.steps, from.step
                ),
                hint: "raise train.epochs or train.steps".to_owned(),
            });
        }
        let parent = ParentPlan {
            plan: from.identity.hex(),
            step: from.step,
            changes,
        };
        lineage.push(parent.clone());
        plan.identity.set_lineage(&lineage);
        Ok(Some(parent))
    }

    /// Checks one changed part. The error is the cause, as the end of a sentence, and a hint.
    fn check(&self, part: &str, is_epoch_end: bool) -> Result<(), (String, String)> {
        let name = part.strip_prefix("train.").unwrap_or(part);
        let needs_name = || {
            let hint = format!(
                "to continue with the new value, name it: `--allow-change {name}`; the model then depends on this step"
            );
            Err((String::new(), hint))
        };
        match ChangeRule::of(part) {
            ChangeRule::Free => Ok(()),
            ChangeRule::Never(reason) => {
                let hint = "keep the value, or start a new run from the weights of this one: `--init-from RUN`";
                Err((format!("; {reason}"), hint.to_owned()))
            }
            ChangeRule::Named | ChangeRule::NamedAtEpochEnd if !self.names(part) => needs_name(),
            ChangeRule::NamedAtEpochEnd if !is_epoch_end => {
                let cause = "; it determines the order of the samples, and an epoch is under way";
                let hint = "resume with the earlier value, and change it from a checkpoint at the end of an epoch";
                Err((cause.to_owned(), hint.to_owned()))
            }
            ChangeRule::Named | ChangeRule::NamedAtEpochEnd => Ok(()),
        }
    }

    /// Returns whether the user has named a part, or a section that contains it.
    fn names(&self, part: &str) -> bool {
        self.allowed.iter().any(|name| is_named(part, name))
    }

    /// Checks that every name is that of a setting in one of the two identities.
    fn check_known(&self, mine: &PlanIdentity, theirs: &PlanIdentity) -> Result<(), TrainError> {
        let parts = || mine.parts().chain(theirs.parts()).map(|(part, _)| part);
        let is_unknown = |name: &&String| !parts().any(|part| is_named(part, name));
        let Some(unknown) = self.allowed.iter().find(is_unknown) else {
            return Ok(());
        };
        let mut known: Vec<&str> = parts()
            .filter(|part| {
                matches!(
                    ChangeRule::of(part),
                    ChangeRule::Named | ChangeRule::NamedAtEpochEnd
                )
            })
            .map(|part| part.strip_prefix("train.").unwrap_or(part))
            .collect();
        known.sort_unstable();
        known.dedup();
        Err(TrainError::Impossible {
            problem: format!(
                "invalid `--allow-change {unknown}`: expected the name of a setting that the trained bits depend on"
            ),
            hint: match nearest(unknown, &known) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("these may change when they are named: {}", known.join(", ")),
            },
        })
    }

    /// Checks that every named setting may change at all.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] with the reason.
    pub fn check_names(&self) -> Result<(), TrainError> {
        for name in &self.allowed {
            // A section is named without a key; any key in it has the rule of the section.
            let rules = [name.clone(), format!("train.{name}"), format!("{name}.")];
            for part in rules {
                if let ChangeRule::Never(reason) = ChangeRule::of(&part) {
                    return Err(TrainError::Impossible {
                        problem: format!("invalid `--allow-change {name}`: {reason}"),
                        hint: "start a new run from the weights of this one: `--init-from RUN`"
                            .to_owned(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Returns whether `name` is a part of an identity, a section that contains it, or a key of `[train]`.
fn is_named(part: &str, name: &str) -> bool {
    let is_below = |of: &str| {
        let rest = of.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    is_below(part) || part.strip_prefix("train.").is_some_and(is_below)
}

/// Checks that the checkpoint has the state that the plan needs.
fn check_state(plan: &Plan, from: &NewestCheckpoint) -> Result<(), TrainError> {
    let needed = checkpoints::vector_names(&plan.config);
    if needed == from.vectors {
        return Ok(());
    }
    Err(TrainError::Impossible {
        problem: format!(
            "cannot resume: the checkpoint has the state `{}`, but the optimizer and the precision of this run need `{}`",
            from.vectors.join(", "),
            needed.join(", ")
        ),
        hint: "keep [optimizer] and train.precision, or start a new run from the weights of this one: `--init-from RUN`"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests;
