//! [`step_bytes`]: the bytes that each rank sends in a step, counted in its program and in the schedules of its collectives.

use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::step_layout::MeshPlace;
use ronde_core::{GroupRank, Operation, PartTransfer};
use ronde_protocol::holdings::second_holders;
use ronde_schedule::{
    Algorithm, Border, Hosts, ProgramAction, Schedule, ScheduleError, all_gather, barrier,
    choose_on, exact_sum_on, exact_sum_scatter, programs,
};
use serde::Serialize;

use crate::candidate::LayoutCandidate;
use crate::collective_times::GroupShape;
use crate::error::AdviseError;
use crate::rank_hosts::RankHosts;
use crate::step_request::StepRequest;

const F32_BYTES: usize = 4;
/// The bytes of a length, which ranks exchange before they gather.
const LENGTH_BYTES: usize = 8;

/// Messages and their bytes, without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SentBytes {
    /// The number of messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl SentBytes {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }

    fn message(elements: usize) -> Self {
        Self {
            messages: 1,
            bytes: elements * F32_BYTES,
        }
    }

    fn of(schedule: &Schedule, element_bytes: usize) -> Self {
        let cost = schedule.cost(element_bytes);
        Self {
            messages: cost.messages_sent,
            bytes: cost.bytes_sent,
        }
    }
}

/// The bytes that one rank sends in a step, by purpose. Votes are not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RankBytes {
    /// Values and their gradients, to other stages of a pipeline.
    pub borders: SentBytes,
    /// Values, to ranks with other parts of the same layers.
    pub parts: SentBytes,
    /// Gradients, to ranks with the same layers.
    pub gradients: SentBytes,
    /// Weights of a divided state, to ranks with the same layers.
    pub weights: SentBytes,
    /// Gradients, to the rank with the second copy of the state.
    pub copies: SentBytes,
}

impl RankBytes {
    /// Returns the sum over all purposes.
    #[must_use]
    pub fn total(&self) -> SentBytes {
        let mut total = self.borders;
        for more in [self.parts, self.gradients, self.weights, self.copies] {
            total.add(more);
        }
        total
    }
}

/// Returns the bytes that each rank of a layout sends in a step in which all shards have their largest size. Collectives use the
/// algorithm of the request, or the one that the request's costs choose. Cost: makes the schedules of all collectives of a step.
///
/// # Errors
/// A layout that is not consistent: a bug.
pub fn step_bytes(
    candidate: &LayoutCandidate,
    request: &StepRequest<'_>,
) -> Result<Vec<RankBytes>, AdviseError> {
    let counting = StepCounting::new(candidate, request)?;
    let ranks = 0..candidate.layout.members() as u32;
    let each = ranks.map(|rank| counting.of_rank(GroupRank(rank)));
    Ok(each.collect::<Result<_, _>>()?)
}

/// The collectives of a layout.
struct StepCounting<'a> {
    candidate: &'a LayoutCandidate,
    request: &'a StepRequest<'a>,
    ranks: RankHosts<'a>,
    /// The number of parts into which layers are divided.
    parts: u32,
    /// The assignment of parts to ranks; `None` if each rank has all parts.
    part_sum: Option<ExactSum>,
}

/// A rank among those that run a collective.
struct GroupPlace<'a> {
    rank: GroupRank,
    group: &'a GroupShape,
}

impl<'a> StepCounting<'a> {
    fn new(
        candidate: &'a LayoutCandidate,
        request: &'a StepRequest<'a>,
    ) -> Result<Self, AdviseError> {
        let workers_per_host = request.cluster.workers_per_host(request.threads)? as usize;
        let layout = &candidate.layout;
        let parts = request.worker.alone.parts.max(1);
        let ends = (0..layout.tensors()).map(|tensor| layout.parts_at(tensor, parts).end);
        let part_sum = ExactSum::new(std::iter::once(0).chain(ends).collect());
        Ok(Self {
            candidate,
            request,
            ranks: RankHosts::new(layout, workers_per_host),
            parts,
            part_sum: part_sum.filter(|_| layout.tensors() > 1),
        })
    }

    fn of_rank(&self, rank: GroupRank) -> Result<RankBytes, ScheduleError> {
        let layout = &self.candidate.layout;
        let mut found = RankBytes::default();
        let Some(place) = layout.place(rank) else {
            return Ok(found);
        };
        let choice = self.candidate.choice;
        let shape = (self.candidate).program_shape(place.replica, self.request.in_lock_step);
        let programs = programs(choice.schedule, &shape);
        let same_layers = self.ranks.same_layers(place.column, place.tensor);
        for action in &programs[place.column] {
            self.add_action(action, place, &same_layers, &mut found)?;
        }
        if let Some(copied) = self.copied(rank) {
            copied.into_iter().for_each(|copy| found.copies.add(copy));
        }
        let gathers = match choice.zero {
            0 => 0,
            // Weights that are compared are gathered, those of every part of them in as many steps.
            3 => self.request.hash_parts.max(1),
            _ => 1,
        };
        if gathers > 0 {
            let mut weights = SentBytes::default();
            for (bucket, region) in self.own_slices(place) {
                let region = &self.candidate.buckets[bucket].regions[region];
                // Empty ones are not compared.
                if choice.zero < 3 || region.elements > 0 {
                    weights.add(gather(place.replica, &region.slices));
                }
            }
            found.weights.messages += weights.messages / gathers as usize;
            found.weights.bytes += weights.bytes / gathers as usize;
        }
        Ok(found)
    }

    fn add_action(
        &self,
        action: &ProgramAction,
        place: MeshPlace,
        same_layers: &GroupShape,
        found: &mut RankBytes,
    ) -> Result<(), ScheduleError> {
        let costs = &self.request.worker.alone;
        let layers = |bucket: usize| {
            let layers = self.candidate.buckets[bucket].layers.clone();
            costs.layers[layers].iter()
        };
        let member = GroupPlace {
            rank: GroupRank(place.replica as u32),
            group: same_layers,
        };
        match action {
            ProgramAction::Send(border) => found.borders.add(self.border(*border, place)),
            ProgramAction::Reduce { bucket } => {
                for region in self.own_regions(place, *bucket) {
                    let sent = self.reduction(&member, *bucket, region)?;
                    found.gradients.add(sent);
                }
            }
            ProgramAction::Gather { bucket } => {
                for region in self.own_regions(place, *bucket) {
                    let slices = &self.candidate.buckets[*bucket].regions[region].slices;
                    found.weights.add(gather(place.replica, slices));
                }
            }
            ProgramAction::Forward { bucket, shards } => {
                for layer in layers(*bucket) {
                    let transfers = &layer.transfers.forward;
                    self.add_transfers(transfers, shards, place, &mut found.parts)?;
                }
            }
            ProgramAction::Backward { bucket, shards } => {
                for layer in layers(*bucket) {
                    for transfers in [&layer.transfers.backward, &layer.transfers.weights] {
                        self.add_transfers(transfers, shards, place, &mut found.parts)?;
                    }
                }
            }
            ProgramAction::BackwardInput { bucket, shards } => {
                for layer in layers(*bucket) {
                    let transfers = &layer.transfers.backward;
                    self.add_transfers(transfers, shards, place, &mut found.parts)?;
                }
            }
            ProgramAction::BackwardWeights { bucket, shards } => {
                for layer in layers(*bucket) {
                    let transfers = &layer.transfers.weights;
                    self.add_transfers(transfers, shards, place, &mut found.parts)?;
                }
            }
            ProgramAction::Loss { shards } => {
                self.add_transfers(&costs.loss_transfers, shards, place, &mut found.parts)?;
            }
            ProgramAction::Receive(_) | ProgramAction::Release { .. } => {}
        }
        Ok(())
    }

    /// Returns the message of a border: the number of samples, then the values.
    fn border(&self, border: Border, place: MeshPlace) -> SentBytes {
        let stage = border.from.min(border.to);
        let last = self.candidate.layout.stages()[stage].layers.end - 1;
        let own = self.candidate.layout.parts_at(place.tensor, self.parts);
        let output_bytes = self.request.worker.alone.layers[last].output_bytes_of(&own);
        SentBytes::message(1 + output_bytes / F32_BYTES)
    }

    /// Returns the regions of a bucket that a rank has, also those without elements.
    fn own_regions(&self, place: MeshPlace, bucket: usize) -> Vec<usize> {
        let own = self.candidate.layout.parts_at(place.tensor, self.parts);
        let regions = 0..self.candidate.buckets[bucket].regions.len();
        let is_own = |region: &usize| {
            region
                .checked_sub(1)
                .is_none_or(|part| own.contains(&(part as u32)))
        };
        regions.filter(is_own).collect()
    }

    /// Returns the buckets and regions that a rank computes with.
    fn own_slices(&self, place: MeshPlace) -> Vec<(usize, usize)> {
        let stages = self.candidate.layout.stages();
        let buckets = self.candidate.buckets.iter().enumerate();
        let own = buckets.filter(|(_, bucket)| stages[bucket.stage].column == place.column);
        own.flat_map(|(index, _)| {
            let regions = self.own_regions(place, index).into_iter();
            regions.map(move |region| (index, region))
        })
        .collect()
    }

    fn is_scattered(&self) -> bool {
        self.candidate.choice.zero > 0 && self.candidate.layout.replicas() > 1
    }

    /// Returns the bytes that a rank sends for the sum of the gradients of a region.
    fn reduction(
        &self,
        member: &GroupPlace<'_>,
        bucket: usize,
        region: usize,
    ) -> Result<SentBytes, ScheduleError> {
        let sum = self.candidate.layout.shards().exact_sum();
        let region = &self.candidate.buckets[bucket].regions[region];
        if region.elements == 0 {
            // The ranks only wait for each other.
            let tokens = barrier(member.rank.index(), member.group.size());
            return Ok(SentBytes::of(&tokens, 1));
        }
        if self.is_scattered() {
            let schedule = exact_sum_scatter(&sum, member.rank, &region.slices)?;
            return Ok(SentBytes::of(&schedule, F32_BYTES));
        }
        self.exact_sum(member, &sum, region.elements)
    }

    fn exact_sum(
        &self,
        member: &GroupPlace<'_>,
        sum: &ExactSum,
        elements: usize,
    ) -> Result<SentBytes, ScheduleError> {
        if member.group.size() < 2 {
            return Ok(SentBytes::default());
        }
        let hosts = Hosts::new(&member.group.hosts);
        let algorithm = self.algorithm(sum, &hosts, elements);
        let schedule = exact_sum_on(algorithm, sum, member.rank, &hosts, elements)?;
        Ok(SentBytes::of(&schedule, F32_BYTES))
    }

    fn algorithm(&self, sum: &ExactSum, hosts: &Hosts, elements: usize) -> Algorithm {
        let (model, preferred) = (&self.request.links.collectives, self.request.algorithm);
        let operation = Operation::ExactSum(sum.clone());
        choose_on(model, preferred, &operation, hosts, elements, F32_BYTES).algorithm
    }

    /// Adds the bytes that a rank sends to those with other parts, for each of some shards.
    fn add_transfers(
        &self,
        transfers: &[PartTransfer],
        shards: &Range<u32>,
        place: MeshPlace,
        found: &mut SentBytes,
    ) -> Result<(), ScheduleError> {
        let Some(sum) = &self.part_sum else {
            return Ok(());
        };
        let group = self.ranks.other_parts_of(place.column, place.replica);
        let member = GroupPlace {
            rank: GroupRank(place.tensor as u32),
            group: &group,
        };
        for transfer in transfers {
            let lens_of_ranks = |elements: &[usize]| -> Vec<usize> {
                let of_rank = |rank: usize| {
                    let parts = sum.run(GroupRank(rank as u32));
                    let own = &elements[parts.start as usize..parts.end as usize];
                    own.iter().sum()
                };
                (0..sum.size()).map(of_rank).collect()
            };
            let sent = match transfer {
                PartTransfer::Sum { elements } => self.exact_sum(&member, sum, *elements)?,
                PartTransfer::ScatteredSum { elements } => {
                    let lens = lens_of_ranks(elements);
                    let schedule = exact_sum_scatter(sum, member.rank, &lens)?;
                    SentBytes::of(&schedule, F32_BYTES)
                }
                PartTransfer::Gather { elements } => gather(place.tensor, &lens_of_ranks(elements)),
            };
            shards.clone().for_each(|_| found.add(sent));
        }
        Ok(())
    }

    /// Returns the second copies that a rank sends: of the slices that their holder does not receive itself.
    fn copied(&self, rank: GroupRank) -> Option<Vec<SentBytes>> {
        let (layout, choice) = (&self.candidate.layout, self.candidate.choice);
        if !choice.is_held_once() || choice.copies < 2 {
            return None;
        }
        let holder = second_holders(&self.ranks.all().hosts)[rank.index()];
        let of = |rank: GroupRank| {
            let place = layout.place(rank)?;
            // Without a division of the state, all ranks receive the whole sum.
            let slice = if self.is_scattered() {
                place.replica
            } else {
                0
            };
            let own = self.own_slices(place).into_iter();
            Some(own.map(move |own| (own, slice)).collect::<Vec<_>>())
        };
        let held = of(GroupRank(holder as u32))?;
        let owned = of(rank)?.into_iter();
        let copied = owned.filter(|slice| !held.contains(slice));
        let elements = copied.map(|((bucket, region), slice)| {
            let region = &self.candidate.buckets[bucket].regions[region];
            match self.is_scattered() {
                true => region.slices[slice],
                false => region.elements,
            }
        });
        let sent = elements.filter(|elements| *elements > 0);
        Some(sent.map(SentBytes::message).collect())
    }
}

/// Returns the bytes that a rank sends to gather slices of some lengths: its length, then its slice.
fn gather(rank: usize, lens: &[usize]) -> SentBytes {
    if lens.len() < 2 {
        return SentBytes::default();
    }
    let mut sent = SentBytes::of(&all_gather(rank, &vec![1; lens.len()]), LENGTH_BYTES);
    sent.add(SentBytes::of(&all_gather(rank, lens), F32_BYTES));
    sent
}
