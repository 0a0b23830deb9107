//! The loss curve as SVG.

use std::fmt::Write;

use super::axis::{PlotAxis, label};
use crate::loss_curve::LossCurve;
use crate::render::number;

/// The size of the drawing and the margins of the plot in it.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 450.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 54.0;

/// The colours, which follow the reader's choice of a dark or light page.
const STYLE: &str = "\
    .page{fill:#fff}.text{fill:#24292f;font:13px system-ui,sans-serif}.title{font-size:16px;font-weight:600}\
    .quiet{fill:#57606a}.grid{stroke:#d8dee4}.axis{stroke:#8c959f}.train{stroke:#0969da;fill:none}\
    .raw{stroke-opacity:.3}.test{stroke:#d1570a;fill:none}.dot{fill:#d1570a;stroke:none}\
    @media(prefers-color-scheme:dark){.page{fill:#0d1117}.text{fill:#e6edf3}.quiet{fill:#9198a1}.grid{stroke:#2b323b}\
    .axis{stroke:#6e7681}.train{stroke:#4493f8}.test{stroke:#f0883e}.dot{fill:#f0883e}}";

/// Draws the loss over the steps: the training loss of each step, its smoothed curve and the evaluations, with ticks and
/// a legend. Returns `None` if there are fewer than two points. At most about 200 KB.
#[must_use]
pub fn svg(curve: &LossCurve) -> Option<String> {
    let smoothed = curve.smoothed();
    let (last, loss) = *smoothed.last()?;
    if smoothed.len() < 2 {
        return None;
    }
    let all = curve.train().iter().chain(curve.test());
    let plot = Plot {
        x_axis: PlotAxis::from_zero(
            last.max(curve.test().last().map_or(0.0, |point| point.0)),
            8,
        ),
        y_axis: PlotAxis::of(all.map(|point| point.1), 6)?,
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>Loss of {name}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"text title\" x=\"{LEFT}\" y=\"30\">{name}</text>\n",
        name = escaped(&curve.name),
    );
    plot.grid(&mut out);
    if curve.train().len() > 60 {
        plot.line(&mut out, "train raw", 1.0, curve.train());
    }
    plot.line(&mut out, "train", 2.0, &smoothed);
    let mut legend = vec![("train", format!("training, smoothed: {}", number(loss)))];
    if let Some(&(_, loss)) = curve.test().last() {
        plot.line(&mut out, "test", 2.0, curve.test());
        for &point in curve.test().iter().take(200) {
            let (x, y) = plot.position(point);
            let _ = writeln!(
                out,
                "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
            );
        }
        legend.push(("test", format!("evaluation: {}", number(loss))));
    }
    let mut x = WIDTH - RIGHT;
    for (class, text) in legend.iter().rev() {
        // Numbers and lower-case letters of this font are about 7 wide.
        x -= 7.0 * text.len() as f64;
        let _ = writeln!(
            out,
            "<text class=\"text\" x=\"{x:.0}\" y=\"30\">{text}</text>\n\
             <line class=\"{class}\" stroke-width=\"3\" x1=\"{:.0}\" x2=\"{:.0}\" y1=\"26\" y2=\"26\"/>",
            x - 26.0,
            x - 6.0,
        );
        x -= 44.0;
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// The axes of a drawing.
struct Plot {
    x_axis: PlotAxis,
    y_axis: PlotAxis,
}

impl Plot {
    fn position(&self, (step, loss): (f64, f64)) -> (f64, f64) {
        (
            LEFT + self.x_axis.position(step) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y_axis.position(loss) * (HEIGHT - TOP - BOTTOM),
        )
    }

    /// Draws the axes, the ticks with their labels, and a grid.
    fn grid(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for &tick in &self.y_axis.ticks {
            let (_, y) = self.position((0.0, tick));
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"text quiet\" text-anchor=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                y + 4.5,
                label(tick)
            );
        }
        for &tick in &self.x_axis.ticks {
            let x = LEFT + self.x_axis.position(tick) * (right - LEFT);
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{}\"/>\
                 <text class=\"text quiet\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                bottom + 5.0,
                bottom + 20.0,
                label(tick)
            );
        }
        let _ = writeln!(
            out,
            "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\n\
             <text class=\"text quiet\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">step</text>\n\
             <text class=\"text quiet\" x=\"20\" y=\"{}\">loss</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 12.0,
            TOP - 10.0
        );
    }

    fn line(&self, out: &mut String, class: &str, width: f64, points: &[(f64, f64)]) {
        let _ = write!(
            out,
            "<polyline class=\"{class}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" points=\""
        );
        for &point in points {
            let (x, y) = self.position(point);
            let _ = write!(out, "{x:.1},{y:.1} ");
        }
        out.push_str("\"/>\n");
    }
}

/// Escapes text of XML; control characters, which XML does not have, are left out.
fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
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
