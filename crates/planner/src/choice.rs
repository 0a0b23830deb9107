//! [`LayoutChoice`]: one way to divide a run among workers, and the list of all of them.

use std::fmt;

use ronde_schedule::{PipelineSchedule, ShardOrder};
use serde::Serialize;

/// One way to divide a run among workers. The trained bits do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct LayoutChoice {
    /// The number of workers with the same layers, which share the logical shards.
    pub data: u32,
    /// What these divide besides the shards, as `parallel.zero`.
    pub zero: u32,
    /// The number of workers that divide the layers.
    pub pipeline: u32,
    /// The number of workers that divide the parts of each layer.
    pub tensor: u32,
    /// The schedule of these.
    #[serde(serialize_with = "schedule_name")]
    pub schedule: PipelineSchedule,
    /// The number of stages of each of them; above 1 with the interleaved schedule only.
    pub stages_per_worker: u32,
    /// The order in which a worker computes several shards; another one than by shard only without a pipeline.
    #[serde(serialize_with = "order_name")]
    pub order: ShardOrder,
    /// How many workers hold each part of a divided state; 1 if the state is not divided.
    pub copies: u32,
}

fn order_name<S: serde::Serializer>(order: &ShardOrder, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match order {
        ShardOrder::ByShard => "by_shard",
        ShardOrder::ByLayer | ShardOrder::LockStep => "by_layer",
    })
}

fn schedule_name<S: serde::Serializer>(
    schedule: &PipelineSchedule,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name_of(*schedule))
}

/// Returns the name of a schedule in a run file.
#[must_use]
pub fn name_of(schedule: PipelineSchedule) -> &'static str {
    match schedule {
        PipelineSchedule::GPipe => "gpipe",
        PipelineSchedule::OneForwardOneBackward => "1f1b",
        PipelineSchedule::Interleaved => "interleaved",
        PipelineSchedule::ZeroBubble => "zero_bubble",
    }
}

/// The schedules in the order in which they are preferred.
const SCHEDULES: [PipelineSchedule; 4] = [
    PipelineSchedule::OneForwardOneBackward,
    PipelineSchedule::ZeroBubble,
    PipelineSchedule::Interleaved,
    PipelineSchedule::GPipe,
];

/// The orders of shards and layers, the preferred one first.
const ORDERS: [ShardOrder; 2] = [ShardOrder::ByShard, ShardOrder::ByLayer];

impl LayoutChoice {
    /// One worker.
    pub const ONE: Self = Self {
        data: 1,
        zero: 0,
        pipeline: 1,
        tensor: 1,
        schedule: PipelineSchedule::OneForwardOneBackward,
        stages_per_worker: 1,
        order: ShardOrder::ByShard,
        copies: 1,
    };

    /// Returns the number of workers.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.data * self.model_workers()
    }

    /// Returns the number of workers that have one replica of the model together.
    #[must_use]
    pub fn model_workers(&self) -> u32 {
        self.pipeline * self.tensor
    }

    /// Returns whether workers hold parts of the state only, perhaps with second copies.
    #[must_use]
    pub fn is_held_once(&self) -> bool {
        self.workers() > 1 && (self.zero > 0 || self.data == 1)
    }

    /// Returns the number of copies that a run has without a setting.
    #[must_use]
    pub fn usual_copies(&self) -> u32 {
        if self.is_held_once() && self.workers() > 2 {
            2
        } else {
            1
        }
    }

    /// Returns a key that orders layouts of equal times: fewer workers and fewer divisions are preferred.
    #[must_use]
    pub(crate) fn preference(&self) -> (u32, u32, u32, u32, bool, usize, bool) {
        let schedule = SCHEDULES.iter().position(|s| *s == self.schedule);
        let is_unusual = self.copies != self.usual_copies();
        (
            self.workers(),
            self.model_workers(),
            self.tensor,
            self.zero,
            is_unusual,
            schedule.unwrap_or(SCHEDULES.len()),
            self.order != ShardOrder::ByShard,
        )
    }
}

impl fmt::Display for LayoutChoice {
    /// Writes the layout as in `8 workers: 4 x data, zero 2, 2 x pipeline (1f1b), 2 copies`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers();
        if workers == 1 {
            return f.write_str("one worker");
        }
        write!(f, "{workers} workers: ")?;
        let mut parts = Vec::new();
        if self.data > 1 {
            parts.push(format!("{} x data", self.data));
        }
        if self.zero > 0 {
            parts.push(format!("zero {}", self.zero));
        }
        if self.order == ShardOrder::ByLayer {
            parts.push("by layer".to_owned());
        }
        if self.pipeline > 1 {
            parts.push(format!(
                "{} x pipeline ({})",
                self.pipeline,
                name_of(self.schedule)
            ));
        }
        if self.tensor > 1 {
            parts.push(format!("{} x tensor", self.tensor));
        }
        if self.is_held_once() {
            let s = if self.copies == 1 { "y" } else { "ies" };
            parts.push(format!("{} cop{s}", self.copies));
        }
        f.write_str(&parts.join(", "))
    }
}

/// What limits the layouts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceLimits {
    /// The number of workers that a host has cores for.
    pub workers_per_host: u32,
    /// The number of hosts.
    pub hosts: u32,
    /// The number of logical shards.
    pub shards: u32,
    /// The most workers that can divide the layers with one stage each; 1 for a model without pipelines.
    pub pipeline_max: u32,
    /// The same with two stages each.
    pub interleaved_max: u32,
    /// The number of parts into which layers are divided; 1 if they are not.
    pub parts: u32,
    /// The highest level of `parallel.zero` that the model supports.
    pub zero_max: u32,
    /// Whether a worker may compute its shards layer by layer instead of one after the other.
    pub has_orders: bool,
}

impl ChoiceLimits {
    /// Returns the numbers of workers that are considered: powers of two, whole hosts, as many as there are shards and all.
    fn worker_counts(&self) -> Vec<u32> {
        let all = self.workers_per_host.saturating_mul(self.hosts).max(1);
        let doubled = |from: u32| {
            std::iter::successors(Some(from.max(1)), |count| count.checked_mul(2))
                .take_while(move |&count| count <= all)
        };
        let mut counts: Vec<u32> = doubled(1).chain(doubled(self.workers_per_host)).collect();
        counts.extend([all, self.shards.clamp(1, all)]);
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

impl ChoiceLimits {
    /// Returns the numbers of workers that may divide the parts of each layer: without those that leave the worker with the most
    /// parts as many as fewer workers do.
    fn tensors(&self) -> Vec<u32> {
        let parts = self.parts.max(1);
        let most = |tensor: u32| parts.div_ceil(tensor);
        (1..=parts)
            .filter(|&tensor| tensor == 1 || most(tensor) < most(tensor - 1))
            .collect()
    }

    /// Returns the pipelines and the divisions of layers of a number of workers.
    fn model_divisions(&self, workers: u32) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        for tensor in self.tensors() {
            let most = workers.min(self.pipeline_max.max(1));
            for pipeline in 1..=most {
                let together = pipeline.saturating_mul(tensor);
                let data = workers / together;
                // Each worker needs a shard, and each pipeline as many shards as workers.
                let is_possible = workers.is_multiple_of(together)
                    && data <= self.shards
                    && (pipeline == 1 || self.shards / data >= pipeline);
                if is_possible {
                    found.push((pipeline, tensor));
                }
            }
        }
        found
    }
}

/// Returns the layouts that limits allow, in ascending order of workers: every product of data, pipeline and tensor parallelism
/// with every schedule, level of `parallel.zero` and number of copies. Memory is not considered.
#[must_use]
pub fn layout_choices(limits: &ChoiceLimits) -> Vec<LayoutChoice> {
    let mut choices = Vec::new();
    for workers in limits.worker_counts() {
        for (pipeline, tensor) in limits.model_divisions(workers) {
            let data = workers / (pipeline * tensor);
            let schedules = if pipeline == 1 {
                &SCHEDULES[..1]
            } else {
                &SCHEDULES[..]
            };
            for &schedule in schedules {
                let is_interleaved = schedule == PipelineSchedule::Interleaved;
                if is_interleaved && pipeline > limits.interleaved_max {
                    continue;
                }
                let zero_max = if data > 1 { limits.zero_max } else { 0 };
                for zero in 0..=zero_max {
                    let choice = LayoutChoice {
                        data,
                        zero,
                        pipeline,
                        tensor,
                        schedule,
                        stages_per_worker: if is_interleaved { 2 } else { 1 },
                        order: ShardOrder::ByShard,
                        copies: 1,
                    };
                    // It saves memory for gradients of several shards.
                    let has_orders =
                        limits.has_orders && pipeline == 1 && zero >= 2 && limits.shards > data;
                    let orders = if has_orders {
                        &ORDERS[..]
                    } else {
                        &ORDERS[..1]
                    };
                    for &order in orders {
                        let choice = LayoutChoice { order, ..choice };
                        let copies = (1..=choice.usual_copies()).rev();
                        choices.extend(copies.map(|copies| LayoutChoice { copies, ..choice }));
                    }
                }
            }
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn limits(workers_per_host: u32, hosts: u32, shards: u32) -> ChoiceLimits {
        ChoiceLimits {
            workers_per_host,
            hosts,
            shards,
            pipeline_max: 4,
            interleaved_max: 2,
            parts: 1,
            zero_max: 3,
            has_orders: true,
        }
    }

    #[test]
    fn the_order_by_layer_is_for_divided_gradients_of_several_shards() {
        let choices = layout_choices(&limits(4, 1, 8));
        let by_layer = |choice: &&LayoutChoice| choice.order == ShardOrder::ByLayer;
        assert!(choices.iter().filter(by_layer).count() > 0);
        for choice in choices.iter().filter(by_layer) {
            assert!(choice.zero >= 2 && choice.pipeline == 1, "{choice}");
            assert!(choice.to_string().contains("by layer"));
        }
        let one_each = layout_choices(&limits(4, 1, 4));
        let full = one_each.iter().filter(|choice| choice.data == 4);
        assert_eq!(full.filter(by_layer).count(), 0);
    }

    #[test]
    fn every_product_occurs_once() {
        let choices = layout_choices(&limits(4, 2, 8));
        let distinct: HashSet<_> = choices.iter().collect();
        assert_eq!(distinct.len(), choices.len());
        assert_eq!(choices[0], LayoutChoice::ONE);
        let count =
            |filter: &dyn Fn(&LayoutChoice) -> bool| choices.iter().filter(|c| filter(c)).count();
        // 8 workers: data 8 with four levels, three of them with copies; 4 x 2 with four schedules.
        assert_eq!(count(&|c| c.workers() == 8 && c.pipeline == 1), 7);
        assert_eq!(count(&|c| c.workers() == 8 && c.pipeline == 2), 4 * 7);
        assert_eq!(count(&|c| c.workers() == 8 && c.pipeline == 4), 3 * 7);
        assert_eq!(
            count(&|c| c.pipeline == 4 && c.schedule == PipelineSchedule::Interleaved),
            0
        );
        assert_eq!(count(&|c| c.data == 1 && c.zero > 0), 0);
        for choice in &choices {
            assert!(choice.data <= 8 && 8 / choice.data >= choice.pipeline || choice.pipeline == 1);
        }
    }

    #[test]
    fn layers_in_parts_are_divided_where_that_leaves_each_worker_less() {
        let of = |parts| {
            let limits = ChoiceLimits {
                parts,
                ..limits(8, 1, 8)
            };
            (limits.tensors(), layout_choices(&limits))
        };
        assert_eq!(
            [1, 4, 5, 6].map(|parts| of(parts).0),
            [vec![1], vec![1, 2, 4], vec![1, 2, 3, 5], vec![1, 2, 3, 6],]
        );
        let choices = of(4).1;
        let distinct: HashSet<_> = choices.iter().collect();
        assert_eq!(distinct.len(), choices.len());
        let shapes = choices.iter().filter(|choice| choice.workers() == 8);
        let shapes: HashSet<_> = shapes
            .map(|choice| (choice.data, choice.pipeline, choice.tensor))
            .collect();
        let expected = [
            (8, 1, 1),
            (4, 2, 1),
            (2, 4, 1),
            (4, 1, 2),
            (2, 2, 2),
            (1, 4, 2),
            (2, 1, 4),
            (1, 2, 4),
        ];
        assert_eq!(shapes, expected.into_iter().collect());
        let alone = LayoutChoice {
            tensor: 4,
            ..LayoutChoice::ONE
        };
        assert!(alone.is_held_once() && alone.usual_copies() == 2);
    }

    #[test]
    fn shards_limit_the_workers() {
        let choices = layout_choices(&limits(16, 4, 6));
        assert!(choices.iter().all(|choice| choice.data <= 6));
        assert!(choices.iter().any(|choice| choice.workers() == 6));
        let single = layout_choices(&ChoiceLimits {
            pipeline_max: 1,
            zero_max: 0,
            has_orders: true,
            ..limits(1, 1, 1)
        });
        assert_eq!(single, [LayoutChoice::ONE]);
    }

    #[test]
    fn a_layout_is_described() {
        let choice = LayoutChoice {
            data: 4,
            zero: 2,
            pipeline: 2,
            tensor: 1,
            schedule: PipelineSchedule::ZeroBubble,
            stages_per_worker: 1,
            order: ShardOrder::ByShard,
            copies: 1,
        };
        assert_eq!(
            choice.to_string(),
            "8 workers: 4 x data, zero 2, 2 x pipeline (zero_bubble), 1 copy"
        );
        let in_parts = LayoutChoice {
            tensor: 2,
            ..choice
        };
        assert_eq!(
            in_parts.to_string(),
            "16 workers: 4 x data, zero 2, 2 x pipeline (zero_bubble), 2 x tensor, 1 copy"
        );
        assert_eq!(LayoutChoice::ONE.to_string(), "one worker");
    }
}
