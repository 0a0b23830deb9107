//! [`PrometheusText`]: metrics in Prometheus' text format, version 0.0.4.

use std::fmt;

/// A label and its value.
pub type MetricLabel<'a> = (&'a str, &'a dyn fmt::Display);

/// The text of metrics. Each metric is complete before the next one starts.
#[derive(Debug, Clone, Default)]
pub struct PrometheusText {
    text: String,
    /// The labels of every line, as text.
    labels: Vec<String>,
}

impl PrometheusText {
    /// Creates a text whose lines have these labels before their own.
    #[must_use]
    pub fn new(labels: &[MetricLabel<'_>]) -> Self {
        Self {
            text: String::new(),
            labels: labels.iter().map(label).collect(),
        }
    }

    /// Starts a number that only grows.
    pub fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> MetricValues<'a> {
        self.metric(name, help, "counter")
    }

    /// Starts a number that can fall.
    pub fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> MetricValues<'a> {
        self.metric(name, help, "gauge")
    }

    /// Starts a distribution of numbers.
    pub fn histogram<'a>(&'a mut self, name: &'a str, help: &str) -> MetricHistograms<'a> {
        MetricHistograms(self.metric(name, help, "histogram"))
    }

    fn metric<'a>(&'a mut self, name: &'a str, help: &str, kind: &str) -> MetricValues<'a> {
        let help = escaped(help, false);
        let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.text.push_str(&head);
        MetricValues { page: self, name }
    }

    /// Returns the text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// The lines of a counter or gauge.
#[derive(Debug)]
pub struct MetricValues<'a> {
    page: &'a mut PrometheusText,
    name: &'a str,
}

impl MetricValues<'_> {
    /// Adds the value for some labels.
    pub fn value(&mut self, labels: &[MetricLabel<'_>], value: f64) {
        self.line("", labels, value);
    }

    fn line(&mut self, suffix: &str, labels: &[MetricLabel<'_>], value: f64) {
        let all = self.page.labels.iter().cloned();
        let all: Vec<String> = all.chain(labels.iter().map(label)).collect();
        let labels = match all.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", all.join(",")),
        };
        let line = format!("{}{suffix}{labels} {}\n", self.name, number(value));
        self.page.text.push_str(&line);
    }
}

/// The lines of a histogram.
#[derive(Debug)]
pub struct MetricHistograms<'a>(MetricValues<'a>);

impl MetricHistograms<'_> {
    /// Adds the numbers for some labels: how many there are up to each of the ascending limits, above the previous one, and
    /// above all limits; and their sum.
    pub fn values(&mut self, labels: &[MetricLabel<'_>], limits: &[f64], counts: &[u64], sum: f64) {
        let mut total = 0;
        let limits = limits.iter().copied().chain([f64::INFINITY]);
        for (limit, count) in limits.zip(counts) {
            total += count;
            let limit = number(limit);
            let labels = [labels, &[("le", &limit)]].concat();
            self.0.line("_bucket", &labels, total as f64);
        }
        self.0.line("_sum", labels, sum);
        self.0.line("_count", labels, total as f64);
    }
}

fn label((name, value): &MetricLabel<'_>) -> String {
    format!("{name}=\"{}\"", escaped(&value.to_string(), true))
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

fn escaped(text: &str, is_quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    match is_quoted {
        true => text.replace('"', "\\\""),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_heads_labels_and_cumulative_buckets() {
        let mut page = PrometheusText::new(&[("run", &"a\\\"b\"\n")]);
        page.counter("c_total", "Of\na \"c\\d\".").value(&[], 3.0);
        let mut gauge = page.gauge("g", "G.");
        gauge.value(&[("rank", &0)], f64::NAN);
        gauge.value(&[("rank", &1)], f64::NEG_INFINITY);
        page.histogram("h", "H.")
            .values(&[], &[0.5, 1.0], &[1, 0, 2], 9.25);
        let run = "run=\"a\\\\\\\"b\\\"\\n\"";
        assert_eq!(
            page.finish(),
            format!(
                "# HELP c_total Of\\na \"c\\\\d\".\n# TYPE c_total counter\nc_total{{{run}}} 3\n\
                 # HELP g G.\n# TYPE g gauge\ng{{{run},rank=\"0\"}} NaN\ng{{{run},rank=\"1\"}} -Inf\n\
                 # HELP h H.\n# TYPE h histogram\nh_bucket{{{run},le=\"0.5\"}} 1\nh_bucket{{{run},le=\"1\"}} 1\n\
                 h_bucket{{{run},le=\"+Inf\"}} 3\nh_sum{{{run}}} 9.25\nh_count{{{run}}} 3\n"
            )
        );
        let mut page = PrometheusText::default();
        page.gauge("g", "G.").value(&[], 1.5);
        assert!(page.finish().ends_with("\ng 1.5\n"));
    }
}
