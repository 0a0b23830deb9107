//! [`ExchangeForecast`]: other ways to exchange than the exact sum of all gradients in every step, and whether they pay.
//!
//! Local SGD and short forms of gradients are forecast as the same step with links on which each byte, or each byte and each message,
//! costs less. Parameter servers and gossip follow from the bytes of an update: workers do not wait for each other, but for their bytes.

use serde::Serialize;

use crate::candidate::LayoutCandidate;
use crate::cluster::HostLink;
use crate::collective_times::CollectiveTimes;
use crate::costs::LinkCosts;
use crate::error::AdviseError;
use crate::forecast;
use crate::forecast::LayoutForecast;
use crate::run_request::CodecCosts;
use crate::run_request::RunRequest;
use crate::step_request::StepRequest;

/// The steps between two exchanges of local SGD that forecasts assume, if an epoch has as many.
const INNER_STEPS: u64 = 50;
/// The updates between two points at which asynchronous workers meet, if an epoch has as many.
const ROUND_UPDATES: u64 = 200;
/// Another exchange is mentioned if it is this many times as fast.
const WORTH: f64 = 1.1;

/// The forecast of another exchange.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExchangeForecast {
    /// The settings, as arguments of `ronde train`.
    pub settings: String,
    /// The number of workers that it is fastest with.
    pub workers: u32,
    /// The seconds in which the samples of a step are computed.
    pub step_s: f64,
    /// How many times as fast it is as the best layout.
    pub speedup: f64,
    /// Whether the trained bits do not depend on the workers.
    pub has_same_bits: bool,
    /// The measured effect on the accuracy, compared with sums in every step.
    pub accuracy: String,
}

impl ExchangeForecast {
    /// Returns whether it is faster than the best layout by more than forecasts are wrong.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.speedup >= WORTH
    }
}

/// Returns a step whose bytes cost `bytes` of their time between and within hosts, and whose messages cost `messages` of theirs.
fn cheaper(
    candidate: &LayoutCandidate,
    request: &StepRequest<'_>,
    (bytes, messages): (f64, f64),
) -> Result<f64, AdviseError> {
    let mut links = *request.links;
    let of = &mut links.collectives;
    for cost in [
        &mut of.byte_s,
        &mut of.byte_reduced_s,
        &mut of.byte_across_s,
    ] {
        *cost *= bytes;
    }
    for cost in [
        &mut of.operation_s,
        &mut of.round_s,
        &mut of.round_across_s,
        &mut of.message_s,
    ] {
        *cost *= messages;
    }
    links.byte_s *= bytes;
    links.message_s *= messages;
    links.link = HostLink {
        bytes_per_s: links.link.bytes_per_s / bytes,
        latency_s: links.link.latency_s * messages,
    };
    let collectives = CollectiveTimes::new(links, request.algorithm);
    let mut request = request.clone();
    (request.links, request.collectives) = (&links, &collectives);
    Ok(forecast(candidate, &request)?.step_s)
}

/// The seconds in which a worker and the one that it exchanges with send `bytes` to each other.
fn sent_s(links: &LinkCosts, bytes: f64, is_across: bool) -> f64 {
    let (busy_s, arrives_s) = links.message(bytes as usize, is_across);
    busy_s + arrives_s
}

/// Returns the seconds of an update of asynchronous parameter servers among `workers`, with the best number of servers, and that number.
fn served(one_s: f64, weights_s: f64, workers: u32) -> (f64, u32) {
    let of_servers = |servers: u32| {
        // A worker receives the weights and sends the gradient; the links of the servers carry both directions at once.
        let by_workers = (one_s + 2.0 * weights_s) / f64::from(workers - servers);
        (by_workers.max(weights_s / f64::from(servers)), servers)
    };
    let all = (1..=(workers / 2).max(1)).map(of_servers);
    all.min_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or((f64::INFINITY, 1))
}

/// Returns the smallest number of senders or replicas for a number of workers: it divides the number of shards.
fn parts_for(workers: u32, shards: u32) -> u32 {
    let mut divisors = (workers..=shards).filter(|parts| shards.is_multiple_of(*parts));
    divisors.next().unwrap_or(shards)
}

/// Forecasts local SGD and each short form of gradients with the workers of a layout.
fn synchronous(
    candidate: &LayoutCandidate,
    request: &StepRequest<'_>,
    (codecs, epoch): (&[CodecCosts], u64),
) -> Result<Vec<ExchangeForecast>, AdviseError> {
    let workers = candidate.choice.data;
    let parts = parts_for(workers, candidate.layout.shards().shards());
    let exchange = |settings: String, step_s: f64, accuracy: &str| ExchangeForecast {
        settings,
        workers,
        step_s,
        speedup: 1.0,
        has_same_bits: true,
        accuracy: accuracy.to_owned(),
    };
    let steps = INNER_STEPS.min(epoch).max(1);
    let share = 1.0 / steps as f64;
    let mut all = vec![exchange(
        format!(
            "--set sync.kind=local_sgd --set sync.inner_steps={steps} --set sync.replicas={parts}"
        ),
        cheaper(candidate, request, (share, share))?,
        "a higher loss: 8.8 % after 306 steps of examples/gpt.toml",
    )];
    for of in codecs {
        let step_s = cheaper(candidate, request, (of.bytes_share, 1.0))?;
        all.push(exchange(
            format!(
                "--set compression.codec={} --set compression.senders={parts}",
                of.codec
            ),
            // Each worker encodes its gradient and its share of the sum, and decodes the forms that it receives.
            step_s + 2.0 * of.encode_s,
            of.accuracy,
        ));
    }
    Ok(all)
}

/// Forecasts parameter servers and gossip with the workers of a layout.
fn asynchronous(
    layout: &LayoutForecast,
    request: &StepRequest<'_>,
    epoch: u64,
) -> [ExchangeForecast; 2] {
    let workers = layout.choice.data;
    let updates = ROUND_UPDATES.min(epoch).max(1);
    let round = format!("--set sync.round_updates={updates}");
    let layers = &request.worker.alone.layers;
    let elements: usize = layers.iter().map(|of| of.elements).sum();
    let weights_s = sent_s(request.links, 4.0 * elements as f64, layout.hosts > 1);
    // On hosts that are as busy.
    let one_s = layout.computing_s * f64::from(workers);
    let (served_s, servers) = served(one_s, weights_s, workers);
    let exchange = |settings: String, step_s: f64, accuracy: String| ExchangeForecast {
        settings,
        workers,
        step_s,
        speedup: 1.0,
        has_same_bits: false,
        accuracy,
    };
    [
        exchange(
            format!("--set sync.kind=parameter_server {round} --set sync.servers={servers}"),
            served_s,
            format!("gradients are about {} updates old", workers - servers - 1),
        ),
        exchange(
            format!("--set sync.kind=gossip {round}"),
            // A worker begins an exchange after each update, and takes part in one that another worker begins.
            (one_s + 2.0 * weights_s) / f64::from(workers),
            "0.9 points lower with 8 workers on examples/gossip.toml".to_owned(),
        ),
    ]
}

/// Forecasts the other exchanges with every number of workers that share the logical shards, each with its best number, fastest first.
pub(crate) fn other_exchanges(
    candidates: &[LayoutCandidate],
    layouts: &[LayoutForecast],
    best: &LayoutForecast,
    request: &RunRequest<'_>,
) -> Result<Vec<ExchangeForecast>, AdviseError> {
    let (step, epoch) = (&request.step, request.batch.steps_per_epoch);
    let is_plain = |layout: &&LayoutForecast| {
        let choice = &layout.choice;
        layout.fits && choice.model_workers() == 1 && choice.zero == 0 && choice.data > 1
    };
    let mut found: Vec<ExchangeForecast> = Vec::new();
    for layout in layouts.iter().filter(is_plain) {
        let same = candidates.iter().find(|one| one.choice == layout.choice);
        let Some(candidate) = same else { continue };
        let each = synchronous(candidate, step, (request.codecs, epoch))?.into_iter();
        let each = each.chain(asynchronous(layout, step, epoch));
        found.extend(each.map(|exchange| ExchangeForecast {
            speedup: best.step_s / exchange.step_s,
            ..exchange
        }));
    }
    found.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
    let mut kinds = Vec::new();
    found.retain(|exchange| {
        // The first setting names the exchange, and the others follow from the number of workers.
        let kind = exchange.settings.split(' ').nth(1).map(str::to_owned);
        let is_new = !kinds.contains(&kind);
        kinds.push(kind);
        is_new
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_and_replicas_divide_the_shards() {
        let of = [(3, 8), (4, 8), (5, 8), (8, 8), (3, 12)];
        let parts = of.map(|(workers, shards)| parts_for(workers, shards));
        assert_eq!(parts, [4, 4, 8, 8, 3]);
    }

    #[test]
    fn servers_are_as_many_as_their_links_need() {
        // Computing takes all the time: one server, and three workers that compute.
        let (step_s, servers) = served(3.0, 1e-6, 4);
        assert_eq!(servers, 1);
        assert!((step_s - 1.0).abs() < 1e-5);
        // The weights take all the time: two of six, whose links carry them in half of it.
        let (step_s, servers) = served(1e-6, 1.0, 6);
        assert_eq!(servers, 2);
        assert!((step_s - 0.5).abs() < 1e-5);
    }
}
