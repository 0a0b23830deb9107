//! [`StepLayout`]: the layers and the shards that each rank computes.
//!
//! The ranks of a run form a mesh of three axes. Along the pipeline axis, each rank has some of the model's layers; along the
//! data axis, each rank has some of the shards; along the tensor axis, each rank has some of the parts into which layers are
//! divided. Ranks that differ in their parts only are neighbours, because they exchange most. A layout never changes the
//! trained bits: every shard passes through every part of every layer once, wherever that is.
//!
//! Synchronous parameter servers are a layout too ([`StepLayout::with_servers`]): the last ranks have all slices of a divided state
//! and no shards. All else is as in ZeRO: the exact sum is scattered to the owners of slices, the vote is the barrier, and the
//! owners update and send the weights. So the bits, the recovery and checkpoints need no special case. The setting is therefore
//! `parallel.servers`, beside the other layouts, and not a kind of `[sync]`, which determines the bits.

use std::ops::Range;
use std::sync::Arc;

use crate::rank::{GroupRank, WorldSize};
use crate::shards::ShardPlan;

/// Consecutive layers of a model that one rank of a pipeline computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineStage {
    /// The layers.
    pub layers: Range<usize>,
    /// The coordinate of its ranks along the pipeline axis. One rank may have several stages.
    pub column: usize,
}

/// The coordinates of a rank in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshPlace {
    /// The coordinate along the pipeline axis.
    pub column: usize,
    /// The coordinate along the data axis.
    pub replica: usize,
    /// The coordinate along the tensor axis.
    pub tensor: usize,
}

/// The layers and the shards that each rank computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepLayout {
    ranks: usize,
    columns: usize,
    /// The number of ranks that divide the parts of layers among themselves.
    tensors: usize,
    stages: Arc<[PipelineStage]>,
    /// The shards of each rank along the data axis.
    shards: ShardPlan,
    /// The number of ranks that update the state without computing shards, the last ones; 0: ranks with the same layers divide
    /// the updates among themselves.
    servers: usize,
}

impl StepLayout {
    /// Returns the layout in which every rank has all layers. Spares of the plan have no shards, but the whole state.
    #[must_use]
    pub fn data_parallel(shards: ShardPlan, layers: usize) -> Self {
        let all = PipelineStage {
            layers: 0..layers,
            column: 0,
        };
        Self {
            ranks: shards.ranks(),
            columns: 1,
            tensors: 1,
            stages: Arc::new([all]),
            shards,
            servers: 0,
        }
    }

    /// Returns the layout of synchronous parameter servers: the last `servers` ranks update the state, and the others compute the
    /// shards. At least one rank computes, so there are fewer servers than ranks; the only rank of a group does both. More
    /// computing ranks than shards are spares. `None` without ranks or shards.
    #[must_use]
    pub fn with_servers(ranks: usize, shards: u32, layers: usize, servers: usize) -> Option<Self> {
        let size = WorldSize::new(u32::try_from(ranks).ok()?)?;
        let servers = servers.min(ranks - 1);
        let computing = u32::try_from(ranks - servers).ok()?.min(shards);
        let shards = ShardPlan::with_spares(shards, size, computing)?;
        let layout = Self::data_parallel(shards, layers);
        Some(Self { servers, ..layout })
    }

    /// Returns the layout of pipelines among `ranks` ranks: as many of them as there are ranks and shards for. The remaining
    /// ranks are spares without layers. `None` if there are fewer ranks than one pipeline needs, or no shards or stages.
    #[must_use]
    pub fn pipelines(ranks: usize, shards: u32, stages: Vec<PipelineStage>) -> Option<Self> {
        Self::mesh(ranks, shards, stages, 1)
    }

    /// Returns the layout of pipelines in which the parts of each layer are divided among `tensors` ranks. As many pipelines as
    /// there are ranks and shards for; the remaining ranks are spares. `None` if there are fewer ranks than one pipeline needs,
    /// or no shards or stages.
    #[must_use]
    pub fn mesh(
        ranks: usize,
        shards: u32,
        stages: Vec<PipelineStage>,
        tensors: usize,
    ) -> Option<Self> {
        let columns = stages.iter().map(|stage| stage.column + 1).max()?;
        let replicas = ranks.checked_div(columns * tensors)?;
        let replicas = u32::try_from(replicas).ok()?.min(shards);
        let shards = ShardPlan::new(shards, WorldSize::new(replicas)?)?;
        Some(Self {
            ranks: if columns * tensors == 1 {
                shards.ranks()
            } else {
                ranks
            },
            columns,
            tensors,
            stages: stages.into(),
            shards,
            servers: 0,
        })
    }

    /// Returns the same layout with another assignment of the shards, along the data axis.
    #[must_use]
    pub fn resharded(&self, shards: ShardPlan) -> Self {
        Self {
            shards,
            ..self.clone()
        }
    }

    /// Returns the number of ranks, spares included.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of ranks that share the layers of a model.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of ranks that divide the parts of layers among themselves.
    #[must_use]
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// Returns whether each rank computes only some of the layers, or some of their parts.
    #[must_use]
    pub fn divides_model(&self) -> bool {
        self.columns * self.tensors > 1
    }

    /// Returns the number of ranks that are not spares.
    #[must_use]
    pub fn members(&self) -> usize {
        self.columns * self.replicas() * self.tensors
    }

    /// Returns the parts that a rank computes of layers that are divided into `parts` parts; all of them for a spare.
    #[must_use]
    pub fn own_parts(&self, rank: GroupRank, parts: u32) -> Range<u32> {
        match self.place(rank) {
            Some(place) => self.parts_at(place.tensor, parts),
            None => 0..parts,
        }
    }

    /// Returns the parts of the ranks at a coordinate of the tensor axis, of layers that are divided into `parts` parts.
    #[must_use]
    pub fn parts_at(&self, tensor: usize, parts: u32) -> Range<u32> {
        let border =
            |tensor: usize| (u64::from(parts) * tensor as u64 / self.tensors as u64) as u32;
        border(tensor)..border(tensor + 1)
    }

    /// Returns the number of a rank's part of the model, which ranks with the same layers and parts share; `None` for a spare.
    #[must_use]
    pub fn model_part(&self, rank: GroupRank) -> Option<u32> {
        let place = self.place(rank)?;
        Some((place.column * self.tensors + place.tensor) as u32)
    }

    /// Returns the number of ranks that have the same layers and parts.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.shards.ranks()
    }

    /// Returns the number of ranks that update the state without computing shards.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// Returns the coordinates along the data axis of the ranks that divide the updates of their layers among themselves.
    #[must_use]
    pub fn updating(&self) -> Range<usize> {
        let replicas = self.replicas();
        match self.servers {
            0 => 0..replicas,
            servers => replicas - servers..replicas,
        }
    }

    /// Returns the stages in the order of the layers.
    #[must_use]
    pub fn stages(&self) -> &[PipelineStage] {
        &self.stages
    }

    /// Returns the shards of each rank along the data axis.
    #[must_use]
    pub fn shards(&self) -> &ShardPlan {
        &self.shards
    }

    /// Returns the coordinates of a rank; `None` for a spare.
    #[must_use]
    pub fn place(&self, rank: GroupRank) -> Option<MeshPlace> {
        let replicas = self.replicas();
        let pair = rank.index() / self.tensors;
        let place = MeshPlace {
            column: pair / replicas,
            replica: pair % replicas,
            tensor: rank.index() % self.tensors,
        };
        (place.column < self.columns).then_some(place)
    }

    /// Returns the rank at coordinates.
    #[must_use]
    pub fn rank_at(&self, place: MeshPlace) -> GroupRank {
        let pair = place.column * self.replicas() + place.replica;
        GroupRank((pair * self.tensors + place.tensor) as u32)
    }

    /// Returns the shards that pass through the layers of a rank; none for a spare.
    #[must_use]
    pub fn run(&self, rank: GroupRank) -> Range<u32> {
        match self.place(rank) {
            Some(place) => self.shards.run(GroupRank(place.replica as u32)),
            None => 0..0,
        }
    }

    /// Returns the shards whose samples a rank needs: for the first layer, or for the loss after the last one.
    #[must_use]
    pub fn loads(&self, rank: GroupRank) -> Range<u32> {
        match self.is_at_an_end(rank) {
            true => self.run(rank),
            false => 0..0,
        }
    }

    /// Returns whether a rank has the first or the last layer.
    #[must_use]
    pub fn is_at_an_end(&self, rank: GroupRank) -> bool {
        let ends = [self.stages.first(), self.stages.last()];
        self.place(rank).is_some_and(|place| {
            let mut ends = ends.into_iter().flatten();
            ends.any(|stage| stage.column == place.column)
        })
    }

    /// Returns the shards whose loss each rank reports. Ranks that have different parts of the last layer compute the same losses;
    /// the first of them reports.
    #[must_use]
    pub fn reports(&self) -> ShardPlan {
        if !self.divides_model() {
            return self.shards.clone();
        }
        let last = self.stages.last().map_or(0, |stage| stage.column);
        let shares = (0..self.ranks).map(|rank| {
            let rank = GroupRank(rank as u32);
            let place = self.place(rank);
            let reports = place.is_some_and(|place| place.column == last && place.tensor == 0);
            if reports {
                self.run(rank).len() as u32
            } else {
                0
            }
        });
        ShardPlan::uneven(shares, self.shards.computing())
    }
}

/// Divides a model among the columns of a pipeline in `rounds` stages each, so that the largest cost of a stage is as small
/// as possible. The first stage of each column precedes all second stages. `pieces` are the layers that stay together,
/// in order, and `costs` has the cost of each layer, in any unit. With `is_tied`, the first and the last layer share a
/// parameter, so the first column has the last layer too. `None` if there are too few pieces.
#[must_use]
pub fn divide_layers(
    pieces: &[Range<usize>],
    costs: &[f64],
    (columns, rounds): (usize, usize),
    is_tied: bool,
) -> Option<Vec<PipelineStage>> {
    let cost = |layers: &Range<usize>| costs.get(layers.clone()).map(|costs| costs.iter().sum());
    let mut pieces = pieces.to_vec();
    let mut loads: Vec<f64> = pieces.iter().map(cost).collect::<Option<_>>()?;
    let mut last = None;
    if is_tied && columns > 1 {
        let piece = pieces.last_mut()?;
        let layer = piece.end.checked_sub(1)?;
        piece.end = layer;
        last = Some(layer..layer + 1);
        let cost = *costs.get(layer)?;
        *loads.last_mut()? -= cost;
        if pieces.last()?.is_empty() {
            pieces.pop();
            loads.pop();
        }
        *loads.first_mut()? += cost;
    }
    let ends = balanced(&loads, columns * rounds)?;
    let mut begin = 0;
    let mut stages = Vec::with_capacity(ends.len() + 1);
    for (index, end) in ends.into_iter().enumerate() {
        stages.push(PipelineStage {
            layers: pieces[begin].start..pieces[end - 1].end,
            column: index % columns,
        });
        begin = end;
    }
    stages.extend(last.map(|layers| PipelineStage { layers, column: 0 }));
    Some(stages)
}

/// Divides loads into `parts` runs, none of them empty, with the smallest largest sum. Returns the end of each run.
fn balanced(loads: &[f64], parts: usize) -> Option<Vec<usize>> {
    let count = loads.len();
    if parts == 0 || count < parts {
        return None;
    }
    let mut before = vec![0.0; count + 1];
    for (index, load) in loads.iter().enumerate() {
        before[index + 1] = before[index] + load;
    }
    // The best largest sum of the first `end` loads in the runs so far, and where the last of these runs begins.
    let mut best: Vec<f64> = before.clone();
    let mut begins: Vec<Vec<usize>> = vec![vec![0; count + 1]];
    for part in 1..parts {
        let mut next = vec![f64::INFINITY; count + 1];
        let mut from = vec![0; count + 1];
        for end in part + 1..=count {
            for begin in part..end {
                let largest = best[begin].max(before[end] - before[begin]);
                if largest < next[end] {
                    (next[end], from[end]) = (largest, begin);
                }
            }
        }
        best = next;
        begins.push(from);
    }
    let mut ends = vec![count];
    for from in begins.iter().skip(1).rev() {
        let end = *ends.last()?;
        ends.push(from[end]);
    }
    ends.reverse();
    Some(ends)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layers(count: usize) -> Vec<Range<usize>> {
        (0..count).map(|layer| layer..layer + 1).collect()
    }

    fn stages(costs: &[f64], columns: usize, is_tied: bool) -> Option<Vec<(Range<usize>, usize)>> {
        let divided = divide_layers(&layers(costs.len()), costs, (columns, 1), is_tied)?;
        let each = divided.into_iter();
        Some(each.map(|stage| (stage.layers, stage.column)).collect())
    }

    #[test]
    fn layers_are_divided_by_cost() {
        let costs = [1.0, 1.0, 1.0, 3.0];
        assert_eq!(stages(&costs, 1, true).unwrap(), [(0..4, 0)]);
        assert_eq!(stages(&costs, 2, false).unwrap(), [(0..3, 0), (3..4, 1)]);
        // The last layer belongs to the first column, which has nothing else but the first layer.
        let tied = stages(&costs, 2, true).unwrap();
        assert_eq!(tied, [(0..1, 0), (1..3, 1), (3..4, 0)]);
        assert_eq!(stages(&costs, 4, true), None);
        assert_eq!(stages(&costs, 5, false), None);
        assert_eq!(stages(&[], 1, false), None);
        let named = divide_layers(&[0..3, 3..6], &[1.0; 6], (2, 1), false).unwrap();
        assert_eq!(named[1].layers, 3..6);
    }

    #[test]
    fn each_column_has_a_stage_of_every_round() {
        let divided = |is_tied| {
            let stages = divide_layers(&layers(6), &[1.0; 6], (2, 2), is_tied).unwrap();
            let each = stages.into_iter();
            each.map(|stage| (stage.layers, stage.column))
                .collect::<Vec<_>>()
        };
        assert_eq!(divided(false), [(0..1, 0), (1..2, 1), (2..4, 0), (4..6, 1)]);
        assert_eq!(divided(true).last(), Some(&(5..6, 0)));
        assert_eq!(divide_layers(&layers(3), &[1.0; 3], (2, 2), false), None);
    }

    #[test]
    fn ranks_with_the_same_layers_are_neighbours_and_the_rest_are_spares() {
        let stages = divide_layers(&layers(4), &[1.0; 4], (2, 1), false).unwrap();
        let layout = StepLayout::pipelines(7, 8, stages).unwrap();
        assert_eq!((layout.replicas(), layout.columns()), (3, 2));
        assert_eq!(layout.place(GroupRank(6)), None);
        let part = |rank| layout.model_part(GroupRank(rank));
        assert_eq!([3, 4, 5].map(part), [Some(1); 3]);
        assert_eq!(layout.run(GroupRank(1)), layout.run(GroupRank(4)));
        assert_eq!(layout.run(GroupRank(1)), 3..6);
        let reports = layout.reports();
        let runs: Vec<_> = (0..7).map(|rank| reports.run(GroupRank(rank))).collect();
        assert_eq!(runs, [0..0, 0..0, 0..0, 0..3, 3..6, 6..8, 8..8]);
    }

    #[test]
    fn ranks_that_differ_in_their_parts_are_neighbours() {
        let stages = divide_layers(&layers(4), &[1.0; 4], (2, 1), false).unwrap();
        let layout = StepLayout::mesh(13, 8, stages, 3).unwrap();
        assert_eq!((layout.replicas(), layout.members()), (2, 12));
        assert_eq!(layout.place(GroupRank(12)), None);
        for rank in 0..12 {
            let place = layout.place(GroupRank(rank)).unwrap();
            assert_eq!(layout.rank_at(place), GroupRank(rank));
            assert_eq!(place.tensor, rank as usize % 3);
        }
        let own: Vec<_> = (0..4)
            .map(|rank| layout.own_parts(GroupRank(rank), 8))
            .collect();
        assert_eq!(own, [0..2, 2..5, 5..8, 0..2]);
        let parts = [0, 1, 3, 7, 10, 12].map(|rank| layout.model_part(GroupRank(rank)));
        assert_eq!(parts, [Some(0), Some(1), Some(0), Some(4), Some(4), None]);
        let reports = layout.reports();
        let runs: Vec<_> = (0..13)
            .map(|rank| reports.run(GroupRank(rank)).len())
            .collect();
        assert_eq!(runs, [0, 0, 0, 0, 0, 0, 4, 0, 0, 4, 0, 0, 0]);
    }

    #[test]
    fn servers_are_the_last_ranks_and_compute_no_shards() {
        let of = |ranks, servers| {
            let layout = StepLayout::with_servers(ranks, 4, 3, servers).unwrap();
            let shares: Vec<_> = layout.shards().shares().collect();
            (shares, layout.updating())
        };
        assert_eq!(of(4, 1), (vec![2, 1, 1, 0], 3..4));
        assert_eq!(of(5, 2), (vec![2, 1, 1, 0, 0], 3..5));
        assert_eq!(of(2, 3), (vec![4, 0], 1..2));
        assert_eq!(of(1, 1), (vec![4], 0..1));
        // One of seven ranks has no shard and serves nothing.
        assert_eq!(of(7, 2), (vec![1, 1, 1, 1, 0, 0, 0], 5..7));
        assert_eq!(of(3, 0), (vec![2, 1, 1], 0..3));
        assert!(StepLayout::with_servers(0, 4, 3, 1).is_none());
        assert!(StepLayout::with_servers(2, 0, 3, 1).is_none());
    }

    #[test]
    fn ranks_between_the_ends_load_no_samples() {
        let stages = divide_layers(&layers(3), &[1.0; 3], (3, 1), false).unwrap();
        let layout = StepLayout::pipelines(3, 4, stages).unwrap();
        let loads: Vec<_> = (0..3).map(|rank| layout.loads(GroupRank(rank))).collect();
        assert_eq!(loads, [0..4, 0..0, 0..4]);
    }

    proptest! {
        #[test]
        fn every_layer_is_in_one_stage_and_no_other_division_is_better(
            costs in prop::collection::vec(0_u8..50, 1..8),
            columns in 1_usize..5,
        ) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let Some(found) = stages(&costs, columns, false) else {
                prop_assert!(costs.len() < columns);
                return Ok(());
            };
            let mut next = 0;
            let mut largest: f64 = 0.0;
            for (column, (layers, of)) in found.iter().enumerate() {
                prop_assert_eq!((layers.start, *of), (next, column));
                prop_assert!(!layers.is_empty());
                largest = largest.max(costs[layers.clone()].iter().sum());
                next = layers.end;
            }
            prop_assert_eq!(next, costs.len());
            // Every set of borders between layers.
            for borders in 0_u32..1 << (costs.len() - 1) {
                if borders.count_ones() as usize + 1 != columns {
                    continue;
                }
                let (mut most, mut sum) = (0.0_f64, 0.0);
                for (layer, cost) in costs.iter().enumerate() {
                    if layer > 0 && borders & (1 << (layer - 1)) != 0 {
                        sum = 0.0;
                    }
                    sum += cost;
                    most = most.max(sum);
                }
                prop_assert!(largest <= most);
            }
        }
    }
}
