//! [`ServerMetrics`]: the statistics of a server, as text for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ronde_core::prometheus_text::PrometheusText;

/// The upper limits of the histogram of times, in seconds.
const SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// Requests of an endpoint by their time.
#[derive(Default)]
struct TimeHistogram {
    /// By the limits of [`SECONDS`], and those above all of them.
    counts: [u64; SECONDS.len() + 1],
    sum: f64,
}

/// The statistics of a server since its start.
#[derive(Default)]
pub(super) struct ServerMetrics {
    /// By endpoint and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// By endpoint.
    times: Mutex<BTreeMap<&'static str, TimeHistogram>>,
    batches: AtomicU64,
    samples: AtomicU64,
    tokens: AtomicU64,
}

impl ServerMetrics {
    /// Counts an answered request. `endpoint` is one of a few names, whatever path was requested.
    pub(super) fn count_request(&self, endpoint: &'static str, status: u16, time: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((endpoint, status)).or_default() += 1;
        drop(requests);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = times.entry(endpoint).or_default();
        let seconds = time.as_secs_f64();
        histogram.counts[SECONDS.partition_point(|limit| *limit < seconds)] += 1;
        histogram.sum += seconds;
    }

    /// Counts a batch of samples.
    pub(super) fn count_batch(&self, samples: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.samples.fetch_add(samples as u64, Ordering::Relaxed);
    }

    /// Counts generated tokens.
    pub(super) fn count_tokens(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Returns the text format of Prometheus. `queued` is the number of waiting requests.
    pub(super) fn render(&self, queued: usize) -> String {
        let mut page = PrometheusText::default();
        let mut counter = page.counter("ronde_serve_requests_total", "Answered requests.");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((endpoint, status), count) in &*requests {
            counter.value(&[("endpoint", endpoint), ("status", status)], *count as f64);
        }
        drop(requests);
        let mut histogram = page.histogram(
            "ronde_serve_request_seconds",
            "Time from the head of a request to that of its answer.",
        );
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        for (endpoint, TimeHistogram { counts, sum }) in &*times {
            histogram.values(&[("endpoint", endpoint)], &SECONDS, counts, *sum);
        }
        drop(times);
        for (name, help, value) in [
            ("batches", "Computed batches of samples.", &self.batches),
            ("samples", "Samples in computed batches.", &self.samples),
            ("tokens", "Generated tokens.", &self.tokens),
        ] {
            let value = value.load(Ordering::Relaxed) as f64;
            let name = format!("ronde_serve_{name}_total");
            page.counter(&name, help).value(&[], value);
        }
        page.gauge("ronde_serve_queued_requests", "Requests that wait.")
            .value(&[], queued as f64);
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let metrics = ServerMetrics::default();
        for seconds in [0.001, 0.002, 99.0] {
            metrics.count_request("predict", 200, Duration::from_secs_f64(seconds));
        }
        metrics.count_batch(7);
        let text = metrics.render(2);
        for line in [
            "ronde_serve_requests_total{endpoint=\"predict\",status=\"200\"} 3",
            "ronde_serve_request_seconds_bucket{endpoint=\"predict\",le=\"0.001\"} 1",
            "ronde_serve_request_seconds_bucket{endpoint=\"predict\",le=\"10\"} 2",
            "ronde_serve_request_seconds_bucket{endpoint=\"predict\",le=\"+Inf\"} 3",
            "ronde_serve_samples_total 7",
            "ronde_serve_queued_requests 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
