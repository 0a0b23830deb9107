//! The loss curve as SVG.

use ronde_report::{Chart, ChartAxis, Colour, Curve, CurveStyle, Panel, Scale};

use crate::loss_curve::LossCurve;
use crate::render::number;

/// The maximum number of evaluations that are drawn as points.
const POINTS_MAX: usize = 200;

/// Draws the loss over the steps: the training loss of each step, its smoothed curve and the evaluations, with ticks and
/// a legend. Returns `None` if there are fewer than two points. At most about 200 KB.
#[must_use]
pub fn svg(curve: &LossCurve) -> Option<String> {
    let smoothed = curve.smoothed();
    let (last, loss) = *smoothed.last()?;
    if smoothed.len() < 2 {
        return None;
    }
    let evaluated = curve.test().last();
    let last = last.max(evaluated.map_or(0.0, |point| point.0));
    let all = curve.train().iter().chain(curve.test());
    let drawn = |name: String, colour, style, points: &[(f64, f64)]| Curve {
        name,
        colour,
        style,
        points: points.iter().copied().map(Into::into).collect(),
    };
    let mut curves = Vec::new();
    if curve.train().len() > 60 {
        let faint = CurveStyle::FaintLine;
        curves.push(drawn(String::new(), Colour::First, faint, curve.train()));
    }
    let name = format!("training, smoothed: {}", number(loss));
    curves.push(drawn(name, Colour::First, CurveStyle::Line, &smoothed));
    if let Some((_, loss)) = evaluated {
        let name = format!("evaluation: {}", number(*loss));
        let points = &curve.test()[..curve.test().len().min(POINTS_MAX)];
        curves.extend([
            drawn(name, Colour::Second, CurveStyle::Line, curve.test()),
            drawn(String::new(), Colour::Second, CurveStyle::Points, points),
        ]);
    }
    let chart = Chart {
        title: format!("Loss of {}", curve.name),
        heading: curve.name.clone(),
        panels: vec![Panel {
            x: (ChartAxis::from_zero(last, 8), "step".to_owned()),
            y: (
                ChartAxis::of(all.map(|point| point.1), Scale::Automatic, 6)?,
                "loss".to_owned(),
            ),
            curves,
        }],
        columns: 1,
        panel_size: (800.0, 430.0),
    };
    Some(chart.svg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::text::tests::falling;

    #[test]
    fn the_drawing_has_curves_ticks_and_an_escaped_name() {
        let mut curve = falling(200);
        curve.name = "a<b & \"c\"\u{7}".to_owned();
        curve.apply(&ronde_core::Event::Evaluated {
            step: ronde_core::Step(99),
            loss: 0.5,
            samples: 10,
            metrics: std::collections::BTreeMap::new(),
        });
        let text = svg(&curve).unwrap();
        assert!(text.contains("<title>Loss of a&lt;b &amp; &quot;c&quot;</title>"));
        assert_eq!(text.matches("<polyline").count(), 3);
        assert!(text.contains(">evaluation: 0.5000</text>"));
        assert!(
            text.contains(">200</text>") && text.contains(">0.5</text>"),
            "{text}"
        );
        assert!(
            !text.contains("NaN") && text.len() < 50_000,
            "{}",
            text.len()
        );
        assert_eq!(svg(&falling(1)), None);
    }
}
