//! The groups of a rank in the mesh, and the parts of the state that it holds at its position there.
//!
//! Ranks with the same layers are a sub-group, which sums their gradients and compares their weights. Values between stages are
//! messages in the group of all ranks. A rank stores the elements that it computes with and those that it updates.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::step_layout::{MeshPlace, StepLayout};
use ronde_core::{Group, GroupRank};
use ronde_engine::LayerExt;
use ronde_protocol::holdings::{HeldRanges, second_holders};

use super::{SynchronousConfig, SynchronousStrategy};
use crate::bucket::{self, Bucket};
use crate::error::ParallelError;
use crate::state::ModelState;

/// The groups of a rank.
pub(super) struct MeshGroups {
    /// All ranks of the run.
    pub(super) all: Arc<dyn Group>,
    /// The ranks with the same layers and parts, which sum their gradients; `None` for a spare, and until they are connected.
    pub(super) same_layers: Option<Arc<dyn Group>>,
    /// The ranks with the same layers and shards, which compute different parts; `None` if each rank computes all parts.
    pub(super) parts: Option<Arc<dyn Group>>,
    /// Whether the groups other than that of all ranks are connected.
    is_connected: bool,
}

impl MeshGroups {
    /// Returns the groups of a rank before ranks with the same layers are connected. In a layout that does not divide the model,
    /// these are all ranks.
    pub(super) fn unconnected(all: Arc<dyn Group>, layout: &StepLayout) -> Self {
        let is_connected = !layout.divides_model();
        Self {
            same_layers: is_connected.then(|| all.clone()),
            parts: None,
            all,
            is_connected,
        }
    }

    /// Connects the ranks with the same layers. All ranks call it together.
    pub(super) fn connect(all: Arc<dyn Group>, layout: &StepLayout) -> Result<Self, ParallelError> {
        if !layout.divides_model() {
            return Ok(Self::unconnected(all, layout));
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
            same_layers,
            parts,
            is_connected: true,
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

/// Returns the layers that a rank computes.
pub(super) fn computed_layers(layout: &StepLayout, rank: GroupRank) -> Vec<Range<usize>> {
    let column = layout.place(rank).map(|place| place.column);
    let stages = layout.stages().iter();
    let own = stages.filter(|stage| Some(stage.column) == column);
    own.map(|stage| stage.layers.clone()).collect()
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

/// Returns the regions of a rank, of `regions` in all.
pub(super) fn own_regions(layout: &StepLayout, rank: GroupRank, regions: usize) -> OwnRegions {
    let own = layout.own_parts(rank, regions.saturating_sub(1) as u32);
    OwnRegions(own.start as usize + 1..own.end as usize + 1)
}

/// Returns the elements of the layers and parts that a rank computes.
pub(super) fn computed(state: &ModelState, layout: &StepLayout, rank: GroupRank) -> HeldRanges {
    let layers: Vec<usize> = computed_layers(layout, rank)
        .into_iter()
        .flatten()
        .collect();
    let regions = state.regions();
    let own = own_regions(layout, rank, regions.len());
    let own = regions
        .iter()
        .enumerate()
        .filter(|(region, _)| own.contains(region));
    HeldRanges::new(own.flat_map(|(_, region)| layers.iter().map(|&layer| region[layer].clone())))
}

/// Creates the buckets of all stages.
pub(super) fn fresh_buckets(
    state: &ModelState,
    config: &SynchronousConfig,
    layout: &StepLayout,
    hosts: &[usize],
) -> Vec<Bucket> {
    let sums_sparsely = config.sums_sparsely(hosts);
    let tensors: Vec<Range<usize>> = state.tensors().iter().map(|t| t.range.clone()).collect();
    let replicas = layout.replicas();
    let is_scattered = config.zero.is_sharded() && replicas > 1;
    bucket::plan(state.regions(), layout.stages(), config.bucket_bytes_max)
        .into_iter()
        .map(|plan| {
            let slices = slices(&plan.elements, &tensors, layout);
            let has_tables = plan.layers.clone().any(|layer| state.has_tables(layer));
            let bucket = Bucket::new(plan, slices, is_scattered, layout.shards().shards());
            match &config.compression {
                Some(compression) => bucket.divided_by(compression.senders),
                None => bucket.with_sparse_sums(sums_sparsely && has_tables),
            }
        })
        .collect()
}

/// Returns the elements of a bucket that each rank with its layers updates.
fn slices(
    elements: &Range<usize>,
    tensors: &[Range<usize>],
    layout: &StepLayout,
) -> Vec<Range<usize>> {
    let updating = layout.updating();
    let none = elements.start..elements.start;
    let mut slices = vec![none; updating.start];
    slices.extend(bucket::slices(elements, tensors, updating.len()));
    slices
}

/// The view of all ranks on the division of the state.
pub(super) struct Division<'a> {
    pub(super) layout: &'a StepLayout,
    /// The number of parts into which layers are divided.
    pub(super) parts: u32,
    pub(super) buckets: &'a [Bucket],
    pub(super) hosts: Vec<usize>,
    pub(super) config: &'a SynchronousConfig,
    /// The elements whose second copy each rank may have, by rank; `None`: all.
    pub(super) copies: Option<&'a [HeldRanges]>,
}

impl Division<'_> {
    /// Returns the buckets of the layers and parts of a rank, each with the rank's coordinate along the data axis.
    fn buckets_of(&self, rank: GroupRank) -> impl Iterator<Item = (&Bucket, usize)> {
        let place = self.layout.place(rank);
        let regions = if self.parts > 1 {
            self.parts as usize + 1
        } else {
            1
        };
        let own = own_regions(self.layout, rank, regions);
        let each = place.map(
            move |MeshPlace {
                      column, replica, ..
                  }| {
                let is_own = move |bucket: &&Bucket| {
                    self.layout.stages()[bucket.plan.stage].column == column
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
        let partners = CopyPartners::of(rank, self.layout, &self.hosts, self.config);
        let copied = partners.map(|partners| self.copied(partners.owner, rank));
        HeldRanges::new(self.received_by(rank).chain(copied.into_iter().flatten()))
    }

    /// Returns the elements of an owner whose second copy another rank holds: those that this rank does not receive itself,
    /// as far as they are not missing.
    pub(super) fn copied(&self, owner: GroupRank, holder: GroupRank) -> Vec<Range<usize>> {
        let own: Vec<Range<usize>> = self.received_by(holder).collect();
        let of_owner = self.received_by(owner);
        let copied = of_owner.filter(|elements| !elements.is_empty() && !own.contains(elements));
        match self.copies.and_then(|copies| copies.get(holder.index())) {
            None => copied.collect(),
            Some(limit) => copied
                .flat_map(|elements| limit.within(&elements))
                .collect(),
        }
    }

    /// Returns the elements that a rank answers for: together, the ranks answer for each element once, if the state is
    /// divided.
    pub(super) fn owned_by(&self, rank: GroupRank) -> HeldRanges {
        let is_divided = self.layout.divides_model();
        // Ranks with different parts hold the same tensors that belong to no part.
        let is_first = self
            .layout
            .place(rank)
            .is_none_or(|place| place.tensor == 0);
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
}

impl SynchronousStrategy {
    pub(super) fn division(&self) -> Division<'_> {
        Division {
            layout: &self.layout,
            parts: self.chain.parts(),
            buckets: &self.buckets,
            hosts: self.groups.all.hosts(),
            config: &self.config,
            copies: self.copies.as_deref(),
        }
    }

    /// Returns the elements that this rank holds when no second copy is missing.
    pub(super) fn all_held(&self) -> HeldRanges {
        let all = Division {
            copies: None,
            ..self.division()
        };
        all.held_by(self.groups.all.rank())
    }

    /// Returns the elements of the layers that this rank computes.
    pub(super) fn computed(&self) -> HeldRanges {
        computed(&self.state, &self.layout, self.groups.all.rank())
    }

    /// Returns this rank's coordinates in the mesh; `None` for a spare.
    pub(super) fn place(&self) -> Option<MeshPlace> {
        self.layout.place(self.groups.all.rank())
    }

    /// Returns the indices of the buckets of this rank's layers and parts, in backward order.
    pub(super) fn own_buckets(&self) -> Vec<usize> {
        let column = self.place().map(|place| place.column);
        let regions = self.own_regions();
        let indices = 0..self.buckets.len();
        let is_own = |index: &usize| {
            let region = self.buckets[*index].plan.region;
            Some(self.column_of(*index)) == column && regions.contains(&region)
        };
        indices.filter(is_own).collect()
    }

    /// Returns the regions of the flat state that this rank computes with.
    pub(super) fn own_regions(&self) -> OwnRegions {
        let regions = self.state.regions().len();
        own_regions(&self.layout, self.groups.all.rank(), regions)
    }

    /// Returns the pipeline coordinate of the ranks that have the layers of a bucket.
    pub(super) fn column_of(&self, bucket: usize) -> usize {
        self.layout.stages()[self.buckets[bucket].plan.stage].column
    }

    /// Returns the second copies that this rank exchanges; `None` if there are none.
    pub(super) fn partners(&self) -> Option<CopyPartners> {
        let hosts = self.groups.all.hosts();
        CopyPartners::of(self.groups.all.rank(), &self.layout, &hosts, &self.config)
    }

    /// Returns the ranks with the same layers.
    pub(super) fn same_layers(&self) -> Result<&Arc<dyn Group>, ParallelError> {
        self.groups.same_layers.as_ref().ok_or_else(|| {
            let problem = "the workers with the same layers are not connected".to_owned();
            ParallelError::OutOfOrder { problem }
        })
    }
}
