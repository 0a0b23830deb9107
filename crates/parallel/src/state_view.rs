//! [`StateView`] and [`StateEdit`]: the state of a run on a rank, for all methods of distributing steps.
//!
//! In methods with rounds, a replica on a group of one has the weights, and the method adds vectors. A replica alone knows neither
//! these vectors nor the ranks of the run, so the training loop never sees it: it reads through a view, and changes through an edit,
//! which first forgets a round that began with other values.
//!
//! The elements of the state that ranks divide among themselves are numbered: the flat state of the model, then
//! each vector whose elements are on different ranks.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, GroupRank, Step, weight_hash};
use ronde_engine::{Activation, Device, GradientScale};
use ronde_protocol::holdings::HeldRanges;

use crate::distributed::DistributedVector;
use crate::error::ParallelError;
use crate::state::ModelState;
use crate::step_method::{MicroBatch, ReducedGradient};
use crate::synchronous::{ComputeTimes, SynchronousStrategy};

/// How the elements of a vector of the state belong to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorKind {
    /// It has an element for each one of the flat state, so that the ranks may divide it.
    Flat,
    /// Every rank holds all elements, such as the loss scale.
    Whole,
    /// Each rank holds other elements: see [`DistributedVector`].
    Distributed,
}

/// The part of a vector of the state that a rank holds.
#[derive(Debug)]
pub struct HeldVector<'a> {
    /// How its elements belong to ranks.
    pub kind: VectorKind,
    /// The elements.
    pub held: Cow<'a, HeldRanges>,
    /// Their values, one held range after the other.
    pub values: &'a [f32],
}

/// The part of a vector of the state that a rank holds, mutable.
#[derive(Debug)]
pub struct HeldVectorMut<'a> {
    /// The elements.
    pub held: Cow<'a, HeldRanges>,
    /// Their values, one held range after the other.
    pub values: &'a mut [f32],
}

impl<'a> HeldVectorMut<'a> {
    /// Describes a vector that this rank holds completely.
    pub fn whole(values: &'a mut [f32]) -> Self {
        let held = HeldRanges::new(std::iter::once(0..values.len()));
        Self {
            held: Cow::Owned(held),
            values,
        }
    }
}

/// A vector of the state after the weights.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RunVector<'a> {
    /// It has the elements that the rank updates.
    Flat(&'a [f32]),
    Whole(&'a [f32]),
    Distributed(&'a DistributedVector),
}

/// The same, mutable.
#[derive(Debug)]
pub(crate) enum RunVectorMut<'a> {
    Flat(&'a mut [f32]),
    Whole(&'a mut [f32]),
    Distributed(&'a mut DistributedVector),
}

/// The numbers by which the reduced gradient of a method is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MeanGradient {
    /// The counted targets, and the factors of the loss.
    OverTargets,
    /// This number of replicas, or the counted targets.
    OverReplicas(Option<u64>),
    /// None, because the gradient is not kept.
    Unknown,
}

/// The state that a method with rounds adds to its replica.
pub(crate) struct RoundState<'a> {
    /// The ranks of the run, which all have the whole state of the model.
    pub(crate) ranks: usize,
    pub(crate) rank: GroupRank,
    /// Whether the optimizer states of the replica belong to the state of the run.
    pub(crate) has_optimizer: bool,
    /// The vectors after the replica's own.
    pub(crate) vectors: Vec<RunVector<'a>>,
}

impl RoundState<'_> {
    /// Returns the state of a method that adds nothing to the replica of each rank.
    pub(crate) fn of_replicas(group: &dyn Group) -> Self {
        Self {
            ranks: group.size(),
            rank: group.rank(),
            has_optimizer: true,
            vectors: Vec::new(),
        }
    }
}

/// The state of a run on this rank, and how the ranks divide it.
pub struct StateView<'a> {
    replica: &'a SynchronousStrategy,
    round: Option<RoundState<'a>>,
    mean: MeanGradient,
}

impl<'a> StateView<'a> {
    /// Returns the state of a strategy without rounds.
    pub(crate) fn of(replica: &'a SynchronousStrategy, mean: MeanGradient) -> Self {
        let round = None;
        Self {
            replica,
            round,
            mean,
        }
    }

    /// Returns the state of a strategy with rounds.
    pub(crate) fn of_rounds(
        replica: &'a SynchronousStrategy,
        round: RoundState<'a>,
        mean: MeanGradient,
    ) -> Self {
        Self {
            replica,
            round: Some(round),
            mean,
        }
    }

    /// Returns the weights and buffers of the model that this rank has.
    #[must_use]
    pub fn model(&self) -> &'a ModelState {
        self.replica.slices().weights()
    }

    /// Returns the vectors after the weights.
    fn others(&self) -> impl Iterator<Item = RunVector<'a>> + '_ {
        let has_optimizer = self.round.as_ref().is_none_or(|round| round.has_optimizer);
        let own = self.replica.slices().vectors();
        let round = self.round.iter().flat_map(|round| &round.vectors);
        own.take_while(move |_| has_optimizer).chain(round.copied())
    }

    /// Returns the part of each vector of the state that this rank has: the weights and buffers that it computes with or
    /// updates, then the optimizer states, the loss scale if there is one, and vectors of the method. Another rank needs all of them to
    /// continue from the last applied step.
    #[must_use]
    pub fn vectors(&self) -> Vec<HeldVector<'a>> {
        let held = self.replica.slices().held();
        let weights = HeldVector {
            kind: VectorKind::Flat,
            held: Cow::Borrowed(self.model().stored()),
            values: self.model().values(),
        };
        let others = self.others().map(|vector| match vector {
            RunVector::Flat(values) => HeldVector {
                kind: VectorKind::Flat,
                held: Cow::Borrowed(held),
                values,
            },
            RunVector::Whole(values) => HeldVector {
                kind: VectorKind::Whole,
                held: Cow::Owned(HeldRanges::new(std::iter::once(0..values.len()))),
                values,
            },
            RunVector::Distributed(vector) => HeldVector {
                kind: VectorKind::Distributed,
                held: Cow::Borrowed(vector.held()),
                values: vector.held_values(),
            },
        });
        std::iter::once(weights).chain(others).collect()
    }

    /// Returns the vectors whose elements are on different ranks, in the order of [`StateView::vectors`].
    #[must_use]
    pub fn distributed(&self) -> Vec<&'a DistributedVector> {
        let distributed = |vector| match vector {
            RunVector::Distributed(vector) => Some(vector),
            RunVector::Flat(_) | RunVector::Whole(_) => None,
        };
        self.others().filter_map(distributed).collect()
    }

    /// Returns the number of elements that ranks may divide.
    #[must_use]
    pub fn elements(&self) -> usize {
        let ranges = self.distributed_ranges();
        ranges.last().map_or(self.model().len(), |range| range.end)
    }

    /// Returns the range of each distributed vector among the elements that ranks may divide.
    #[must_use]
    pub fn distributed_ranges(&self) -> Vec<Range<usize>> {
        distributed_ranges(self.model(), self.distributed())
    }

    /// Returns the elements of the flat state that this rank updates.
    #[must_use]
    pub fn held_of_model(&self) -> &'a HeldRanges {
        self.replica.slices().held()
    }

    /// Returns the weights and buffers of each range of elements that this rank updates.
    pub fn held_weights(&self) -> impl Iterator<Item = &'a [f32]> + Clone + use<'a> {
        let model = self.model();
        let held = self.held_of_model().ranges().iter();
        held.filter_map(|range| model.get(range))
    }

    /// Returns the elements that this rank holds.
    #[must_use]
    pub fn held(&self) -> HeldRanges {
        self.joined(self.held_of_model(), DistributedVector::held)
    }

    /// Returns the elements that each rank of the group holds in training; all of them on every rank, unless the state is
    /// divided.
    #[must_use]
    pub fn layout(&self) -> Vec<HeldRanges> {
        let of_model = match &self.round {
            Some(round) => self.on_every_rank(round),
            None => self.replica.division().held(),
        };
        let each = of_model.iter().enumerate();
        each.map(|(rank, held)| self.joined(held, |vector| &vector.layout()[rank]))
            .collect()
    }

    /// Returns the elements of the flat state that each rank of the group answers for. Together, the ranks answer for each
    /// element once if the state is divided; otherwise each answers for all of them.
    #[must_use]
    pub fn owned(&self) -> Vec<HeldRanges> {
        match &self.round {
            Some(round) => self.on_every_rank(round),
            None => self.replica.division().owned(),
        }
    }

    /// Returns the elements of [`StateView::layout`] that each rank needs to train: those that are not second copies.
    #[must_use]
    pub fn needed(&self) -> Vec<HeldRanges> {
        match &self.round {
            Some(_) => self.layout(),
            None => self.replica.division().needed(),
        }
    }

    /// Returns the number of elements, from the first one of the flat state, whose weights were gathered after the last update, or
    /// after the weights were exchanged for others. A gathering that fails has gathered a part.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.replica.slices().gathered()
    }

    /// Returns the hash of the part of the weights and buffers of this rank's layers that is compared after `step`, or of all
    /// of them without one. Ranks with the same layers have the same hash. If weights are gathered for each pass, it is the one
    /// of the last [`StateEdit::gather`]. Vectors that a method adds and every rank holds are compared, too.
    #[must_use]
    pub fn digest(&self, step: Option<Step>) -> u64 {
        let vectors = self.round.iter().flat_map(|round| &round.vectors);
        let whole = vectors.filter_map(|vector| match vector {
            RunVector::Whole(values) => Some(*values),
            RunVector::Flat(_) | RunVector::Distributed(_) => None,
        });
        let whole: Vec<&[f32]> = whole.collect();
        let digest = self.replica.digest(step);
        match whole.is_empty() {
            true => digest,
            false => digest ^ weight_hash::hash_parts(whole.into_iter()).rotate_left(1),
        }
    }

    /// Passes the mean gradient over `targets` counted targets of each trained tensor to `visit`, with the index of the tensor, in runs of its
    /// elements in order: of the elements that this rank reports. Together, the ranks of the group report each element
    /// once. Visits nothing if the method keeps no gradient. Cost: one pass over these elements.
    pub fn visit_gradient(
        &self,
        reduced: &ReducedGradient,
        targets: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        let reports = match &self.round {
            Some(round) => round.rank == GroupRank(0),
            None => self.replica.reports_gradient(),
        };
        let slices = self.replica.slices();
        let scale = match self.mean {
            MeanGradient::OverTargets => GradientScale::new(targets.max(1), slices.inverse_scale()),
            MeanGradient::OverReplicas(replicas) => {
                GradientScale::new(replicas.unwrap_or(targets.max(1)), 1.0)
            }
            MeanGradient::Unknown => return,
        };
        if reports {
            slices.visit_gradient(&reduced.parts, scale, visit);
        }
    }

    fn on_every_rank(&self, round: &RoundState<'_>) -> Vec<HeldRanges> {
        vec![self.held_of_model().clone(); round.ranks]
    }

    /// Joins elements of the flat state with elements of each distributed vector.
    fn joined<'b>(
        &'b self,
        of_model: &HeldRanges,
        of: impl Fn(&'a DistributedVector) -> &'a HeldRanges,
    ) -> HeldRanges {
        let distributed = self
            .distributed()
            .into_iter()
            .zip(self.distributed_ranges());
        let shifted = distributed.flat_map(|(vector, place)| {
            let ranges = of(vector).ranges().iter();
            ranges.map(move |range| range.start + place.start..range.end + place.start)
        });
        HeldRanges::new(of_model.ranges().iter().cloned().chain(shifted))
    }
}

/// Returns the range of each distributed vector, after the elements of the model.
fn distributed_ranges<'a>(
    model: &ModelState,
    distributed: impl IntoIterator<Item = &'a DistributedVector>,
) -> Vec<Range<usize>> {
    let mut start = model.len();
    let next = |vector: &DistributedVector| {
        let range = start..start + vector.len();
        start = range.end;
        range
    };
    distributed.into_iter().map(next).collect()
}

/// Returns the ranges within a part of the elements, relative to its start.
fn shifted_back(held: &HeldRanges, part: &Range<usize>) -> HeldRanges {
    let within = held.within(part);
    HeldRanges::new(within.map(|range| range.start - part.start..range.end - part.start))
}

/// The state of a run on this rank, for changes from outside.
#[must_use = "a change takes effect with `reload` or `gather`"]
pub struct StateEdit<'a> {
    replica: &'a mut SynchronousStrategy,
    has_optimizer: bool,
    vectors: Vec<RunVectorMut<'a>>,
}

impl<'a> StateEdit<'a> {
    /// Returns the state of a strategy that adds no vectors to it.
    pub(crate) fn of(replica: &'a mut SynchronousStrategy) -> Self {
        Self::of_rounds(replica, true, Vec::new())
    }

    /// Returns the state of a strategy with rounds. `vectors` are those after the vectors of the replica, whose optimizer states may
    /// not belong to the state of the run.
    pub(crate) fn of_rounds(
        replica: &'a mut SynchronousStrategy,
        has_optimizer: bool,
        vectors: Vec<RunVectorMut<'a>>,
    ) -> Self {
        Self {
            replica,
            has_optimizer,
            vectors,
        }
    }

    /// Returns the weights and buffers of the model that this rank has.
    #[must_use]
    pub fn model(&self) -> &ModelState {
        self.replica.slices().weights()
    }

    /// Returns the elements of the flat state that this rank updates.
    #[must_use]
    pub fn held_of_model(&self) -> &HeldRanges {
        self.replica.slices().held()
    }

    /// Returns the part of each vector that this rank has, in the order of [`StateView::vectors`].
    pub fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        let has_optimizer = self.has_optimizer;
        let (model, held, own) = self.replica.slices_mut().vectors_mut();
        let stored = model.stored().clone();
        let weights = HeldVectorMut {
            held: Cow::Owned(stored),
            values: model.values_mut(),
        };
        let round = self.vectors.iter_mut().map(RunVectorMut::reborrow);
        let others = own.take_while(|_| has_optimizer).chain(round);
        let others = others.map(|vector| match vector {
            RunVectorMut::Flat(values) => HeldVectorMut {
                held: Cow::Borrowed(held),
                values,
            },
            RunVectorMut::Whole(values) => HeldVectorMut::whole(values),
            RunVectorMut::Distributed(vector) => {
                let (held, values) = vector.held_mut();
                HeldVectorMut {
                    held: Cow::Borrowed(held),
                    values,
                }
            }
        });
        std::iter::once(weights).chain(others).collect()
    }

    /// Writes values of a range of the flat state to the weights and buffers, as far as this rank has them.
    pub fn write(&mut self, elements: &Range<usize>, values: &[f32]) {
        let (model, ..) = self.replica.slices_mut().vectors_mut();
        model.write(elements, values);
    }

    /// Writes the initial weights and buffers of the elements that this rank has.
    ///
    /// # Errors
    /// A layer does not know its initial values any more.
    pub fn reset(&mut self) -> Result<(), ParallelError> {
        self.replica.reset()
    }

    /// Holds other elements from now on. Values that were held before are kept, the remaining ones are zeros until the
    /// caller writes them.
    pub fn hold(&mut self, elements: &HeldRanges) {
        let has_optimizer = self.has_optimizer;
        let (model, _, own) = self.replica.slices_mut().vectors_mut();
        let of_model = 0..model.len();
        let round = self.vectors.iter_mut().map(RunVectorMut::reborrow);
        let mut start = of_model.end;
        for vector in own.take_while(|_| has_optimizer).chain(round) {
            if let RunVectorMut::Distributed(vector) = vector {
                let own = start..start + vector.len();
                vector.hold(shifted_back(elements, &own));
                start = own.end;
            }
        }
        self.replica.hold(shifted_back(elements, &of_model));
    }

    /// Lets each rank have second copies of these elements only, by rank, starting with the next step, until another group is
    /// entered. All ranks call it together. [`StateEdit::hold`] must follow.
    pub fn limit_copies(&mut self, elements: Vec<HeldRanges>) {
        self.replica.limit_copies(elements);
    }

    /// Loads the state into the model.
    pub fn reload(self) {
        self.replica.load_layers();
    }

    /// Receives the weights of this rank's layers from the ranks that hold them, from element `first` of the flat state on, because
    /// every rank has the earlier ones, and loads them into the model. If weights are gathered for each pass, only those are received
    /// whose hash [`StateView::digest`] returns after `step`. All ranks of the group call it together after
    /// [`StepMethod::apply`](crate::StepMethod::apply), and may repeat it.
    ///
    /// # Errors
    /// A rank was lost. The weights that this rank holds are up to date.
    pub fn gather(self, first: usize, step: Option<Step>) -> Result<(), ParallelError> {
        self.replica.gather(first, step)
    }
}

impl RunVectorMut<'_> {
    fn reborrow(&mut self) -> RunVectorMut<'_> {
        match self {
            Self::Flat(values) => RunVectorMut::Flat(values),
            Self::Whole(values) => RunVectorMut::Whole(values),
            Self::Distributed(vector) => RunVectorMut::Distributed(vector),
        }
    }
}

/// The batches of an evaluation that a rank takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationPart {
    /// The number of samples of a batch, which is the same on all ranks.
    pub batch: u64,
    /// The number of groups of ranks that divide the batches among themselves.
    pub groups: u64,
    /// The group of this rank, which takes every batch number `group + i * groups`; `None`: a spare, which takes none.
    pub group: Option<u64>,
    /// Whether the rank needs the samples.
    pub loads: bool,
    /// Whether the rank takes part in every round in which any group has a batch, without samples if its own group has none.
    pub joins_every_round: bool,
}

/// The model that a rank computes with: its evaluation between two steps, and its times. A round that continues after a failure stays.
pub struct ModelHandle<'a> {
    replica: &'a mut SynchronousStrategy,
    part: EvaluationPart,
    /// Small models that are computed with it.
    beside: Vec<&'a mut SynchronousStrategy>,
}

impl<'a> ModelHandle<'a> {
    /// Returns the model of a strategy without rounds.
    pub(crate) fn of(replica: &'a mut SynchronousStrategy) -> Self {
        Self {
            part: replica.evaluation_part(),
            replica,
            beside: Vec::new(),
        }
    }

    /// Returns the model of a strategy with rounds. The batches are divided among the groups of its layout, or among all ranks.
    pub(crate) fn of_rounds(
        replica: &'a mut SynchronousStrategy,
        (group, layout): (&dyn Group, Option<&StepLayout>),
    ) -> Self {
        let rank = group.rank();
        let (groups, own) = match layout {
            Some(layout) => (
                layout.replicas() as u64,
                layout.place(rank).map(|place| place.replica as u64),
            ),
            None => (group.size() as u64, Some(u64::from(rank.0))),
        };
        let part = EvaluationPart {
            groups,
            group: own,
            loads: own.is_some(),
            ..replica.evaluation_part()
        };
        Self {
            replica,
            part,
            beside: Vec::new(),
        }
    }

    /// Adds small models that are computed with it.
    pub(crate) fn with(
        mut self,
        beside: impl Iterator<Item = &'a mut SynchronousStrategy>,
    ) -> Self {
        self.beside.extend(beside);
        self
    }

    /// Computes the layers on another device. No step may be in flight.
    pub fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.replica.set_device(device);
        for model in &mut self.beside {
            model.set_device(device);
        }
    }

    /// Returns the computing times since the last call.
    pub fn take_times(&mut self) -> ComputeTimes {
        self.replica.take_times()
    }

    /// Returns the batches of an evaluation that this rank takes part in.
    #[must_use]
    pub fn evaluation_part(&self) -> EvaluationPart {
        self.part
    }

    /// Computes the outputs of samples in evaluation mode, with running statistics. Takes the features out of the batch. The
    /// ranks of a pipeline call it together, batch by batch; those without the first layer need no features, and only the one
    /// with the last layer gets the outputs. Without a batch, the rank
    /// joins a round in which its group has none: see [`EvaluationPart::joins_every_round`].
    ///
    /// # Errors
    /// The engine failed, or a rank was lost.
    pub fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        self.replica.predict(batch)
    }

    /// Exchanges the weights of the held elements with `values`, one held range after the other. Takes effect with
    /// [`ModelHandle::gather`], or with [`ModelHandle::reload`] if the state is not divided.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn swap_weights(&mut self, values: &mut [f32]) {
        self.replica.slices_mut().swap_weights(values);
    }

    /// Loads the weights into the model.
    pub fn reload(&mut self) {
        self.replica.load_layers();
    }

    /// Does [`StateEdit::gather`].
    ///
    /// # Errors
    /// As [`StateEdit::gather`].
    pub fn gather(&mut self, first: usize, step: Option<Step>) -> Result<(), ParallelError> {
        self.replica.gather(first, step)
    }
}
