//! [`forecast`]: interprets the step program of a layout with measured costs.

use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, PartTransfer};
use ronde_protocol::holdings::second_holders;
use ronde_schedule::{BorderCost, BucketCost, StepCosts, StepTimeline, programs, timeline};
use serde::Serialize;

use crate::candidate::{BucketShape, LayoutCandidate};
use crate::choice::LayoutChoice;
use crate::collective_times::{COUNTED_MAX, GroupShape};
use crate::costs::ModelCosts;
use crate::error::AdviseError;
use crate::rank_hosts::RankHosts;
use crate::step_bytes;
use crate::step_request::StepRequest;

/// The forecast of a step with a layout.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct LayoutForecast {
    /// The layout.
    pub choice: LayoutChoice,
    /// The most bytes of memory that a worker needs.
    pub worker_bytes: u64,
    /// The number of layers that compute their activations again, because the run file leaves this open and they do not fit otherwise.
    pub recomputed_layers: usize,
    /// The most bytes of memory that the workers of one host need together.
    pub host_bytes: u64,
    /// Whether they fit.
    pub fits: bool,
    /// The most bytes that a worker sends in a step, without headers and votes; `None` for groups of more workers than schedules
    /// are counted for.
    pub sent_bytes: Option<u64>,
    /// The number of hosts that have workers.
    pub hosts: u32,
    /// The seconds of a step.
    pub step_s: f64,
    /// The seconds of a step if exchanging bytes took no time.
    pub computing_s: f64,
    /// The idle share of the workers because of the schedule, from 0 to 1.
    pub bubble: f64,
    /// The share of the step in which workers wait for bytes, from 0 to 1.
    pub communication: f64,
    /// The seconds of a step by one worker, divided by those of all workers together.
    pub efficiency: f64,
    /// The seconds of the whole run; 0 until the length of the run is known.
    pub run_s: f64,
    /// The price of the whole run; `None` if prices are unknown.
    pub price: Option<f64>,
}

/// Makes the forecast of a step: interprets the programs of the pipeline with the most shards, and adds the vote, the update
/// and the exchanges after it. Cost: that of [`programs`] and [`timeline()`], and of counting the schedules of collectives
/// that were not counted before.
///
/// # Errors
/// A layout that is not consistent: a bug.
pub fn forecast(
    candidate: &LayoutCandidate,
    request: &StepRequest<'_>,
) -> Result<LayoutForecast, AdviseError> {
    let placed = PlacedLayout::new(candidate, request)?;
    let with = placed.step_s(true)?;
    let without = placed.step_s(false)?;
    let choice = candidate.choice;
    let host_bytes = placed.ranks.host_bytes(&candidate.memory_bytes);
    let sent = match candidate.layout.members() <= COUNTED_MAX {
        true => step_bytes(candidate, request)?,
        false => Vec::new(),
    };
    let sent_bytes = sent.iter().map(|rank| rank.total().bytes as u64).max();
    let worker_bytes = candidate.memory_bytes.iter().copied().max().unwrap_or(0);
    Ok(LayoutForecast {
        choice,
        worker_bytes,
        recomputed_layers: candidate.recomputed.len(),
        host_bytes,
        fits: host_bytes <= request.cluster.memory_bytes,
        sent_bytes,
        hosts: placed.ranks.hosts_used(),
        step_s: with.seconds,
        computing_s: without.seconds,
        bubble: without.bubble,
        communication: (1.0 - without.seconds / with.seconds.max(f64::MIN_POSITIVE)).max(0.0),
        efficiency: 1.0,
        run_s: 0.0,
        price: None,
    })
}

/// A layout on the hosts of a cluster, with the costs of its workers.
struct PlacedLayout<'a> {
    candidate: &'a LayoutCandidate,
    request: &'a StepRequest<'a>,
    ranks: RankHosts<'a>,
    costs: ModelCosts,
    /// The coordinate along the tensor axis of the workers with the most parts.
    tensor: usize,
    /// The parts of these workers.
    own_parts: Range<u32>,
    /// Whether a host has a core for exchanges besides those that compute.
    has_free_cores: bool,
}

/// The interpreted step.
struct InterpretedStep {
    seconds: f64,
    bubble: f64,
}

impl<'a> PlacedLayout<'a> {
    fn new(
        candidate: &'a LayoutCandidate,
        request: &'a StepRequest<'a>,
    ) -> Result<Self, AdviseError> {
        let workers_per_host = request.cluster.workers_per_host(request.threads)? as usize;
        let threads = request.threads.max(1) as usize;
        let layout = &candidate.layout;
        let busy = layout.members().min(workers_per_host) * threads;
        let cores = request.cluster.cores as usize;
        let costs = request.worker.at(busy as f64 / cores as f64);
        let parts_at = |tensor: usize| layout.parts_at(tensor, costs.parts.max(1));
        let tensor = (0..layout.tensors())
            .rev()
            .max_by_key(|&tensor| parts_at(tensor).len())
            .unwrap_or(0);
        Ok(Self {
            candidate,
            request,
            ranks: RankHosts::new(layout, workers_per_host),
            own_parts: parts_at(tensor),
            tensor,
            costs,
            has_free_cores: busy < cores,
        })
    }

    fn step_costs(&self, with_bytes: bool) -> StepCosts {
        let layout = &self.candidate.layout;
        let stages = layout.stages();
        let layers = &self.costs.layers;
        let columns = 0..layout.columns();
        let groups = columns.map(|column| self.ranks.same_layers(column, self.tensor));
        let groups: Vec<GroupShape> = groups.collect();
        let parts = self.part_exchange();
        let own_parts = self.own_parts.len() as u32;
        let buckets = self.candidate.buckets.iter().map(|bucket| {
            let mut cost = BucketCost::default();
            for (index, layer) in bucket.layers.clone().zip(&layers[bucket.layers.clone()]) {
                let passes = layer.passes_of(own_parts, self.costs.parts);
                let is_recomputed = self.candidate.recomputed.contains(&index);
                let again = if is_recomputed { 1.0 } else { 0.0 };
                cost.forward_s += passes.forward_s;
                cost.backward_s += passes.backward_s + again * passes.forward_s;
                cost.backward_weights_s += passes.backward_weights_s;
                if let Some(parts) = parts.as_ref().filter(|_| with_bytes) {
                    // The worker waits for these, and computes nothing meanwhile.
                    let forward_s = self.transfers_s(parts, &layer.transfers.forward);
                    cost.forward_s += forward_s;
                    cost.backward_s += again * forward_s;
                    cost.backward_s += self.transfers_s(parts, &layer.transfers.backward);
                    let weights_s = self.transfers_s(parts, &layer.transfers.weights);
                    cost.backward_s += weights_s;
                    cost.backward_weights_s += weights_s;
                }
            }
            let elements: usize = bucket.own_regions(&self.own_parts).sum();
            cost.weight_bytes = elements * 4;
            cost.add_s = elements as f64 * self.costs.add_element_s;
            if with_bytes {
                self.add_exchange(&mut cost, bucket, &groups[stages[bucket.stage].column]);
            }
            cost
        });
        let border = |stage: usize| {
            let last = stages[stage].layers.end - 1;
            let bytes = layers[last].output_bytes_of(&self.own_parts);
            let (is_across, sharing) = self.ranks.crossing(stage);
            let (link_s, seconds) = self.request.links.message(bytes, is_across);
            let sharing = if is_across { sharing as f64 } else { 1.0 };
            match with_bytes {
                true => BorderCost {
                    seconds,
                    link_s: link_s * sharing,
                    busy_s: if self.has_free_cores {
                        0.0
                    } else {
                        0.5 * self.request.links.message_s
                    },
                    bytes,
                },
                false => BorderCost {
                    bytes,
                    ..BorderCost::default()
                },
            }
        };
        StepCosts {
            buckets: buckets.collect(),
            borders: (0..stages.len().saturating_sub(1)).map(border).collect(),
            kept_bytes: vec![0; stages.len()],
            loss_s: self.loss_s(parts.as_ref().filter(|_| with_bytes)),
        }
    }

    /// Returns the exchange among workers with other parts of the same layers; `None` if each worker has all parts.
    fn part_exchange(&self) -> Option<(GroupShape, ExactSum)> {
        let layout = &self.candidate.layout;
        if layout.tensors() < 2 {
            return None;
        }
        let ends =
            (0..layout.tensors()).map(|tensor| layout.parts_at(tensor, self.costs.parts).end);
        let sum = ExactSum::new(std::iter::once(0).chain(ends).collect())?;
        Some((self.ranks.other_parts(), sum))
    }

    /// Returns the seconds of exchanges between parts.
    fn transfers_s(
        &self,
        (group, sum): &(GroupShape, ExactSum),
        transfers: &[PartTransfer],
    ) -> f64 {
        let times = self.request.collectives;
        let seconds = transfers.iter().map(|transfer| {
            let elements = transfer.elements();
            let found = match transfer {
                PartTransfer::Sum { .. } => times.exact_sum(group, sum, elements),
                PartTransfer::ScatteredSum { .. } => times.scatter(group, sum, elements),
                PartTransfer::Gather { .. } => times.gather(group, elements),
            };
            found.seconds + elements as f64 * self.costs.exchange_element_s
        });
        seconds.sum()
    }

    /// Returns the seconds of the loss of a shard, with its exchanges between parts if they are given.
    fn loss_s(&self, parts: Option<&(GroupShape, ExactSum)>) -> f64 {
        let transfers = &self.costs.loss_transfers;
        let is_in_parts = self.candidate.layout.tensors() > 1 && !transfers.is_empty();
        let share = match is_in_parts {
            true => self.own_parts.len() as f64 / f64::from(self.costs.parts.max(1)),
            false => 1.0,
        };
        let exchanged_s = parts.map_or(0.0, |parts| self.transfers_s(parts, transfers));
        self.costs.loss_s * share + exchanged_s
    }

    /// Adds the costs of summing gradients and gathering weights to those of a bucket.
    fn add_exchange(&self, cost: &mut BucketCost, bucket: &BucketShape, group: &GroupShape) {
        let sum = self.candidate.layout.shards().exact_sum();
        let times = self.request.collectives;
        for elements in bucket.own_regions(&self.own_parts) {
            let reduced = match self.candidate.choice.zero {
                0 => times.exact_sum(group, &sum, elements),
                _ => times.scatter(group, &sum, elements),
            };
            cost.reduce_s += reduced.seconds;
            let own_core = |core_s: f64| if self.has_free_cores { 0.0 } else { core_s };
            cost.reduce_busy_s += own_core(reduced.core_s);
            if self.candidate.choice.zero == 3 {
                let gathered = times.gather(group, elements);
                cost.gather_s += gathered.seconds;
                cost.gather_busy_s += own_core(gathered.core_s) + self.copy_s(group, elements, 0);
            }
        }
    }

    /// Returns the seconds in which a rank copies its own slice of gathered weights, and all of them a number of times.
    fn copy_s(&self, group: &GroupShape, elements: usize, times: usize) -> f64 {
        let copied = match group.size() {
            0 | 1 => 0,
            ranks => elements / ranks + elements * times,
        };
        copied as f64 * self.costs.copy_element_s
    }

    /// Interprets the passes of the pipeline with the most shards.
    fn passes(&self, with_bytes: bool) -> Result<StepTimeline, AdviseError> {
        let shape = (self.candidate).program_shape(0, self.request.in_lock_step);
        let programs = programs(self.candidate.choice.schedule, &shape);
        let of_stage: Vec<usize> = self.candidate.buckets.iter().map(|b| b.stage).collect();
        Ok(timeline(
            &programs,
            &of_stage,
            &self.step_costs(with_bytes),
        )?)
    }

    fn step_s(&self, with_bytes: bool) -> Result<InterpretedStep, AdviseError> {
        let passes = self.passes(with_bytes)?;
        let exchanged = if with_bytes { self.after_passes() } else { 0.0 };
        let computing = passes.end_s + self.update_s() + self.costs.step_s;
        let mut step_s = computing + exchanged;
        if with_bytes && !self.has_free_cores && self.candidate.layout.members() > 1 {
            step_s = (step_s + self.request.crowded_s).max(0.5 * step_s);
        }
        Ok(InterpretedStep {
            seconds: step_s.max(self.reading_s()),
            bubble: passes.bubble(),
        })
    }

    /// Returns the elements of the layers of a column, of a worker with the most parts.
    fn elements_of(&self, column: usize) -> usize {
        let stages = self.candidate.layout.stages();
        let own = self.candidate.buckets.iter();
        let own = own.filter(|bucket| stages[bucket.stage].column == column);
        own.flat_map(|bucket| bucket.own_regions(&self.own_parts))
            .sum()
    }

    /// Returns the most elements whose gradient a rank of a column receives.
    fn received_by(&self, column: usize) -> usize {
        let divided_among = match self.candidate.choice.zero {
            0 => 1,
            _ => self.candidate.layout.replicas(),
        };
        self.elements_of(column).div_ceil(divided_among)
    }

    fn most_received(&self) -> usize {
        let columns = 0..self.candidate.layout.columns();
        columns
            .map(|column| self.received_by(column))
            .max()
            .unwrap_or(0)
    }

    /// Returns whether each part of the state has a second copy, which is updated too.
    fn has_second_copies(&self) -> bool {
        let choice = self.candidate.choice;
        choice.is_held_once() && choice.copies > 1
    }

    /// Returns the seconds of the update of the rank with the most elements.
    fn update_s(&self) -> f64 {
        let copies = if self.has_second_copies() { 2.0 } else { 1.0 };
        self.most_received() as f64 * copies * self.costs.update_element_s
    }

    /// Returns the seconds of exchanges after the passes: second copies, votes, and the weights of a divided state.
    fn after_passes(&self) -> f64 {
        let (layout, times) = (&self.candidate.layout, self.request.collectives);
        if layout.members() < 2 {
            return 0.0;
        }
        let all = self.ranks.all();
        // A vote has some dozens of bytes for each rank.
        let vote_s = times.gather(&all, 16 * all.size()).seconds;
        let rounds =
            1 + u32::from(self.request.has_trust_ratios && self.candidate.choice.is_held_once());
        let mut seconds = vote_s * f64::from(rounds + self.request.sums_in_passes);
        if self.has_second_copies() {
            let holders = second_holders(&all.hosts);
            let crosses = |(rank, &holder): (usize, &usize)| all.hosts[rank] != all.hosts[holder];
            let is_across = holders.iter().enumerate().any(crosses);
            let (link_s, arrives_s) = self
                .request
                .links
                .message(4 * self.most_received(), is_across);
            let sharing = if is_across {
                self.ranks.workers_per_host().min(all.size())
            } else {
                1
            };
            seconds += link_s * sharing as f64 + arrives_s;
        }
        let gathered = |bucket: &BucketShape| {
            let column = layout.stages()[bucket.stage].column;
            let group = self.ranks.same_layers(column, self.tensor);
            let regions = bucket.own_regions(&self.own_parts);
            let seconds = regions.map(|elements| {
                times.gather(&group, elements).seconds + self.copy_s(&group, elements, 1)
            });
            (column, seconds.sum::<f64>())
        };
        let hash_parts = self.request.hash_parts.max(1) as f64;
        let share = match self.candidate.choice.zero {
            0 => return seconds,
            3 => 1.0 / hash_parts,
            _ => 1.0,
        };
        let mut of_columns = vec![0.0; layout.columns()];
        for (column, gather_s) in self.candidate.buckets.iter().map(gathered) {
            of_columns[column] += gather_s * share;
        }
        seconds + of_columns.into_iter().fold(0.0, f64::max)
    }

    /// Returns the least seconds in which a host reads and decodes the samples of a step.
    fn reading_s(&self) -> f64 {
        let layout = &self.candidate.layout;
        let on_host = self.ranks.workers_per_host().min(layout.members());
        let shards: usize = (0..on_host)
            .map(|rank| layout.loads(GroupRank(rank as u32)).len())
            .sum();
        let cores = f64::from(self.request.cluster.cores.max(1));
        self.costs.decode_s * shards as f64 / cores
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ronde_core::WorldSize;
    use ronde_core::shards::ShardPlan;
    use ronde_core::step_layout::{StepLayout, divide_layers};
    use ronde_schedule::{CostModel, PipelineSchedule};

    use super::*;
    use crate::candidate::RegionShape;
    use crate::cluster::ClusterShape;
    use crate::cluster::HostLink;
    use crate::collective_times::CollectiveTimes;
    use crate::costs::{LayerCosts, PassCosts};
    use crate::costs::{LinkCosts, WorkerCosts};

    /// A model of equal layers: 1 s forward, 2 s backward, a million elements and a megabyte of output each.
    pub(crate) fn worker(layers: usize) -> WorkerCosts {
        let layer = LayerCosts {
            name: "layer".to_owned(),
            elements: 1_000_000,
            output_bytes: 1_000_000,
            passes: PassCosts {
                forward_s: 1.0,
                backward_s: 2.0,
                backward_weights_s: 1.0,
            },
            ..LayerCosts::default()
        };
        WorkerCosts {
            alone: ModelCosts {
                layers: vec![layer; layers],
                parts: 4,
                ..ModelCosts::default()
            },
            crowded: None,
            alone_share: 1.0,
        }
    }

    pub(crate) fn cluster(hosts: u32, cores: u32) -> ClusterShape {
        ClusterShape {
            hosts,
            cores,
            memory_bytes: 8 << 30,
            link: HostLink::default(),
            price_per_hour: None,
        }
    }

    pub(crate) fn candidate(choice: LayoutChoice, layers: usize, shards: u32) -> LayoutCandidate {
        let each: Vec<Range<usize>> = (0..layers).map(|layer| layer..layer + 1).collect();
        let columns = choice.pipeline as usize;
        let tensors = choice.tensor as usize;
        let layout = match columns * tensors {
            1 => {
                let size = WorldSize::new(choice.data).unwrap();
                StepLayout::data_parallel(ShardPlan::new(shards, size).unwrap(), layers)
            }
            _ => {
                let shape = (columns, choice.stages_per_worker as usize);
                let stages = divide_layers(&each, &vec![1.0; layers], shape, false).unwrap();
                StepLayout::mesh(choice.workers() as usize, shards, stages, tensors).unwrap()
            }
        };
        let replicas = layout.replicas();
        let region = |elements: usize| RegionShape {
            elements,
            slices: vec![elements / replicas; replicas],
        };
        let buckets = (0..layers).rev().map(|layer| BucketShape {
            stage: layout
                .stages()
                .partition_point(|stage| stage.layers.end <= layer),
            layers: layer..layer + 1,
            regions: match choice.tensor {
                1 => vec![region(1_000_000); 1],
                _ => vec![region(200_000); 5],
            },
        });
        LayoutCandidate {
            choice,
            buckets: buckets.collect(),
            recomputed: 0..0,
            memory_bytes: vec![1 << 30; columns * tensors],
            layout,
        }
    }

    pub(crate) fn with_request<T>(
        worker: &WorkerCosts,
        cluster: ClusterShape,
        run: impl FnOnce(&StepRequest<'_>) -> T,
    ) -> T {
        let links = LinkCosts::new(CostModel::default(), 1e-5, 1e-10, cluster.link);
        let collectives = CollectiveTimes::new(links, None);
        run(&StepRequest {
            worker,
            links: &links,
            collectives: &collectives,
            algorithm: None,
            cluster,
            threads: 1,
            in_lock_step: false,
            sums_in_passes: 0,
            has_trust_ratios: false,
            hash_parts: 8,
            crowded_s: 0.0,
        })
    }

    fn of(choice: LayoutChoice, cluster: ClusterShape) -> LayoutForecast {
        let worker = worker(8);
        with_request(&worker, cluster, |request| {
            forecast(&candidate(choice, 8, 8), request).unwrap()
        })
    }

    const DATA: LayoutChoice = LayoutChoice {
        data: 4,
        ..LayoutChoice::ONE
    };

    const PIPELINE: LayoutChoice = LayoutChoice {
        pipeline: 4,
        copies: 2,
        ..LayoutChoice::ONE
    };

    #[test]
    fn one_worker_takes_the_sum_of_its_layers() {
        let one = of(LayoutChoice::ONE, cluster(1, 16));
        assert!((one.step_s - 8.0 * 8.0 * 3.0).abs() < 1e-9, "{one:?}");
        assert_eq!((one.bubble, one.communication, one.hosts), (0.0, 0.0, 1));
    }

    #[test]
    fn data_parallelism_divides_the_shards_and_pipelines_have_their_bubble() {
        let data = of(DATA, cluster(1, 16));
        assert!((data.computing_s - 48.0).abs() < 1e-9, "{data:?}");
        assert!(data.step_s > 48.0 && data.step_s < 48.1, "{data:?}");
        let pipeline = of(PIPELINE, cluster(1, 16));
        // 3 of 8 + 3 parts.
        assert!((pipeline.bubble - 3.0 / 11.0).abs() < 1e-9, "{pipeline:?}");
        assert!(
            (pipeline.computing_s - 6.0 * 11.0).abs() < 1e-9,
            "{pipeline:?}"
        );
        let zero_bubble = LayoutChoice {
            schedule: PipelineSchedule::ZeroBubble,
            ..PIPELINE
        };
        assert!(of(zero_bubble, cluster(1, 16)).step_s < pipeline.step_s);
    }

    #[test]
    fn slow_links_between_hosts_count() {
        let slow = ClusterShape {
            link: HostLink {
                bytes_per_s: 1e6,
                latency_s: 1e-3,
            },
            ..cluster(4, 1)
        };
        let data = of(DATA, slow);
        // 32 MB of gradients pass each link nearly twice at 1 MB/s, partly beside the passes.
        assert!(data.communication > 0.1 && data.hosts == 4, "{data:?}");
        let pipeline = of(PIPELINE, slow);
        assert!(pipeline.communication > 0.0, "{pipeline:?}");
        assert!(data.step_s > of(DATA, cluster(4, 1)).step_s);
    }

    #[test]
    fn the_workers_of_a_host_share_its_memory() {
        let packed = of(DATA, cluster(1, 16));
        assert_eq!((packed.worker_bytes, packed.host_bytes), (1 << 30, 4 << 30));
        assert!(packed.fits);
        let spread = of(DATA, cluster(2, 2));
        assert_eq!((spread.host_bytes, spread.hosts), (2 << 30, 2));
        let small = ClusterShape {
            memory_bytes: 3 << 30,
            ..cluster(1, 16)
        };
        assert!(!of(DATA, small).fits);
        // Unequal parts: the sum counts, not the largest one times their number.
        let mut uneven = candidate(PIPELINE, 8, 8);
        uneven.memory_bytes = vec![3 << 30, 1 << 30, 1 << 30, 1 << 30];
        let worker = worker(8);
        let found = with_request(&worker, cluster(1, 16), |request| {
            forecast(&uneven, request).unwrap()
        });
        assert_eq!((found.worker_bytes, found.host_bytes), (3 << 30, 6 << 30));
    }

    #[test]
    fn a_divided_state_is_updated_in_parts_and_gathered() {
        let mut worker = worker(8);
        worker.alone.update_element_s = 1e-6;
        let step = |zero, copies| {
            let choice = LayoutChoice {
                zero,
                copies,
                ..DATA
            };
            with_request(&worker, cluster(1, 16), |request| {
                forecast(&candidate(choice, 8, 8), request).unwrap()
            })
        };
        let (whole, divided, copied) = (step(0, 1), step(2, 1), step(2, 2));
        // 8 s of updates, a quarter of them, or two quarters.
        assert!((whole.computing_s - 56.0).abs() < 1e-6, "{whole:?}");
        assert!((divided.computing_s - 50.0).abs() < 1e-6, "{divided:?}");
        assert!((copied.computing_s - 52.0).abs() < 1e-6, "{copied:?}");
        assert!(step(3, 1).communication > 0.0);
    }

    #[test]
    fn reading_limits_a_step() {
        let mut worker = worker(8);
        worker.alone.decode_s = 1000.0;
        let found = with_request(&worker, cluster(1, 4), |request| {
            forecast(&candidate(DATA, 8, 8), request).unwrap()
        });
        assert!((found.step_s - 2000.0).abs() < 1e-6, "{found:?}");
    }

    const TENSOR: LayoutChoice = LayoutChoice {
        tensor: 4,
        copies: 2,
        ..LayoutChoice::ONE
    };

    /// Layers in four parts, which take a fifth each, and so do the undivided computations.
    fn worker_in_parts() -> WorkerCosts {
        let mut worker = worker(8);
        worker.alone.loss_s = 1.0;
        for layer in &mut worker.alone.layers {
            layer.first_part = Some(PassCosts {
                forward_s: 0.4,
                backward_s: 0.8,
                backward_weights_s: 0.4,
            });
            layer.transfers.forward = vec![PartTransfer::Sum { elements: 250_000 }; 2];
            layer.transfers.backward = vec![PartTransfer::Sum { elements: 250_000 }; 2];
        }
        let elements = vec![100; 4];
        worker.alone.loss_transfers = vec![PartTransfer::Gather { elements }; 2];
        worker
    }

    #[test]
    fn workers_that_divide_layers_compute_their_parts_and_what_belongs_to_none() {
        let mut worker = worker_in_parts();
        worker.alone.update_element_s = 1e-6;
        let of = |choice: LayoutChoice, cluster| {
            with_request(&worker, cluster, |request| {
                forecast(&candidate(choice, 8, 8), request).unwrap()
            })
        };
        let four = of(TENSOR, cluster(1, 16));
        // 8 shards of 8 layers, a quarter of the losses, and two parts of five of each layer in two copies.
        let expected = 64.0 * 1.2 + 8.0 / 4.0 + 2.0 * 8.0 * 0.4;
        assert!((four.computing_s - expected).abs() < 1e-6, "{four:?}");
        assert!(four.communication > 0.0 && four.bubble == 0.0, "{four:?}");
        let two = of(
            LayoutChoice {
                tensor: 2,
                copies: 1,
                ..TENSOR
            },
            cluster(1, 16),
        );
        let expected = 64.0 * 1.8 + 8.0 / 2.0 + 8.0 * 0.6;
        assert!((two.computing_s - expected).abs() < 1e-6, "{two:?}");
        // 4 sums of 1 MB for each layer and shard pass links at 1.25 GB/s more slowly than memory.
        let across = of(TENSOR, cluster(4, 1));
        assert!(
            across.communication > 2.0 * four.communication,
            "{across:?}"
        );
        let slow = ClusterShape {
            link: HostLink {
                bytes_per_s: 1e7,
                latency_s: 1e-3,
            },
            ..cluster(4, 1)
        };
        // Nothing is computed meanwhile: 256 sums, which cross the links of four hosts with at least 1.5 MB.
        let across = of(TENSOR, slow);
        assert!(
            across.step_s - across.computing_s > 256.0 * 0.15,
            "{across:?}"
        );
    }

    #[test]
    fn parts_pipelines_and_replicas_combine() {
        let worker = worker_in_parts();
        let mesh = LayoutChoice {
            data: 2,
            zero: 3,
            pipeline: 2,
            tensor: 2,
            copies: 2,
            ..LayoutChoice::ONE
        };
        let (found, host_bytes) = with_request(&worker, cluster(1, 16), |request| {
            let mut candidate = candidate(mesh, 8, 8);
            candidate.memory_bytes = vec![1 << 30, 2 << 30, 3 << 30, 4 << 30];
            (forecast(&candidate, request).unwrap(), 20 << 30)
        });
        assert_eq!(found.host_bytes, host_bytes);
        assert_eq!(found.worker_bytes, 4 << 30);
        // Four shards, each with 4 layers of 1.8 s in a stage, and one more for the pipeline to fill.
        assert!(
            found.computing_s > 5.0 * 7.2 && found.computing_s < 5.0 * 7.2 + 4.0,
            "{found:?}"
        );
        assert!((found.bubble - 0.2).abs() < 0.05, "{found:?}");
    }
}
