//! [`ModelCosts`]: the measured costs of the layers of a model and the links of a machine.

use std::ops::Range;

use ronde_core::{PartTransfer, PartTransfers};
use ronde_schedule::CostModel;

use crate::cluster::HostLink;

/// The seconds of the passes of a layer for one shard of the largest size.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassCosts {
    /// The forward pass.
    pub forward_s: f64,
    /// The backward pass.
    pub backward_s: f64,
    /// The part of the backward pass for the gradients of the weights.
    pub backward_weights_s: f64,
}

impl PassCosts {
    /// Returns the costs at a share of the way to others.
    fn towards(self, other: Self, share: f64) -> Self {
        let mix = |a: f64, b: f64| a + (b - a) * share;
        Self {
            forward_s: mix(self.forward_s, other.forward_s),
            backward_s: mix(self.backward_s, other.backward_s),
            backward_weights_s: mix(self.backward_weights_s, other.backward_weights_s),
        }
    }
}

/// The measured costs of a layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerCosts {
    /// The name.
    pub name: String,
    /// The number of elements of its parameters and buffers.
    pub elements: usize,
    /// The bytes of its output for one shard, as they travel between stages.
    pub output_bytes: usize,
    /// The bytes of the output that belong to each part, if the output is divided along its tokens; otherwise empty.
    pub output_part_bytes: Vec<usize>,
    /// The passes of a worker that computes all parts of the layer.
    pub passes: PassCosts,
    /// The passes of a worker that computes the first part only; `None` for a layer that is not divided into parts.
    pub first_part: Option<PassCosts>,
    /// What workers that compute different parts exchange for one shard.
    pub transfers: PartTransfers,
}

impl LayerCosts {
    /// Returns the bytes of the output for one shard on a worker that computes some parts.
    #[must_use]
    pub fn output_bytes_of(&self, own: &Range<u32>) -> usize {
        let parts = (0..).zip(&self.output_part_bytes);
        let others = parts.filter(|(part, _)| !own.contains(part));
        let others: usize = others.map(|(_, bytes)| bytes).sum();
        self.output_bytes.saturating_sub(others)
    }

    /// Returns the passes of a worker that computes `own` of `parts` parts: costs are linear between one part and all of them.
    #[must_use]
    pub fn passes_of(&self, own: u32, parts: u32) -> PassCosts {
        match self.first_part {
            Some(first) if parts > 1 => {
                let share = f64::from(own.saturating_sub(1)) / f64::from(parts - 1);
                first.towards(self.passes, share)
            }
            _ => self.passes,
        }
    }
}

/// The measured times of a worker, in seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelCosts {
    /// The layers in order.
    pub layers: Vec<LayerCosts>,
    /// The loss of a shard.
    pub loss_s: f64,
    /// Adding one element of a shard's gradient to that of another shard.
    pub add_element_s: f64,
    /// Copying one element of a weight to or from an exchange, in buffers as long as those of the model.
    pub copy_element_s: f64,
    /// Updating one element: norms, optimizer, and hashing the weights.
    pub update_element_s: f64,
    /// The rest of a step, which does not depend on the layout.
    pub step_s: f64,
    /// Reading and decoding the samples of a shard, on one core.
    pub decode_s: f64,
    /// The number of parts into which layers are divided; 0 or 1 if they are not.
    pub parts: u32,
    /// What workers that compute different parts of the outputs exchange for the loss of a shard; nothing if each of them
    /// computes the loss of all outputs.
    pub loss_transfers: Vec<PartTransfer>,
    /// Copying an element of a value to and from an exchange between parts.
    pub exchange_element_s: f64,
}

impl ModelCosts {
    /// Returns the number of elements of all layers.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    /// Returns the costs at a share of the way to other costs of the same model, from 0 to 1.
    #[must_use]
    fn towards(&self, other: &Self, share: f64) -> Self {
        let share = share.clamp(0.0, 1.0);
        let mix = |a: f64, b: f64| a + (b - a) * share;
        let layers = self
            .layers
            .iter()
            .zip(&other.layers)
            .map(|(a, b)| LayerCosts {
                passes: a.passes.towards(b.passes, share),
                first_part: a.first_part.map(|first| {
                    let other = b.first_part.unwrap_or(first);
                    first.towards(other, share)
                }),
                ..a.clone()
            });
        Self {
            layers: layers.collect(),
            loss_s: mix(self.loss_s, other.loss_s),
            add_element_s: mix(self.add_element_s, other.add_element_s),
            copy_element_s: mix(self.copy_element_s, other.copy_element_s),
            update_element_s: mix(self.update_element_s, other.update_element_s),
            step_s: mix(self.step_s, other.step_s),
            decode_s: mix(self.decode_s, other.decode_s),
            parts: self.parts,
            loss_transfers: self.loss_transfers.clone(),
            exchange_element_s: mix(self.exchange_element_s, other.exchange_element_s),
        }
    }
}

/// The costs of a worker that computes alone on a machine, and of one among as many as the machine has cores for: cores share
/// memory and caches, and often arithmetic units.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerCosts {
    /// Alone.
    pub alone: ModelCosts,
    /// With all cores busy; `None` where a single worker has all cores, or nothing was measured.
    pub crowded: Option<ModelCosts>,
    /// The share of the machine's cores that a single worker uses, from 0 to 1.
    pub alone_share: f64,
}

impl WorkerCosts {
    /// Returns the costs of a worker while a share of the cores of its host are busy, from 0 to 1; between the two
    /// measurements, costs are linear in it.
    #[must_use]
    pub fn at(&self, share: f64) -> ModelCosts {
        match &self.crowded {
            Some(crowded) if self.alone_share < 1.0 => {
                let way = (share - self.alone_share) / (1.0 - self.alone_share);
                self.alone.towards(crowded, way)
            }
            _ => self.alone.clone(),
        }
    }
}

/// The costs of exchanging bytes within a host, as measured, and between hosts, as described.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCosts {
    /// The costs of collectives.
    pub collectives: CostModel,
    /// The seconds until a short message arrives on the same host.
    pub message_s: f64,
    /// The seconds of each further byte of a message on the same host.
    pub byte_s: f64,
    /// The link between hosts.
    pub link: HostLink,
}

impl LinkCosts {
    /// Returns costs in which the collectives between hosts have those of a link. `collectives` and the message costs are
    /// those within a host.
    #[must_use]
    pub fn new(collectives: CostModel, message_s: f64, byte_s: f64, link: HostLink) -> Self {
        let defaults = CostModel::default();
        let collectives = CostModel {
            // A message between hosts also passes through the system of both.
            round_across_s: link.latency_s + collectives.round_s,
            byte_across_s: 1.0 / link.bytes_per_s,
            byte_s: collectives.byte_s,
            message_s: collectives.message_s.max(f64::MIN_POSITIVE),
            ..collectives
        };
        Self {
            collectives,
            message_s: if message_s > 0.0 {
                message_s
            } else {
                defaults.round_s
            },
            byte_s,
            link,
        }
    }

    /// Returns the seconds in which a message occupies its link, and those until it arrives after that.
    #[must_use]
    pub fn message(&self, bytes: usize, is_across: bool) -> (f64, f64) {
        let bytes = bytes as f64;
        match is_across {
            // The memory of both hosts is read and written as within a host.
            true => (
                bytes / self.link.bytes_per_s,
                self.link.latency_s + self.message_s,
            ),
            false => (bytes * self.byte_s, self.message_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(forward_s: f64) -> ModelCosts {
        ModelCosts {
            layers: vec![LayerCosts {
                passes: PassCosts {
                    forward_s,
                    ..PassCosts::default()
                },
                elements: 10,
                ..LayerCosts::default()
            }],
            ..ModelCosts::default()
        }
    }

    #[test]
    fn costs_are_linear_between_one_worker_and_a_full_host() {
        let worker = WorkerCosts {
            alone: costs(1.0),
            crowded: Some(costs(2.0)),
            alone_share: 0.25,
        };
        let forward = |share| worker.at(share).layers[0].passes.forward_s;
        assert_eq!(
            [forward(0.0), forward(0.25), forward(1.0), forward(3.0)],
            [1.0, 1.0, 2.0, 2.0]
        );
        assert!((forward(0.625) - 1.5).abs() < 1e-12);
        assert_eq!(worker.at(0.5).elements(), 10);
        let single = WorkerCosts {
            crowded: None,
            ..worker
        };
        assert_eq!(single.at(1.0).layers[0].passes.forward_s, 1.0);
    }

    #[test]
    fn costs_are_linear_in_the_parts_of_a_layer() {
        let passes = |forward_s| PassCosts {
            forward_s,
            ..PassCosts::default()
        };
        let mut layer = LayerCosts {
            passes: passes(5.0),
            first_part: Some(passes(2.0)),
            ..LayerCosts::default()
        };
        let forward = |layer: &LayerCosts, own| layer.passes_of(own, 4).forward_s;
        assert_eq!([1, 2, 4].map(|own| forward(&layer, own)), [2.0, 3.0, 5.0]);
        layer.first_part = None;
        assert_eq!(forward(&layer, 1), 5.0);
    }

    #[test]
    fn messages_between_hosts_take_the_time_of_the_link() {
        let link = HostLink {
            bytes_per_s: 1e6,
            latency_s: 1e-3,
        };
        let costs = LinkCosts::new(CostModel::default(), 1e-5, 1e-9, link);
        let (busy, arrives) = costs.message(1_000_000, true);
        assert!((busy - 1.0).abs() < 1e-9 && (arrives - 1.01e-3).abs() < 1e-9);
        assert!((costs.message(1_000_000, false).0 - 1e-3).abs() < 1e-12);
        assert!((costs.collectives.byte_across_s - 1e-6).abs() < 1e-15);
    }
}
