//! The scores of a sweep as SVG: a panel for each key, with its values along the horizontal axis.

use std::fmt::Write;

use crate::space::number;
use crate::state::Sweep;

/// The size of a panel and its margins.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 48.0;
/// The maximum number of panels; further keys are in the table.
const PANELS_MAX: usize = 12;
/// The number of panels in a row.
const COLUMNS: usize = 3;
/// The maximum number of labels below a panel.
const LABELS_MAX: usize = 8;

/// The colours, which follow the reader's choice of a dark or light page.
const STYLE: &str = "\
    .page{fill:#fff}.text{fill:#24292f;font:12px system-ui,sans-serif}.title{font-size:15px;font-weight:600}\
    .axis{stroke:#8c959f}.trial{fill:#0969da;fill-opacity:.6}.best{fill:#d1570a}\
    @media(prefers-color-scheme:dark){.page{fill:#0d1117}.text{fill:#e6edf3}.axis{stroke:#6e7681}\
    .trial{fill:#4493f8}.best{fill:#f0883e}}";

/// Draws the score of each trial over the values of each key; the best trial has its own colour. `None` without a score.
#[must_use]
pub fn svg(sweep: &Sweep) -> Option<String> {
    let ranking = sweep.ranking();
    let best = *ranking.first()?;
    let keys: Vec<&String> = sweep.file.keys.keys().take(PANELS_MAX).collect();
    let columns = keys.len().min(COLUMNS);
    let rows = keys.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * columns as f64, HEIGHT * rows as f64 + 20.0);
    let (name, metric) = (escaped(&sweep.name), escaped(&sweep.file.metric));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>Trials of {name}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"text title\" x=\"{LEFT}\" y=\"26\">{name}: {metric} of {} trials, trial {best} is the best</text>\n",
        ranking.len()
    );
    for (index, key) in keys.iter().enumerate() {
        let corner = (
            (index % COLUMNS) as f64 * WIDTH,
            (index / COLUMNS) as f64 * HEIGHT + 20.0,
        );
        panel(&mut out, sweep, key, &ranking, corner);
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// Draws the panel of a key with its upper left corner at a position.
fn panel(out: &mut String, sweep: &Sweep, key: &str, ranking: &[usize], corner: (f64, f64)) {
    let axis = ValueAxis::of(sweep, key, ranking);
    let scores: Vec<f64> = ranking
        .iter()
        .filter_map(|trial| Some(sweep.trials[*trial].score()?.1))
        .collect();
    let (low, high) = bounds(scores.iter().copied());
    let x = |part: f64| corner.0 + LEFT + part * (WIDTH - LEFT - RIGHT);
    let y = |score: f64| {
        let part = (score - low) / (high - low);
        corner.1 + HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    // Writing to a text cannot fail.
    let _ = writeln!(
        out,
        "<text class=\"text\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x(0.0),
        corner.1 + TOP - 18.0,
        escaped(key)
    );
    let (left, right, bottom) = (x(0.0), x(1.0), y(low));
    let _ = writeln!(
        out,
        "<path class=\"axis\" fill=\"none\" d=\"M{left:.1} {:.1}V{bottom:.1}H{right:.1}\"/>",
        y(high)
    );
    for score in [low, high] {
        let _ = writeln!(
            out,
            "<text class=\"text\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y(score) + 4.0,
            label(score)
        );
    }
    for (part, text) in axis.labels() {
        let _ = writeln!(
            out,
            "<text class=\"text\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(part),
            bottom + 18.0,
            escaped(&text)
        );
    }
    // The best one last, so that it is on top.
    for (place, (trial, score)) in ranking.iter().zip(&scores).enumerate().rev() {
        let class = if place == 0 { "best" } else { "trial" };
        let value = sweep.trials[*trial]
            .values
            .get(key)
            .map(ToString::to_string);
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>trial {trial}: {} at {}</title></circle>",
            x(axis.position(*trial)),
            y(*score),
            label(*score),
            escaped(&value.unwrap_or_default())
        );
    }
}

/// The horizontal axis of a panel.
struct ValueAxis {
    /// The position of each trial by number, from 0 to 1.
    positions: Vec<f64>,
    labels: Vec<(f64, String)>,
}

impl ValueAxis {
    fn of(sweep: &Sweep, key: &str, ranking: &[usize]) -> Self {
        let values: Vec<Option<&toml::Value>> = sweep
            .trials
            .iter()
            .map(|trial| trial.values.get(key))
            .collect();
        let numbers: Option<Vec<f64>> = values.iter().map(|value| number((*value)?)).collect();
        let is_logarithmic = sweep
            .file
            .keys
            .get(key)
            .is_some_and(crate::KeySpace::is_logarithmic);
        match numbers {
            Some(numbers) => Self::of_numbers(&numbers, ranking, is_logarithmic),
            None => {
                let texts: Vec<String> = values
                    .iter()
                    .map(|value| value.map_or_else(String::new, ToString::to_string))
                    .collect();
                Self::of_texts(&texts)
            }
        }
    }

    fn of_numbers(numbers: &[f64], ranking: &[usize], is_logarithmic: bool) -> Self {
        let scale = |value: f64| if is_logarithmic { value.ln() } else { value };
        let shown = ranking.iter().map(|trial| scale(numbers[*trial]));
        let (low, high) = bounds(shown);
        let part = |value: f64| ((scale(value) - low) / (high - low)).clamp(0.0, 1.0);
        let ends = if is_logarithmic {
            (low.exp(), high.exp())
        } else {
            (low, high)
        };
        Self {
            positions: numbers.iter().map(|value| part(*value)).collect(),
            labels: vec![(0.0, label(ends.0)), (1.0, label(ends.1))],
        }
    }

    fn of_texts(texts: &[String]) -> Self {
        let mut distinct: Vec<&String> = texts.iter().collect();
        distinct.sort();
        distinct.dedup();
        let part = |index: usize| (index as f64 + 0.5) / distinct.len() as f64;
        let position = |text: &String| part(distinct.binary_search(&text).unwrap_or(0));
        let short = |text: &str| text.chars().take(14).collect::<String>();
        let labels = distinct
            .iter()
            .enumerate()
            .map(|(index, text)| (part(index), short(text)));
        Self {
            positions: texts.iter().map(position).collect(),
            labels: match distinct.len() > LABELS_MAX {
                true => Vec::new(),
                false => labels.collect(),
            },
        }
    }

    fn position(&self, trial: usize) -> f64 {
        self.positions.get(trial).copied().unwrap_or(0.5)
    }

    fn labels(&self) -> Vec<(f64, String)> {
        self.labels.clone()
    }
}

/// Returns the smallest and the largest value, with some space between them.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    match high - low > 1e-12 * high.abs() {
        true => (low, high),
        false => (low - 0.5, high + 0.5),
    }
}

/// Returns a number with up to four digits.
fn label(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    rounded.to_string()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::SweepFile;

    #[test]
    fn each_key_has_a_panel_with_a_point_for_each_scored_trial() {
        let text = "version = 1\nsearch = \"grid\"\nmetric = \"accuracy\"\n[keys]\n\"model.kind\" = [\"mlp\", \"a<b\"]\n\
            \"train.learning_rate\" = { from = 0.001, to = 0.1, scale = \"log\", points = 3 }\n";
        let mut sweep = Sweep::new(
            "s".to_owned(),
            SweepFile::parse(text).unwrap(),
            String::new(),
        );
        assert_eq!(svg(&sweep), None);
        for score in [0.5, 0.75, 0.625] {
            let run = sweep.next().unwrap();
            sweep.start(&run);
            sweep.finish(&run, Ok(score.into()));
        }
        let svg = svg(&sweep).unwrap();
        assert_eq!(svg.matches("<circle").count(), 6);
        assert_eq!(svg.matches("class=\"best\"").count(), 2);
        for words in [
            "trial 1 is the best",
            ">model.kind<",
            "0.001",
            "a&lt;b",
            "trial 1: 0.75 at 0.01",
        ] {
            assert!(svg.contains(words), "{words:?} in\n{svg}");
        }
        // The value in the middle of a logarithmic axis is in the middle.
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0 + WIDTH;
        assert!(svg.contains(&format!("cx=\"{middle:.1}\"")), "{svg}");
    }
}
