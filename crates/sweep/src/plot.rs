//! The scores of a sweep as SVG: a panel for each key, with its values along the horizontal axis.

use std::collections::BTreeSet;

use ronde_report::{Chart, ChartAxis, Colour, Curve, CurveStyle, Panel, Point, Scale};

use crate::space::{KeySpace, number};
use crate::state::{Sweep, Trial};

/// The maximum number of panels; further keys are in the table.
const PANELS_MAX: usize = 12;
/// About the number of ticks of an axis.
const TICKS: usize = 3;

/// Draws the score of each trial over the values of each key; the best trial has its own colour. `None` without a score.
#[must_use]
pub fn svg(sweep: &Sweep) -> Option<String> {
    let ranking = sweep.ranking();
    let best = *ranking.first()?;
    let panels = sweep.file.keys.keys().take(PANELS_MAX);
    let chart = Chart {
        title: format!("Trials of {}", sweep.name),
        heading: format!(
            "{}: {} of {} trials, trial {best} is the best",
            sweep.name,
            sweep.file.metric,
            ranking.len()
        ),
        panels: panels
            .map(|key| panel(sweep, key, &ranking))
            .collect::<Option<_>>()?,
        columns: 3,
        panel_size: (380.0, 280.0),
    };
    Some(chart.svg())
}

/// Returns the panel of a key.
fn panel(sweep: &Sweep, key: &str, ranking: &[usize]) -> Option<Panel> {
    let (axis, positions) = value_axis(sweep, key, ranking)?;
    // The best one last, so that it is on top.
    let points = ranking.iter().zip(positions).rev().map(|(trial, x)| {
        let trial_of = &sweep.trials[*trial];
        let (y, value) = (trial_of.score()?.1, trial_of.values.get(key));
        let value = value.map_or_else(String::new, ToString::to_string);
        let note = format!("trial {trial}: {} at {value}", short(y));
        Some(Point { x, y, note })
    });
    let mut others: Vec<Point> = points.collect::<Option<_>>()?;
    let best = others.split_off(others.len().saturating_sub(1));
    let scores = others.iter().chain(&best).map(|point| point.y);
    let scores = ChartAxis::of(scores, Scale::Linear, TICKS)?;
    let curve = |colour, points| Curve {
        name: String::new(),
        colour,
        style: CurveStyle::Points,
        points,
    };
    Some(Panel {
        x: (axis, key.to_owned()),
        y: (scores, sweep.file.metric.clone()),
        curves: vec![curve(Colour::First, others), curve(Colour::Second, best)],
    })
}

/// Returns the axis for the values of a key, and the position of each trial of the ranking on it.
fn value_axis(sweep: &Sweep, key: &str, ranking: &[usize]) -> Option<(ChartAxis, Vec<f64>)> {
    let ranked = ranking.iter().map(|trial| &sweep.trials[*trial]);
    let numbers = ranked.clone().map(|trial| number(trial.values.get(key)?));
    if let Some(numbers) = numbers.collect::<Option<Vec<f64>>>() {
        let space = sweep.file.keys.get(key);
        let scale = match space.is_some_and(KeySpace::is_logarithmic) {
            true => Scale::Logarithmic,
            false => Scale::Linear,
        };
        let axis = ChartAxis::of(numbers.iter().copied(), scale, TICKS)?;
        return Some((axis, numbers));
    }
    let text = |trial: &Trial| {
        let value = trial.values.get(key);
        value.map_or_else(String::new, ToString::to_string)
    };
    let distinct: BTreeSet<String> = sweep.trials.iter().map(text).collect();
    let names = Vec::from_iter(distinct);
    let position = |trial| names.binary_search(&text(trial)).unwrap_or(0) as f64;
    let positions = ranked.map(position).collect();
    Some((ChartAxis::named(&names), positions))
}

/// Returns a number with up to four digits.
fn short(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    rounded.to_string()
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
        assert_eq!(svg.matches("class=\"point second\"").count(), 2);
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
        let middle = 380.0 + 70.0 + (380.0 - 70.0 - 24.0) / 2.0;
        assert!(svg.contains(&format!("cx=\"{middle:.1}\"")), "{svg}");
    }
}
