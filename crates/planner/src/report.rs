//! The forecasts of a run as a table and as JSON.

use std::fmt::Write;

use ronde_report::TextTable;
use ronde_schedule::ShardOrder;
use serde::Serialize;

use crate::choice::LayoutChoice;
use crate::choice::name_of;
use crate::forecast::LayoutForecast;
use crate::other_exchanges::ExchangeForecast;
use crate::run_forecast::RunForecast;
use crate::scaling::ScalingCurve;

/// The number of layouts in a table unless all are requested.
const ROWS: usize = 12;

/// Returns bytes with a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match value {
        value if value >= f64::from(1 << 30) => format!("{:.2} GiB", value / f64::from(1 << 30)),
        value => format!("{:.0} MiB", value / f64::from(1 << 20)),
    }
}

/// Returns a duration with a unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// Returns a price with as many digits as it needs.
fn price(price: f64) -> String {
    match price {
        price if price < 0.1 => format!("{price:.5}"),
        price => format!("{price:.2}"),
    }
}

fn columns(layout: &LayoutForecast) -> [String; 15] {
    let choice = layout.choice;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    [
        choice.workers().to_string(),
        choice.data.to_string(),
        choice.zero.to_string(),
        choice.pipeline.to_string(),
        match choice.pipeline {
            1 if choice.order == ShardOrder::ByLayer => "by_layer".to_owned(),
            1 => "-".to_owned(),
            _ => name_of(choice.schedule).to_owned(),
        },
        choice.tensor.to_string(),
        match choice.is_held_once() {
            true => choice.copies.to_string(),
            false => "-".to_owned(),
        },
        layout.recomputed_layers.to_string(),
        bytes(layout.worker_bytes),
        duration(layout.step_s),
        percent(layout.bubble),
        percent(layout.communication),
        percent(layout.efficiency),
        match layout.fits {
            true => duration(layout.run_s),
            false => "does not fit".to_owned(),
        },
        layout.price.map_or_else(String::new, price),
    ]
}

const HEADS: [&str; 15] = [
    "workers",
    "data",
    "zero",
    "pipeline",
    "schedule",
    "tensor",
    "copies",
    "recomputed",
    "memory",
    "step",
    "bubble",
    "waiting",
    "efficiency",
    "run",
    "price",
];

/// Returns the layouts as a table with one line each; only the best ones unless `all` is set. Below it are the best layout and
/// the advice. `command` returns the command that trains the run in a layout.
#[must_use]
pub fn table(found: &RunForecast, all: bool, command: &dyn Fn(&LayoutChoice) -> String) -> String {
    let shown = shown(found, all);
    let layouts = &found.layouts;
    let hidden = [
        layouts
            .iter()
            .all(|layout| layout.choice.tensor == 1)
            .then_some("tensor"),
        layouts
            .iter()
            .all(|layout| layout.recomputed_layers == 0)
            .then_some("recomputed"),
        (found.cluster.price_per_hour.is_none()).then_some("price"),
    ];
    let visible = |cells: [String; 15]| -> Vec<String> {
        let cells = HEADS.into_iter().zip(cells);
        let cells = cells.filter(|(head, _)| !hidden.contains(&Some(*head)));
        cells.map(|(_, cell)| cell).collect()
    };
    let mut table = TextTable::new(visible(HEADS.map(str::to_owned))).right(0..HEADS.len());
    shown
        .iter()
        .for_each(|layout| table.row(visible(columns(layout))));
    let mut text = format!("{table}\n");
    let hidden = found.layouts.len() - shown.len();
    if hidden > 0 {
        let _ = writeln!(text, "... and {hidden} more layouts; --all shows them");
    }
    let _ = writeln!(text, "\nbest: {}", found.best.choice);
    let _ = writeln!(text, "  why: {}", found.reason);
    let _ = writeln!(
        text,
        "  {} for {} steps{}; each worker needs {}{}",
        duration(found.best.run_s),
        found.length.steps,
        found
            .best
            .price
            .map_or_else(String::new, |cost| format!(", price {}", price(cost))),
        bytes(found.best.worker_bytes),
        match found.best.sent_bytes {
            Some(sent) if sent > 0 => {
                format!(", and sends {} in a step", ronde_core::units::bytes(sent))
            }
            _ => String::new(),
        }
    );
    let _ = writeln!(text, "  start it with: {}", command(&found.best.choice));
    for advice in &found.advice {
        let _ = writeln!(text, "advice: {}", advice.message);
    }
    text.push_str(&exchanges(&found.other_exchanges, command));
    text
}

/// Returns a line for each other exchange that pays, or one line if none does.
fn exchanges(all: &[ExchangeForecast], command: &dyn Fn(&LayoutChoice) -> String) -> String {
    let paying: Vec<&ExchangeForecast> = all.iter().filter(|other| other.pays()).collect();
    match (paying.as_slice(), all.first()) {
        ([], None) => String::new(),
        ([], Some(fastest)) => format!(
            "other exchanges: none pays; the fastest is {:.2} times as fast as the best layout: {}\n",
            fastest.speedup, fastest.settings
        ),
        (paying, _) => {
            let line = |other: &&ExchangeForecast| {
                let workers = LayoutChoice {
                    data: other.workers,
                    ..LayoutChoice::ONE
                };
                format!(
                    "  {:.1} times as fast; {}{}:\n    {} {}\n",
                    other.speedup,
                    other.accuracy,
                    match other.has_same_bits {
                        true => "",
                        false => "; the trained bits differ from run to run",
                    },
                    command(&workers),
                    other.settings,
                )
            };
            let lines: String = paying.iter().map(line).collect();
            format!("other exchanges than sums in every step, with less accuracy:\n{lines}")
        }
    }
}

/// Returns the layouts that are shown: the first ones, the best one and one worker.
fn shown(found: &RunForecast, all: bool) -> Vec<&LayoutForecast> {
    let is_shown = |(index, layout): &(usize, &LayoutForecast)| {
        all || *index < ROWS
            || layout.choice == found.best.choice
            || layout.choice == found.one_worker.choice
    };
    let shown = found.layouts.iter().enumerate().filter(is_shown);
    shown.map(|(_, layout)| layout).collect()
}

/// Returns the forecasts as JSON: all layouts, the best one, the reason, the advice and the scaling.
///
/// # Errors
/// A number that JSON cannot express: a bug.
pub fn json(found: &RunForecast, curve: &ScalingCurve) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct ForecastDocument<'a> {
        format: &'static str,
        version: u32,
        #[serde(flatten)]
        forecast: &'a RunForecast,
        scaling: &'a ScalingCurve,
    }
    serde_json::to_string_pretty(&ForecastDocument {
        format: "ronde plan",
        version: 1,
        forecast: found,
        scaling: curve,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterShape, HostLink};
    use crate::run_request::RunLength;
    use crate::scaling::ScalingPoint;

    fn found() -> RunForecast {
        let layout = |data: u32, step_s: f64, fits| LayoutForecast {
            choice: LayoutChoice {
                data,
                ..LayoutChoice::ONE
            },
            worker_bytes: 3 << 29,
            recomputed_layers: 0,
            host_bytes: 3 << 30,
            fits,
            sent_bytes: Some(3 << 20),
            hosts: 1,
            step_s,
            computing_s: step_s,
            bubble: 0.0,
            communication: 0.125,
            efficiency: 0.5,
            run_s: 1000.0 * step_s,
            price: Some(1.25),
        };
        let layouts: Vec<LayoutForecast> = (1..=20)
            .map(|data| layout(data, 1.0 / f64::from(data), data < 20))
            .collect();
        RunForecast {
            cluster: ClusterShape {
                hosts: 1,
                cores: 20,
                memory_bytes: 4 << 30,
                link: HostLink::default(),
                price_per_hour: Some(1.2),
            },
            length: RunLength {
                steps: 1000,
                evaluations_s: 0.0,
            },
            one_worker: layouts[0].clone(),
            best: layouts[18].clone(),
            layouts,
            reason: "the fastest".to_owned(),
            advice: Vec::new(),
            other_exchanges: Vec::new(),
        }
    }

    fn shown_table(found: &RunForecast, all: bool) -> String {
        table(found, all, &|choice| {
            format!("train with {}", choice.workers())
        })
    }

    #[test]
    fn the_table_has_the_first_layouts_the_best_one_and_one_worker() {
        let text = shown_table(&found(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("workers") && lines[0].ends_with("price"),
            "{text}"
        );
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.contains("1.50 GiB  "))
                .count(),
            13,
            "{text}"
        );
        assert!(text.contains("... and 7 more layouts"), "{text}");
        assert!(text.contains("best: 19 workers: 19 x data"), "{text}");
        assert!(text.contains("start it with: train with 19\n"), "{text}");
        assert!(
            text.contains("1.50 GiB, and sends 3.0 MiB in a step"),
            "{text}"
        );
        let all = shown_table(&found(), true);
        assert!(
            all.contains("does not fit") && !all.contains("more layouts"),
            "{all}"
        );
    }

    #[test]
    fn the_table_of_a_model_in_parts_has_their_division() {
        assert!(!shown_table(&found(), false).contains("tensor"));
        let mut found = found();
        found.layouts[0].choice.tensor = 4;
        let text = shown_table(&found, false);
        assert!(text.contains("schedule  tensor  copies"), "{text}");
        assert!(text.contains("       4       1  "), "{text}");
    }

    #[test]
    fn json_has_everything() {
        let curve = ScalingCurve {
            shape: LayoutChoice::ONE,
            points: vec![ScalingPoint {
                workers: 1,
                same_batch: None,
                growing_batch: 1.0,
            }],
        };
        let text = json(&found(), &curve).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["layouts"].as_array().unwrap().len(), 20);
        assert_eq!(value["best"]["choice"]["data"], 19);
        assert_eq!(value["best"]["choice"]["schedule"], "1f1b");
        assert_eq!(value["scaling"]["points"][0]["workers"], 1);
    }
}
