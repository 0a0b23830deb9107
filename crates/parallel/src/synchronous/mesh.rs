//! The groups of a rank in the mesh, and the parts of the state that it holds at its position there.
//!
//! Ranks with the same layers are a sub-group, which sums their gradients and compares their weights. Values between stages are
//! messages in the group of all ranks. A rank stores the elements that it computes with and those that it updates.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::step_layout::{MeshPlace, StepLayout};
use ronde_core::{Group, GroupRank};
use ronde_protocol::holdings::{HeldRanges, second_holders};

use super::SynchronousConfig;
use crate::bucket::Bucket;
use crate::error::ParallelError;
use crate::state::StateOutline;

/// The position of a rank among all ranks: the layout, and the groups that follow from it.
pub(super) struct MeshPosition {
    /// All ranks of the run.
    pub(super) all: Arc<dyn Group>,
    /// The layers and the shards of each rank.
    pub(super) layout: StepLayout,
    /// The ranks with the same layers and parts, which sum their gradients; `None` for a spare, and until they are connected.
    same_layers: Option<Arc<dyn Group>>,
    /// The ranks with the same layers and shards, which compute different parts; `None` if each rank computes all parts.
    pub(super) parts: Option<Arc<dyn Group>>,
    /// The number of parts into which layers are divided.
    part_count: u32,
    /// Whether the groups other than that of all ranks are connected.
    is_connected: bool,
}

impl MeshPosition {
    /// Returns the position of a rank before ranks with the same layers are connected. In a layout that does not divide the model,
    /// these are all ranks.
    pub(super) fn unconnected(all: Arc<dyn Group>, layout: StepLayout, part_count: u32) -> Self {
        let is_connected = !layout.divides_model();
        Self {
            same_layers: is_connected.then(|| all.clone()),
            parts: None,
            all,
            layout,
            part_count,
            is_connected,
        }
    }

    /// Connects the ranks with the same layers. All ranks call it together.
    fn connect(
        all: Arc<dyn Group>,
        layout: StepLayout,
        part_count: u32,
    ) -> Result<Self, ParallelError> {
        if !layout.divides_model() {
            return Ok(Self::unconnected(all, layout, part_count));
        }
        let place = layout.place(all.rank());
        let replica = place.map_or(0, |place| place.replica as u32);
        let connected = |colour: Option<u32>, key: u32, what: &str| {
            let group = all.sub_group(colour, key);
            group.map_err(|source| ParallelError::Exchange {
                action: format!("connect the workers with {what}"),
                source,
            })
        };
        let part = layout.model_part(all.rank());
        let same_layers = connected(part, replica, "the same layers")?;
        let mut parts = None;
        if layout.tensors() > 1 {
            let of_layers =
                |place: MeshPlace| (place.column * layout.replicas() + place.replica) as u32;
            let key = place.map_or(0, |place| place.tensor as u32);
            parts = connected(place.map(of_layers), key, "other parts of the same layers")?;
        }
        Ok(Self {
            all,
            layout,
            same_layers,
            parts,
            part_count,
            is_connected: true,
        })
    }

    /// Returns the position of this rank in another group or layout. Connects the ranks, unless those with the same layers stay the
    /// same. All ranks call it together.
    pub(super) fn enter(
        &self,
        all: Arc<dyn Group>,
        layout: StepLayout,
    ) -> Result<Self, ParallelError> {
        let shape = |of: &StepLayout| (of.members(), of.columns(), of.tensors());
        if !self.are_those_of(&all) || shape(&self.layout) != shape(&layout) {
            return Self::connect(all, layout, self.part_count);
        }
        Ok(Self {
            all,
            layout,
            same_layers: self.same_layers.clone(),
            parts: self.parts.clone(),
            ..*self
        })
    }

    /// Returns whether these are the connected groups of a group of all ranks.
    pub(super) fn are_those_of(&self, all: &Arc<dyn Group>) -> bool {
        self.is_connected && Arc::ptr_eq(&self.all, all)
    }

    /// Ends the groups other than that of all ranks, so that no rank waits in them.
    pub(super) fn abort_parts(&self) {
        let parts = self.parts.as_deref();
        for group in self.part().into_iter().chain(parts) {
            group.abort("another group of the same worker has failed");
        }
    }

    /// Returns the group of the ranks with the same layers, if these are not all ranks.
    pub(super) fn part(&self) -> Option<&dyn Group> {
        let part = self.same_layers.as_ref();
        let part = part.filter(|group| !Arc::ptr_eq(group, &self.all));
        part.map(|group| &**group)
    }

    /// Returns the ranks with the same layers.
    pub(super) fn same_layers(&self) -> Result<&Arc<dyn Group>, ParallelError> {
        self.same_layers.as_ref().ok_or_else(|| {
            let problem = "the workers with the same layers are not connected".to_owned();
            ParallelError::OutOfOrder { problem }
        })
    }

    pub(super) fn rank(&self) -> GroupRank {
        self.all.rank()
    }

    /// Returns this rank's coordinates; `None` for a spare.
    pub(super) fn place(&self) -> Option<MeshPlace> {
        self.layout.place(self.rank())
    }

    /// Returns the parts of the layers that this rank computes.
    pub(super) fn own_parts(&self) -> Range<u32> {
        self.layout.own_parts(self.rank(), self.part_count)
    }

    /// Returns the layers that this rank computes.
    pub(super) fn computed_layers(&self) -> Vec<Range<usize>> {
        let column = self.place().map(|place| place.column);
        let stages = self.layout.stages().iter();
        let own = stages.filter(|stage| Some(stage.column) == column);
        own.map(|stage| stage.layers.clone()).collect()
    }

    /// Returns the regions of the flat state that a rank computes with.
    pub(super) fn regions_of(&self, rank: GroupRank) -> OwnRegions {
        let own = self.layout.own_parts(rank, self.part_count);
        OwnRegions(match self.part_count {
            0 | 1 => 1..1,
            _ => own.start as usize + 1..own.end as usize + 1,
        })
    }

    /// Returns the elements of the layers and parts that this rank computes.
    pub(super) fn computed(&self, state: &StateOutline) -> HeldRanges {
        let layers: Vec<usize> = self.computed_layers().into_iter().flatten().collect();
        let own = self.regions_of(self.rank());
        let regions = state.regions.iter().enumerate();
        let own = regions.filter(|(region, _)| own.contains(region));
        HeldRanges::new(
            own.flat_map(|(_, region)| layers.iter().map(|&layer| region[layer].clone())),
        )
    }

    /// Returns the rank that has a stage of the pipeline of this rank.
    pub(super) fn rank_of_stage(&self, stage: usize) -> GroupRank {
        let column = self.layout.stages()[stage].column;
        let own = self.place();
        let (replica, tensor) = own.map_or((0, 0), |place| (place.replica, place.tensor));
        self.layout.rank_at(MeshPlace {
            column,
            replica,
            tensor,
        })
    }
}

/// The ranks that exchange second copies of their parts of the state with a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyPartners {
    /// The rank that holds the second copy of this rank's part.
    pub(super) holder: GroupRank,
    /// The rank of whose part this rank holds the second copy.
    pub(super) owner: GroupRank,
}

impl CopyPartners {
    /// Returns those of a rank; `None` if the layout has no second copies, or needs none because several ranks hold the same
    /// part anyway. `hosts` has the host of each rank.
    pub(super) fn of(
        rank: GroupRank,
        layout: &StepLayout,
        hosts: &[usize],
        config: &SynchronousConfig,
    ) -> Option<Self> {
        let members = layout.members();
        let is_held_once = layout.replicas() == 1 || config.zero.is_sharded();
        let copies = SynchronousConfig::copies_among(config.copies, members);
        if !is_held_once || copies < 2 || rank.index() >= members {
            return None;
        }
        // Servers have the copies of each other.
        let first = match layout.servers() {
            0 | 1 => 0,
            servers => members - servers,
        };
        let me = rank.index().checked_sub(first)?;
        let holders = second_holders(&hosts[first..members]);
        let owner = holders.iter().position(|&holder| holder == me)?;
        let at = |index: usize| GroupRank((first + index) as u32);
        (owner != me).then(|| Self {
            holder: at(holders[me]),
            owner: at(owner),
        })
    }
}

/// The regions of the flat state that a rank computes with: that of tensors that belong to no part, and those of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnRegions(Range<usize>);

impl OwnRegions {
    /// Returns whether a region is among them.
    pub(super) fn contains(&self, region: &usize) -> bool {
        *region == 0 || self.0.contains(region)
    }
}

/// How the ranks divide the state.
pub(crate) struct Division<'a> {
    pub(super) mesh: &'a MeshPosition,
    pub(super) buckets: &'a [Bucket],
    pub(super) hosts: Vec<usize>,
    pub(super) config: &'a SynchronousConfig,
    /// The elements whose second copy each rank may have, by rank; `None`: all.
    pub(super) limits: Option<&'a [HeldRanges]>,
}

impl Division<'_> {
    /// Returns the buckets of the layers and parts of a rank, each with the rank's coordinate along the data axis.
    fn buckets_of(&self, rank: GroupRank) -> impl Iterator<Item = (&Bucket, usize)> {
        let place = self.mesh.layout.place(rank);
        let own = self.mesh.regions_of(rank);
        let each = place.map(
            move |MeshPlace {
                      column, replica, ..
                  }| {
                let is_own = move |bucket: &&Bucket| {
                    self.mesh.layout.stages()[bucket.plan.stage].column == column
                        && own.contains(&bucket.plan.region)
                };
                let own = self.buckets.iter().filter(is_own);
                own.map(move |bucket| (bucket, replica))
            },
        );
        each.into_iter().flatten()
    }

    /// Returns the elements whose reduced gradient a rank receives in the reductions.
    pub(super) fn received_by(&self, rank: GroupRank) -> impl Iterator<Item = Range<usize>> {
        let buckets = self.buckets_of(rank);
        buckets.map(|(bucket, replica)| bucket.received_by(replica))
    }

    /// Returns the elements that a rank updates: those whose gradient it receives, and those whose second copy it has.
    pub(super) fn held_by(&self, rank: GroupRank) -> HeldRanges {
        let partners = CopyPartners::of(rank, &self.mesh.layout, &self.hosts, self.config);
        let copied = partners.map(|partners| self.copied(partners.owner, rank));
        HeldRanges::new(self.received_by(rank).chain(copied.into_iter().flatten()))
    }

    /// Returns the elements of an owner whose second copy another rank holds: those that this rank does not receive itself,
    /// as far as they are not missing.
    pub(super) fn copied(&self, owner: GroupRank, holder: GroupRank) -> Vec<Range<usize>> {
        let own: Vec<Range<usize>> = self.received_by(holder).collect();
        let of_owner = self.received_by(owner);
        let copied = of_owner.filter(|elements| !elements.is_empty() && !own.contains(elements));
        match self.limits.and_then(|limits| limits.get(holder.index())) {
            None => copied.collect(),
            Some(limit) => copied
                .flat_map(|elements| limit.within(&elements))
                .collect(),
        }
    }

    /// Returns the elements that a rank answers for: together, the ranks answer for each element once, if the state is
    /// divided.
    pub(super) fn owned_by(&self, rank: GroupRank) -> HeldRanges {
        let is_divided = self.mesh.layout.divides_model();
        // Ranks with different parts hold the same tensors that belong to no part.
        let place = self.mesh.layout.place(rank);
        let is_first = place.is_none_or(|place| place.tensor == 0);
        let buckets = self.buckets_of(rank);
        let owned = buckets.filter(|(bucket, _)| is_first || bucket.plan.region > 0);
        let owned = owned.map(|(bucket, replica)| {
            if is_divided {
                bucket.slice_of(replica)
            } else {
                bucket.received_by(replica)
            }
        });
        HeldRanges::new(owned)
    }

    /// Returns the second copies that this rank exchanges; `None` if there are none.
    pub(super) fn partners(&self) -> Option<CopyPartners> {
        CopyPartners::of(
            self.mesh.rank(),
            &self.mesh.layout,
            &self.hosts,
            self.config,
        )
    }

    /// Calls a function for each rank.
    fn each<'a, T>(&'a self, of: impl Fn(GroupRank) -> T + 'a) -> impl Iterator<Item = T> + 'a {
        (0..self.mesh.layout.ranks()).map(move |rank| of(GroupRank(rank as u32)))
    }

    /// Returns the elements that each rank answers for.
    pub(crate) fn owned(&self) -> Vec<HeldRanges> {
        self.each(|rank| self.owned_by(rank)).collect()
    }

    /// Returns the elements that each rank holds.
    pub(crate) fn held(&self) -> Vec<HeldRanges> {
        self.each(|rank| self.held_by(rank)).collect()
    }

    /// Returns the elements that each rank needs to train.
    pub(crate) fn needed(&self) -> Vec<HeldRanges> {
        self.each(|rank| HeldRanges::new(self.received_by(rank)))
            .collect()
    }
}
