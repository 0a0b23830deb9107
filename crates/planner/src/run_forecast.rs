//! [`RunForecast`]: all layouts of a run compared, the best one, and why.

use serde::Serialize;

use crate::advice::Advice;
use crate::advice::{batch_care, larger_machine, more_shards, one_worker, run_separately};
use crate::candidate::LayoutCandidate;
use crate::choice::LayoutChoice;
use crate::cluster::ClusterShape;
use crate::error::AdviseError;
use crate::forecast;
use crate::forecast::LayoutForecast;
use crate::other_exchanges::ExchangeForecast;
use crate::other_exchanges::other_exchanges;
use crate::run_request::RunLength;
use crate::run_request::RunRequest;

/// Layouts whose times differ by less are equal: measured times are not more exact.
const EQUAL: f64 = 1.02;

/// The forecasts of all layouts of a run.
#[derive(Debug, Clone, Serialize)]
pub struct RunForecast {
    /// The machines.
    pub cluster: ClusterShape,
    /// The length of the run.
    pub length: RunLength,
    /// The layouts: those that fit first, then by time.
    pub layouts: Vec<LayoutForecast>,
    /// The forecast of one worker, whether it fits or not.
    pub one_worker: LayoutForecast,
    /// The layout to take.
    pub best: LayoutForecast,
    /// Why it is the best.
    pub reason: String,
    /// Further notes.
    pub advice: Vec<Advice>,
    /// Other ways to exchange than sums in every step, the fastest first.
    pub other_exchanges: Vec<ExchangeForecast>,
}

impl RunForecast {
    /// Compares layouts. Cost: interprets two steps of each, and once more where hosts are several.
    ///
    /// # Errors
    /// [`AdviseError::NothingFits`] when no layout fits into memory, [`AdviseError::NoCores`] when a host has too few cores for
    /// a worker.
    pub fn compare(
        candidates: &[LayoutCandidate],
        request: &RunRequest<'_>,
    ) -> Result<Self, AdviseError> {
        let layouts = forecasts(candidates, request)?;
        let best = best(&layouts);
        let one = layouts
            .iter()
            .find(|layout| layout.choice == LayoutChoice::ONE);
        let (Some(best), Some(one)) = (best.cloned(), one.cloned()) else {
            return Err(nothing_fits(&layouts, request));
        };
        let fastest = layouts.iter().find(|layout| layout.fits).unwrap_or(&best);
        let mut advice = Vec::new();
        let unfit = layouts.iter().filter(|layout| !layout.fits).count();
        let alone = one_worker(&one, fastest, unfit);
        let best = if alone.is_some() { one.clone() } else { best };
        advice.extend(alone);
        advice.extend(on_larger_machine(candidates, request, &best)?);
        let cluster = request.step.cluster;
        let slots = cluster
            .workers_per_host(request.step.threads)?
            .saturating_mul(cluster.hosts);
        advice.extend(more_shards(&request.batch, slots, &best));
        advice.extend(batch_care(&request.batch));
        let separately = run_separately(request.configurations, slots, &one, &best);
        advice.extend(separately);
        let other_exchanges = other_exchanges(candidates, &layouts, &best, request)?;
        Ok(Self {
            other_exchanges,
            cluster,
            length: request.length,
            reason: reason(&layouts, &best, &one, cluster.memory_bytes),
            layouts,
            one_worker: one,
            best,
            advice,
        })
    }
}

/// Returns the forecasts of all candidates: those that fit first, then by time.
fn forecasts(
    candidates: &[LayoutCandidate],
    request: &RunRequest<'_>,
) -> Result<Vec<LayoutForecast>, AdviseError> {
    let found = candidates
        .iter()
        .map(|candidate| forecast(candidate, &request.step));
    let mut found = found.collect::<Result<Vec<_>, _>>()?;
    let one = found
        .iter()
        .find(|layout| layout.choice == LayoutChoice::ONE);
    let one_s = one.map_or(0.0, |one| one.step_s);
    let length = request.length;
    for layout in &mut found {
        let workers = f64::from(layout.choice.workers());
        layout.efficiency = one_s / (workers * layout.step_s);
        layout.run_s = length.steps as f64 * layout.step_s + length.evaluations_s / workers;
        let price = request.step.cluster.price_per_hour;
        layout.price = price.map(|price| price * f64::from(layout.hosts) * layout.run_s / 3600.0);
    }
    found.sort_by(|a, b| {
        let by_time = a.run_s.total_cmp(&b.run_s);
        let by_preference = a.choice.preference().cmp(&b.choice.preference());
        b.fits.cmp(&a.fits).then(by_time).then(by_preference)
    });
    Ok(found)
}

/// Returns the layout to take: of those about as fast as the fastest one, that with the fewest workers and divisions. One
/// without second copies is taken only where no other one fits.
fn best(layouts: &[LayoutForecast]) -> Option<&LayoutForecast> {
    let is_usual = |layout: &&LayoutForecast| layout.choice.copies == layout.choice.usual_copies();
    let fitting = || layouts.iter().filter(|layout| layout.fits);
    let usual: Vec<&LayoutForecast> = fitting().filter(is_usual).collect();
    let of = if usual.is_empty() {
        fitting().collect()
    } else {
        usual
    };
    let fastest_s = of
        .iter()
        .map(|layout| layout.run_s)
        .fold(f64::INFINITY, f64::min);
    let equal = of
        .into_iter()
        .filter(|layout| layout.run_s <= EQUAL * fastest_s);
    equal.min_by_key(|layout| layout.choice.preference())
}

fn nothing_fits(layouts: &[LayoutForecast], request: &RunRequest<'_>) -> AdviseError {
    let smallest = layouts.iter().min_by_key(|layout| layout.host_bytes);
    AdviseError::NothingFits {
        layouts: layouts.len(),
        smallest: smallest.map_or_else(String::new, |layout| layout.choice.to_string()),
        needed_bytes: smallest.map_or(0, |layout| layout.host_bytes),
        memory_bytes: request.step.cluster.memory_bytes,
    }
}

/// Compares the best layout with that of one host that has the cores of all hosts.
fn on_larger_machine(
    candidates: &[LayoutCandidate],
    request: &RunRequest<'_>,
    chosen: &LayoutForecast,
) -> Result<Option<Advice>, AdviseError> {
    if request.step.cluster.hosts < 2 || chosen.choice.workers() < 2 {
        return Ok(None);
    }
    let mut larger = request.clone();
    larger.step.cluster = request.step.cluster.as_one_host();
    let layouts = forecasts(candidates, &larger)?;
    let on_one_host = best(&layouts);
    Ok(on_one_host.and_then(|layout| larger_machine(&request.step.cluster, chosen, layout)))
}

/// Returns a sentence about the choice.
fn reason(
    layouts: &[LayoutForecast],
    best: &LayoutForecast,
    one: &LayoutForecast,
    memory_bytes: u64,
) -> String {
    let fitting = layouts.iter().filter(|layout| layout.fits).count();
    let mut parts = Vec::new();
    if !one.fits {
        parts.push(format!(
            "one worker does not fit ({} of {})",
            crate::report::bytes(one.host_bytes),
            crate::report::bytes(memory_bytes)
        ));
    }
    let is_other_shape = |layout: &&LayoutForecast| {
        let of = |choice: &LayoutChoice| (choice.data, choice.pipeline, choice.tensor, choice.zero);
        let is_usual = layout.choice.copies == layout.choice.usual_copies();
        layout.fits && is_usual && of(&layout.choice) != of(&best.choice)
    };
    let next = layouts.iter().find(is_other_shape);
    let compared = match (fitting, layouts.len() - fitting) {
        (1, 0) => "of one".to_owned(),
        (_, 0) => format!("of {fitting} layouts, which all fit"),
        (1, rest) => format!("of {} layouts, of which {rest} do not fit", rest + 1),
        (_, rest) => format!("of {fitting} layouts that fit ({rest} do not)"),
    };
    parts.push(match next {
        None => format!("the only shape {compared}"),
        Some(next) => {
            let more = 100.0 * (next.run_s / best.run_s - 1.0);
            match more {
                more if more > 2.0 => format!(
                    "the fastest {compared}; next, {more:.0} % slower: {}",
                    next.choice
                ),
                more if more >= -2.0 => format!(
                    "among the fastest {compared} and with the fewest workers and divisions; about as fast: {}",
                    next.choice
                ),
                more => format!(
                    "preferred to the fastest {compared}, {}, which is {:.0} % faster: see the advice",
                    next.choice, -more
                ),
            }
        }
    });
    let without_copies = layouts.iter().find(|layout| {
        layout.fits
            && layout.choice.copies < layout.choice.usual_copies()
            && layout.run_s * EQUAL < best.run_s
    });
    if let Some(faster) = without_copies.filter(|_| best.choice.workers() > 1) {
        parts.push(format!(
            "without second copies, {} would be {:.0} % faster, but the loss of a worker would lead back to the last checkpoint",
            faster.choice,
            100.0 * (1.0 - faster.run_s / best.run_s)
        ));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::AdviceKind;
    use crate::advice::BatchSettings;
    use crate::advice::RateRule;
    use crate::choice::{ChoiceLimits, layout_choices};
    use crate::cluster::HostLink;
    use crate::forecast::tests::{candidate, cluster, with_request, worker};

    fn compared(
        cluster: ClusterShape,
        memory: impl Fn(&LayoutChoice) -> u64,
        configurations: u32,
    ) -> Result<RunForecast, AdviseError> {
        let worker = worker(8);
        let limits = ChoiceLimits {
            workers_per_host: cluster.cores,
            hosts: cluster.hosts,
            shards: 16,
            pipeline_max: 8,
            interleaved_max: 4,
            parts: 1,
            zero_max: 3,
            has_orders: true,
        };
        let candidates = layout_choices(&limits)
            .into_iter()
            .map(|choice| LayoutCandidate {
                memory_bytes: vec![memory(&choice); choice.model_workers() as usize],
                ..candidate(choice, 8, 16)
            });
        let candidates: Vec<LayoutCandidate> = candidates.collect();
        with_request(&worker, cluster, |step| {
            let request = RunRequest {
                step: step.clone(),
                length: RunLength {
                    steps: 100,
                    evaluations_s: 10.0,
                },
                batch: BatchSettings {
                    samples: 64,
                    rate_chosen_for: None,
                    applied: None,
                    suited: RateRule::Linear,
                    adapts_layers: false,
                    warmup_steps: 0,
                    steps_per_epoch: 50,
                    steps: 100,
                    shards: 16,
                },
                configurations,
                codecs: &[],
            };
            RunForecast::compare(&candidates, &request)
        })
    }

    fn kinds(found: &RunForecast) -> Vec<AdviceKind> {
        found.advice.iter().map(|advice| advice.kind).collect()
    }

    #[test]
    fn other_exchanges_pay_on_slow_links_only() {
        let found = compared(cluster(1, 8), |_| 1 << 20, 1).unwrap();
        let local = |found: &RunForecast| {
            let of =
                |other: &&ExchangeForecast| other.settings.starts_with("--set sync.kind=local_sgd");
            found.other_exchanges.iter().find(of).cloned().unwrap()
        };
        assert!(!local(&found).pays(), "{:?}", local(&found));
        let mut slow = cluster(4, 1);
        slow.link = HostLink {
            bytes_per_s: 1e5,
            latency_s: 0.01,
        };
        let found = compared(slow, |_| 1 << 20, 1).unwrap();
        let local = local(&found);
        assert!(local.pays() && local.has_same_bits, "{local:?}");
        assert_eq!(local.workers, 4);
        let kinds: Vec<_> = found
            .other_exchanges
            .iter()
            .map(|other| &other.settings)
            .collect();
        assert_eq!(kinds.len(), 3, "one of each kind: {kinds:?}");
    }

    #[test]
    fn plain_data_parallelism_is_best_where_everything_fits() {
        let found = compared(cluster(1, 8), |_| 1 << 20, 1).unwrap();
        assert_eq!((found.best.choice.data, found.best.choice.zero), (8, 0));
        assert!(found.best.efficiency > 0.99, "{:?}", found.best);
        assert!((found.best.run_s - 100.0 * found.best.step_s - 10.0 / 8.0).abs() < 1e-9);
        assert!(found.reason.contains("which all fit"), "{}", found.reason);
        assert!(found.advice.is_empty(), "{:?}", found.advice);
    }

    #[test]
    fn a_model_that_does_not_fit_is_divided() {
        // 6 GiB for the whole model on hosts of 8 GiB with two cores.
        let memory = |choice: &LayoutChoice| {
            let zero = if choice.zero == 3 { choice.data } else { 1 };
            (6 << 30) / u64::from(choice.pipeline * zero)
        };
        let found = compared(cluster(2, 2), memory, 1).unwrap();
        assert!(
            found.best.fits && found.best.choice.workers() == 4,
            "{:?}",
            found.best
        );
        assert!(found.best.choice.is_held_once() || found.best.choice.pipeline > 1);
        assert!(found.layouts.iter().any(|layout| !layout.fits));
        let first_unfit = found
            .layouts
            .iter()
            .position(|layout| !layout.fits)
            .unwrap();
        assert!(
            found.layouts[first_unfit..]
                .iter()
                .all(|layout| !layout.fits)
        );
    }

    #[test]
    fn nothing_fits_with_what_the_smallest_lacks() {
        let memory = |choice: &LayoutChoice| (100 << 30) / u64::from(choice.workers());
        let error = compared(cluster(1, 8), memory, 1).unwrap_err().to_string();
        assert!(error.contains("no layout fits"), "{error}");
        assert!(
            error.contains("on a host of 8.0 GiB") && error.contains("help:"),
            "{error}"
        );
    }

    #[test]
    fn slow_links_lead_to_one_worker_or_a_larger_machine() {
        let link = HostLink {
            bytes_per_s: 1e5,
            latency_s: 0.1,
        };
        let slow = ClusterShape {
            link,
            ..cluster(2, 1)
        };
        let found = compared(slow, |_| 1 << 20, 1).unwrap();
        assert_eq!(
            found.best.choice,
            LayoutChoice::ONE,
            "{:?}",
            found.layouts[0]
        );
        assert!(
            kinds(&found).contains(&AdviceKind::OneWorker),
            "{:?}",
            found.advice
        );
        let middling = ClusterShape {
            link: HostLink {
                bytes_per_s: 1e6,
                latency_s: 0.1,
            },
            ..cluster(4, 2)
        };
        let found = compared(middling, |_| 1 << 20, 1).unwrap();
        assert!(
            kinds(&found).contains(&AdviceKind::LargerMachine),
            "{:?} {:?}",
            found.best,
            found.advice
        );
    }

    #[test]
    fn configurations_run_side_by_side_if_that_is_faster() {
        let slow = ClusterShape {
            link: HostLink {
                bytes_per_s: 1e6,
                latency_s: 0.01,
            },
            price_per_hour: Some(2.0),
            ..cluster(4, 2)
        };
        let found = compared(slow, |_| 1 << 20, 16).unwrap();
        assert!(
            kinds(&found).contains(&AdviceKind::RunSeparately),
            "{:?}",
            found.advice
        );
        let price = 2.0 * f64::from(found.best.hosts) * found.best.run_s / 3600.0;
        assert!((found.best.price.unwrap() - price).abs() < 1e-9);
    }

    #[test]
    fn too_few_shards_are_reported() {
        let found = compared(cluster(4, 16), |_| 1 << 20, 1).unwrap();
        assert!(
            kinds(&found).contains(&AdviceKind::MoreShards),
            "{:?} {:?}",
            found.best,
            found.advice
        );
    }
}
