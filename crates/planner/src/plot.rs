//! The efficiency over the number of workers as an SVG drawing.

use ronde_report::{Chart, ChartAxis, Colour, Curve, CurveStyle, Panel, Scale};

use crate::scaling::{ScalingCurve, ScalingPoint};

/// Draws the efficiency of a shape of layout over the number of workers, with the batch of the run and with one that grows
/// with the workers.
#[must_use]
pub fn efficiency_svg(curve: &ScalingCurve) -> String {
    let workers = curve.points.iter().map(|point| point.workers);
    let most = workers.clone().max().unwrap_or(1).max(2);
    let drawn = |name: &str, colour, value: fn(&ScalingPoint) -> Option<f64>| {
        let points = curve.points.iter();
        let points = points.filter_map(|point| Some((point.workers.into(), value(point)?).into()));
        Curve {
            name: name.to_owned(),
            colour,
            style: CurveStyle::Line,
            points: points.collect(),
        }
    };
    let x = ChartAxis::between(1.0, most.into(), Scale::Logarithmic);
    let y = ChartAxis::between(0.0, 1.0, Scale::Linear);
    let chart = Chart {
        title: "Efficiency over workers".to_owned(),
        heading: format!("efficiency over workers, simulated: {}", curve.shape),
        panels: vec![Panel {
            x: (
                x.with_ticks(workers.map(|workers| (workers.into(), workers.to_string()))),
                "workers".to_owned(),
            ),
            y: (
                y.with_ticks((0..=5).map(|n| (f64::from(n) / 5.0, format!("{} %", 20 * n)))),
                "efficiency".to_owned(),
            ),
            curves: vec![
                drawn("the batch of the run", Colour::First, |point| {
                    point.same_batch
                }),
                drawn(
                    "a batch that grows with the workers",
                    Colour::Second,
                    |point| Some(point.growing_batch),
                ),
            ],
        }],
        columns: 1,
        panel_size: (720.0, 380.0),
    };
    chart.svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::LayoutChoice;

    #[test]
    fn both_lines_are_inside_the_frame() {
        let point = |workers, same_batch, growing_batch| ScalingPoint {
            workers,
            same_batch,
            growing_batch,
        };
        let curve = ScalingCurve {
            shape: LayoutChoice::ONE,
            points: vec![point(1, Some(1.0), 1.0), point(4096, None, 0.5)],
        };
        let svg = efficiency_svg(&curve);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("points=\"70.0,94.0 696.0,240.0 \""), "{svg}");
        assert!(svg.contains("points=\"70.0,94.0 \""), "{svg}");
        assert!(svg.contains(">4096</text>"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
