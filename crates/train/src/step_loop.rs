//! [`StepLoop`]: a program's training loop, which continues with the same bits when workers are lost or join.
//!
//! ```text
//! next -> Compute: the gradient of each of this rank's shards -> reduce_and_vote -> next
//!      -> Apply: a final gradient to the state, on all ranks -> next
//!      -> None: the loop is complete
//! ```

use ronde_core::batch::BatchPlan;
use ronde_core::exact::TreeSum;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, CollectivesExt, Operation, Rank, Recovery, Shard, Step, weight_hash};
use ronde_protocol::transaction::{CommittedStep, OpenStep, ShardReport};

use crate::error::TrainError;
use crate::job_group::GenerationEntry;
use crate::job_group::JobGroup;
use crate::session::Session;

/// The samples, shards and length of a [`StepLoop`].
#[derive(Debug, Clone, Copy)]
pub struct StepLoopPlan {
    /// The samples of each step.
    pub batches: BatchPlan,
    /// The number of logical shards of each global batch. The result depends on it, not on the number of workers.
    pub shards: u32,
    /// The number of steps.
    pub steps: u64,
}

/// The next action of a training loop.
#[derive(Debug)]
pub enum StepAction {
    /// Compute the gradients of this rank's shards, and pass the step to [`StepLoop::reduce_and_vote`].
    Compute(ComputeStep),
    /// Apply a gradient to the state.
    Apply(StepUpdate),
}

/// A logical shard of a step: its number and its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSamples {
    shard: Shard,
    ids: Vec<u64>,
}

impl ShardSamples {
    /// Returns the number of the shard.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Returns the numbers of the samples in the data set; there may be none.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }
}

/// A step whose gradients this rank computes.
#[derive(Debug)]
pub struct ComputeStep {
    open: OpenStep,
    shards: Vec<ShardSamples>,
    sum: TreeSum,
    /// The number of shards that were added.
    added: usize,
    elements: Option<usize>,
}

impl ComputeStep {
    /// Returns the number of the step.
    #[must_use]
    pub fn step(&self) -> Step {
        self.open.step()
    }

    /// Returns the shards of this rank, in order; a spare worker has none.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardSamples> {
        self.shards.clone()
    }

    /// Adds the result of the next shard: the gradient and the loss, summed over its samples and not divided by their
    /// number. Cost: copies the gradient.
    ///
    /// # Errors
    /// When it is not the next shard, or another gradient had another length.
    pub fn add(
        &mut self,
        shard: &ShardSamples,
        gradient: &[f32],
        loss_sum: f64,
    ) -> Result<(), TrainError> {
        self.add_counted(shard, gradient, loss_sum, shard.ids.len() as u64)
    }

    /// Does [`ComputeStep::add`] for a loss that is a mean over targets, such as the tokens of texts of different lengths:
    /// gradient and loss are sums over the `targets` targets of the shard that count.
    ///
    /// # Errors
    /// As [`ComputeStep::add`].
    pub fn add_counted(
        &mut self,
        shard: &ShardSamples,
        gradient: &[f32],
        loss_sum: f64,
        targets: u64,
    ) -> Result<(), TrainError> {
        let wrong = |problem| {
            Err(TrainError::Impossible {
                problem,
                hint: "add a gradient for each of `ComputeStep::shards`, in order".to_owned(),
            })
        };
        if self.shards.get(self.added) != Some(shard) {
            return wrong(format!(
                "cannot add shard {}: it is not the next shard of this rank",
                shard.shard
            ));
        }
        let expected = *self.elements.get_or_insert(gradient.len());
        if gradient.len() != expected {
            return wrong(format!(
                "cannot add shard {}: its gradient has {} elements; expected {expected}",
                shard.shard,
                gradient.len()
            ));
        }
        self.sum.add_shard(shard.shard.0, Buffer::copy_of(gradient));
        let report = ShardReport {
            shard: shard.shard,
            samples: shard.ids.len() as u64,
            targets,
            loss_sum,
            ..ShardReport::empty(shard.shard)
        };
        self.open.record(report, &shard.ids);
        self.added += 1;
        Ok(())
    }
}

/// A gradient to apply: its step is final on all ranks.
#[derive(Debug)]
pub struct StepUpdate {
    /// The step.
    pub committed: CommittedStep,
    gradient: Buffer,
}

impl StepUpdate {
    /// Returns the gradient, summed over the counted targets of all ranks.
    #[must_use]
    pub fn gradient(&self) -> &[f32] {
        self.gradient.as_slice()
    }

    /// Returns the mean gradient over the counted targets, which are the samples unless [`ComputeStep::add_counted`] was called;
    /// zeros if there are none: do not update the weights then.
    pub fn mean_gradient(&self) -> impl Iterator<Item = f32> {
        let targets = self.committed.targets.max(1) as f32;
        self.gradient().iter().map(move |sum| sum / targets)
    }
}

/// The position of a loop between two calls of [`StepLoop::next`].
enum LoopPhase {
    /// The member has joined a generation and does not know yet whether its state is complete.
    Joined,
    /// A step was missed and applied; the members without the state copy it now.
    CatchUp(GenerationEntry),
    /// A step is final; it is applied next.
    Committed(StepUpdate),
    /// A step was applied; true if the generation ends after it.
    Applied(bool),
    /// The next step can begin.
    Ready,
    /// The generation ended with an error.
    Failed(TrainError),
    /// The loop is complete.
    Complete,
}

/// A program's training loop as a sequence of actions. Each step is a transaction, so the result has the same bits on
/// any number of workers, also when workers are lost or join under `ronde run --elastic`.
///
/// ```no_run
/// use ronde_train::step_loop::{StepAction, StepLoop};
/// # fn gradient_of(ids: &[u64], weights: &[f32]) -> (Vec<f32>, f64) { (weights.to_vec(), 0.0) }
/// # fn train(mut steps: StepLoop) -> Result<Vec<f32>, ronde_train::TrainError> {
/// let mut weights = vec![0.0_f32; 640];
/// while let Some(action) = steps.next(&mut [&mut weights])? {
///     match action {
///         StepAction::Compute(mut step) => {
///             for shard in step.shards() {
///                 let (gradient, loss) = gradient_of(shard.ids(), &weights);
///                 step.add(&shard, &gradient, loss)?;
///             }
///             steps.reduce_and_vote(step);
///         }
///         StepAction::Apply(update) => {
///             for (weight, gradient) in weights.iter_mut().zip(update.mean_gradient()) {
///                 *weight -= 0.1 * gradient;
///             }
///         }
///     }
/// }
/// # Ok(weights)
/// # }
/// ```
pub struct StepLoop {
    member: JobGroup,
    session: Session,
    plan: StepLoopPlan,
    phase: LoopPhase,
    /// The gradient of a step whose vote failed: other ranks may have received all votes.
    held: Option<Buffer>,
}

impl StepLoop {
    /// Begins a loop. All members of the job call it with the same plan.
    ///
    /// # Errors
    /// When the plan has no shards.
    pub fn new(member: JobGroup, plan: StepLoopPlan) -> Result<Self, TrainError> {
        let shards = assign(&member, plan.shards)?;
        let group = member.group.clone();
        let session = Session::new(group, member.generation, plan.batches, shards);
        // A member that joins a running job has to catch up first.
        let phase = match member.can_rejoin() {
            true => LoopPhase::Joined,
            false => LoopPhase::Ready,
        };
        Ok(Self {
            member,
            session,
            plan,
            phase,
            held: None,
        })
    }

    /// Returns whether this is rank 0 of the current generation, which reports for all ranks.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.member.rank == Rank(0)
    }

    /// Returns the next action; `None` after the last step. `state` is everything that the loop changes when it applies
    /// a gradient, always with the same lengths: weights, and optimizer states if there are any. It is compared across
    /// the ranks, and overwritten on a worker that joins. Cost: hashes the state once for each step.
    ///
    /// # Errors
    /// The first error from which another generation cannot recover: the states of the ranks differ, shards were not
    /// added, or a worker was lost without `--elastic`.
    pub fn next(&mut self, state: &mut [&mut [f32]]) -> Result<Option<StepAction>, TrainError> {
        loop {
            let advanced = match std::mem::replace(&mut self.phase, LoopPhase::Complete) {
                LoopPhase::Complete => return Ok(None),
                LoopPhase::Committed(update) => {
                    self.phase = LoopPhase::Applied(self.member.ends_after(&update.committed));
                    return Ok(Some(StepAction::Apply(update)));
                }
                LoopPhase::Applied(ends) => {
                    self.session.set_digest(hash(state));
                    match ends {
                        true => self.join_next("the membership changes"),
                        false => Ok(LoopPhase::Ready),
                    }
                }
                LoopPhase::Ready if self.session.next_step().0 < self.plan.steps => {
                    self.phase = LoopPhase::Ready;
                    return self.begin().map(|step| Some(StepAction::Compute(step)));
                }
                LoopPhase::Ready => self.finish(),
                LoopPhase::Failed(error) if self.can_recover(&error) => self.leave(&error),
                LoopPhase::Failed(error) => {
                    self.member.group.abort(&error.to_string());
                    return Err(error);
                }
                LoopPhase::Joined => match self.rejoin(state) {
                    Ok(Some(update)) => return Ok(Some(StepAction::Apply(update))),
                    other => other.map(|_| LoopPhase::Ready),
                },
                LoopPhase::CatchUp(entry) => {
                    self.session.set_digest(hash(state));
                    self.heal(entry, state)
                }
            };
            self.phase = advanced.unwrap_or_else(LoopPhase::Failed);
        }
    }

    /// Sums the gradients of a step over all ranks and votes on it. An error is returned, or recovered from, by the next
    /// call of [`StepLoop::next`]. Cost: an exact sum of the gradient, and a vote.
    pub fn reduce_and_vote(&mut self, step: ComputeStep) {
        self.phase = match self.commit(step) {
            Ok(update) => LoopPhase::Committed(update),
            Err(error) => LoopPhase::Failed(error),
        };
    }

    fn commit(&mut self, step: ComputeStep) -> Result<StepUpdate, TrainError> {
        let ComputeStep {
            open,
            shards,
            mut sum,
            added,
            ..
        } = step;
        if added < shards.len() {
            return Err(TrainError::Impossible {
                problem: format!(
                    "cannot vote on step {}: {added} of {} shards of this rank were added",
                    open.step(),
                    shards.len()
                ),
                hint: "add a gradient for each of `ComputeStep::shards`".to_owned(),
            });
        }
        let subtrees = sum.take();
        let values = subtrees.iter().flat_map(|(_, sum)| sum.as_slice::<f32>());
        let values: Vec<f32> = values.copied().collect();
        let operation = Operation::ExactSum(self.shards()?.exact_sum());
        let reduced = self.member.group.run(operation, Buffer::copy_of(&values));
        let gradient = reduced.map_err(TrainError::Reduce)?;
        match self.member.commit(&mut self.session, open) {
            Ok(committed) => Ok(StepUpdate {
                committed,
                gradient,
            }),
            Err(error) => {
                self.held = Some(gradient);
                Err(error.into())
            }
        }
    }

    fn shards(&self) -> Result<ShardPlan, TrainError> {
        assign(&self.member, self.plan.shards)
    }

    /// Begins the next step.
    fn begin(&self) -> Result<ComputeStep, TrainError> {
        let open = self.session.begin_step();
        let plan = self.shards()?;
        let order = self.plan.batches.order(open.batch().epoch);
        let positions = open.batch().positions.clone();
        let shards = open.run().map(|shard| {
            let within = plan.samples(Shard(shard), positions.end - positions.start);
            let ids = within.map(|position| order.sample(positions.start + position));
            ShardSamples {
                shard: Shard(shard),
                ids: ids.collect(),
            }
        });
        Ok(ComputeStep {
            shards: shards.collect(),
            sum: TreeSum::new(self.plan.shards),
            added: 0,
            elements: None,
            open,
        })
    }

    /// Compares the states once more after the last step, and ends the membership.
    fn finish(&mut self) -> Result<LoopPhase, TrainError> {
        self.session.verify()?;
        match self.member.finish() {
            true => Ok(LoopPhase::Complete),
            false => self.join_next("a member has not received the last outcome"),
        }
    }

    fn join_next(&mut self, cause: &str) -> Result<LoopPhase, TrainError> {
        self.member.join_next(cause)?;
        Ok(LoopPhase::Joined)
    }

    /// Leaves a generation that failed, and joins the next one.
    fn leave(&mut self, error: &TrainError) -> Result<LoopPhase, TrainError> {
        let cause = error.to_string();
        self.member.group.abort(&cause);
        self.join_next(&cause)
    }

    fn can_recover(&self, error: &TrainError) -> bool {
        self.member.can_rejoin() && error.recovery() == Recovery::Rejoin
    }

    /// Brings all members of a generation to the same step. Returns the update that this rank missed, if any; it is
    /// applied before the state is copied.
    fn rejoin(&mut self, state: &mut [&mut [f32]]) -> Result<Option<StepUpdate>, TrainError> {
        let (shards, holds) = (self.shards()?, self.held.is_some());
        let mut entry = self.member.rejoin(&mut self.session, shards, holds)?;
        let held = self.held.take();
        if let (Some(committed), Some(gradient)) = (entry.committed.take(), held) {
            self.phase = LoopPhase::CatchUp(entry);
            return Ok(Some(StepUpdate {
                committed,
                gradient,
            }));
        }
        self.heal(entry, state)?;
        Ok(None)
    }

    /// Copies the state from the members that have it to those that need it.
    fn heal(
        &mut self,
        entry: GenerationEntry,
        state: &mut [&mut [f32]],
    ) -> Result<LoopPhase, TrainError> {
        if self.member.heal(&mut self.session, entry, state)? {
            self.member.healed(&mut self.session, hash(state));
        }
        Ok(LoopPhase::Ready)
    }
}

/// Assigns the shards to the ranks of the member's group. More workers than shards are spares.
fn assign(member: &JobGroup, shards: u32) -> Result<ShardPlan, TrainError> {
    let world_size = member.world_size();
    let plan = world_size.and_then(|world_size| {
        ShardPlan::with_spares(shards, world_size, world_size.get().min(shards))
    });
    plan.ok_or_else(|| TrainError::Impossible {
        problem: format!("cannot divide a batch into {shards} shards"),
        hint: "set `StepLoopPlan::shards` to at least 1".to_owned(),
    })
}

/// Returns the hash of all parts of a state.
fn hash(state: &[&mut [f32]]) -> u64 {
    state.iter().fold(0, |all: u64, part| {
        all.rotate_left(7) ^ weight_hash::hash(part)
    })
}
