//! The efficiency over the number of workers as an SVG drawing.

use std::fmt::Write;

use crate::scaling::{ScalingCurve, ScalingPoint};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 2] = ["#1f77b4", "#d62728"];

/// Returns the value of a curve at a point, if it has one there.
type CurveValue = fn(&ScalingPoint) -> Option<f64>;

/// Draws the efficiency of a shape of layout over the number of workers, with the batch of the run and with one that grows
/// with the workers.
#[must_use]
pub fn efficiency_svg(curve: &ScalingCurve) -> String {
    let most = curve
        .points
        .iter()
        .map(|point| point.workers)
        .max()
        .unwrap_or(1);
    let doublings = f64::from(most.max(2)).log2();
    let x =
        |workers: u32| LEFT + (WIDTH - LEFT - RIGHT) * f64::from(workers.max(1)).log2() / doublings;
    let y = |share: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">efficiency over workers, simulated: {}</text>\n",
        curve.shape
    );
    for tenth in [0, 2, 4, 6, 8, 10] {
        let at = y(f64::from(tenth) / 10.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} %</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            tenth * 10
        );
    }
    for point in &curve.points {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(point.workers),
            HEIGHT - BOTTOM + 18.0,
            point.workers
        );
    }
    let lines: [(&str, CurveValue); 2] = [
        ("the batch of the run", |point| point.same_batch),
        ("a batch that grows with the workers", |point| {
            Some(point.growing_batch)
        }),
    ];
    for (index, (name, value)) in lines.into_iter().enumerate() {
        let points = curve.points.iter();
        let points: Vec<String> = points
            .filter_map(|point| Some(format!("{:.1},{:.1}", x(point.workers), y(value(point)?))))
            .collect();
        let (colour, at) = (COLOURS[index], HEIGHT - BOTTOM - 14.0 - 18.0 * index as f64);
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n\
             <line x1=\"{}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            points.join(" "),
            LEFT + 10.0,
            LEFT + 34.0,
            LEFT + 40.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">workers</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0
    );
    svg
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
        assert!(svg.contains("points=\"60.0,40.0 700.0,195.0\""), "{svg}");
        assert!(svg.contains("points=\"60.0,40.0\""), "{svg}");
        assert!(svg.contains(">4096</text>"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
