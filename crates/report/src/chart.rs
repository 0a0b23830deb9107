//! [`Chart`]: curves and points over axes, as SVG.

use std::fmt::{self, Write};

use crate::axis::ChartAxis;

/// The margins of the axes in a panel.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 54.0;
/// The height of the heading, and of the legend below it.
const HEADING: f64 = 36.0;
const LEGEND: f64 = 24.0;
/// About the width of a character.
const CHARACTER: f64 = 7.0;

/// The colours, which follow the reader's choice of a dark or light page.
const STYLE: &str = "\
    .page{fill:#fff}.text{fill:#24292f;font:13px system-ui,sans-serif}.heading{font-size:16px;font-weight:600}\
    .quiet{fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d8dee4}.axis{stroke:#8c959f;fill:none}\
    .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}.faint{stroke-width:1;stroke-opacity:.3}\
    .point{fill:currentColor;fill-opacity:.7}.first{color:#0969da}.second{color:#d1570a}\
    @media(prefers-color-scheme:dark){.page{fill:#0d1117}.text{fill:#e6edf3}.quiet{fill:#9198a1}.grid{stroke:#2b323b}\
    .axis{stroke:#6e7681}.first{color:#4493f8}.second{color:#f0883e}}";

/// A drawing with a heading, a legend and panels.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The short title, for readers without the drawing.
    pub title: String,
    /// The text above the panels.
    pub heading: String,
    /// The panels. The legend has the named curves of the first one.
    pub panels: Vec<Panel>,
    /// The number of panels in a row.
    pub columns: usize,
    /// Width and height of a panel.
    pub panel_size: (f64, f64),
}

/// Curves over a pair of axes.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The horizontal axis, and its name.
    pub x: (ChartAxis, String),
    /// The vertical axis, and its name.
    pub y: (ChartAxis, String),
    /// The curves; the last one is in front.
    pub curves: Vec<Curve>,
}

/// Points, or a line through them.
#[derive(Debug, Clone)]
pub struct Curve {
    /// The text in the legend; empty: the legend does not have the curve.
    pub name: String,
    /// The colour.
    pub colour: Colour,
    /// How the points are drawn.
    pub style: CurveStyle,
    /// The points, in the order in which a line connects them.
    pub points: Vec<Point>,
}

/// A colour, which depends on whether the page is light or dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Blue.
    First,
    /// Orange.
    Second,
}

/// How the points of a curve are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurveStyle {
    /// A line.
    Line,
    /// A thin, pale line.
    FaintLine,
    /// Points.
    Points,
}

/// A pair of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The value on the horizontal axis.
    pub x: f64,
    /// The value on the vertical axis.
    pub y: f64,
    /// The text beside a point under the pointer in a browser; may be empty.
    pub note: String,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        let note = String::new();
        Self { x, y, note }
    }
}

impl Chart {
    /// Draws the chart.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        // Writing to a text does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let first = self.panels.first().map_or(&[][..], |panel| &panel.curves);
        let named: Vec<&Curve> = first
            .iter()
            .filter(|curve| !curve.name.is_empty())
            .collect();
        let head = HEADING + if named.is_empty() { 0.0 } else { LEGEND };
        let columns = self.panels.len().min(self.columns).max(1);
        let width = self.panel_size.0 * columns as f64;
        let height = head + self.panel_size.1 * self.panels.len().div_ceil(columns) as f64;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>",
            Escaped(&self.title)
        )?;
        text(out, "heading", (LEFT, 28.0), &self.heading)?;
        let mut x = LEFT;
        for curve in named {
            let class = curve.class();
            writeln!(out, "<path class=\"{class}\" d=\"M{x:.0} 46h20\"/>")?;
            text(out, "", (x + 26.0, 50.0), &curve.name)?;
            x += 26.0 + CHARACTER * curve.name.chars().count() as f64 + 20.0;
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = ((index % columns) as f64, (index / columns) as f64);
            let (width, height) = self.panel_size;
            let (left, top) = (width * column + LEFT, head + height * row + TOP);
            let area = Area {
                left,
                top,
                right: left + width - LEFT - RIGHT,
                bottom: top + height - TOP - BOTTOM,
                panel,
            };
            area.axes(out)?;
            for curve in &panel.curves {
                area.curve(out, curve)?;
            }
        }
        writeln!(out, "</svg>")
    }
}

impl Curve {
    fn class(&self) -> String {
        let style = match self.style {
            CurveStyle::Line => "line",
            CurveStyle::FaintLine => "line faint",
            CurveStyle::Points => "point",
        };
        let colour = match self.colour {
            Colour::First => "first",
            Colour::Second => "second",
        };
        format!("{style} {colour}")
    }
}

/// The part of the drawing between the axes of a panel.
struct Area<'a> {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    panel: &'a Panel,
}

impl Area<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.panel.x.0.position(value) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.panel.y.0.position(value) * (self.bottom - self.top)
    }

    /// Draws the axes with their names, the ticks with their labels, and a grid.
    fn axes(&self, out: &mut String) -> fmt::Result {
        let Self {
            left,
            top,
            right,
            bottom,
            panel,
        } = self;
        for (tick, label) in &panel.y.0.ticks {
            let y = self.y(*tick);
            writeln!(
                out,
                "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"
            )?;
            text(out, "quiet end", (left - 8.0, y + 4.5), label)?;
        }
        for (tick, label) in &panel.x.0.ticks {
            let x = self.x(*tick);
            writeln!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>")?;
            text(out, "quiet middle", (x, bottom + 20.0), label)?;
        }
        writeln!(
            out,
            "<path class=\"axis\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>"
        )?;
        text(
            out,
            "quiet middle",
            ((left + right) / 2.0, bottom + 40.0),
            &panel.x.1,
        )?;
        text(out, "quiet", (left - 50.0, top - 14.0), &panel.y.1)
    }

    fn curve(&self, out: &mut String, curve: &Curve) -> fmt::Result {
        let class = curve.class();
        if curve.style != CurveStyle::Points {
            write!(out, "<polyline class=\"{class}\" points=\"")?;
            for point in &curve.points {
                write!(out, "{:.1},{:.1} ", self.x(point.x), self.y(point.y))?;
            }
            return writeln!(out, "\"/>");
        }
        for point in &curve.points {
            let (x, y, note) = (self.x(point.x), self.y(point.y), Escaped(&point.note));
            write!(
                out,
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\""
            )?;
            match point.note.is_empty() {
                true => writeln!(out, "/>")?,
                false => writeln!(out, "><title>{note}</title></circle>")?,
            }
        }
        Ok(())
    }
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), text: &str) -> fmt::Result {
    let text = Escaped(text);
    writeln!(
        out,
        "<text class=\"text {class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
    )
}

/// Text as XML; control characters, which XML does not have, are left out.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            c if c.is_control() => Ok(()),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Scale;

    #[test]
    fn a_chart_has_its_panels_curves_and_escaped_texts() {
        let panel = Panel {
            x: (ChartAxis::named(&["a<b", "c"]), "key".to_owned()),
            y: (
                ChartAxis::of([0.0, 1.0].into_iter(), Scale::Linear, 5).unwrap(),
                "loss".to_owned(),
            ),
            curves: [CurveStyle::Line, CurveStyle::Points]
                .map(|style| Curve {
                    name: if style == CurveStyle::Line {
                        "train & test".to_owned()
                    } else {
                        String::new()
                    },
                    colour: Colour::First,
                    style,
                    points: vec![
                        (0.0, 0.0).into(),
                        Point {
                            x: 1.0,
                            y: 1.0,
                            note: "\"n\"\u{7}".to_owned(),
                        },
                    ],
                })
                .to_vec(),
        };
        let chart = Chart {
            title: "t".to_owned(),
            heading: "h".to_owned(),
            panels: vec![panel; 4],
            columns: 3,
            panel_size: (300.0, 200.0),
        };
        let svg = chart.svg();
        let count = |part: &str| svg.matches(part).count();
        assert_eq!((count("<polyline"), count("<circle")), (4, 8));
        assert_eq!(
            (count(">a&lt;b</text>"), count(">train &amp; test</text>")),
            (4, 1)
        );
        assert_eq!(count("<title>&quot;n&quot;</title>"), 4);
        // The panels are in two rows below a heading and a legend.
        assert!(svg.contains("viewBox=\"0 0 900 460\""), "{svg}");
        // The first and the second panel, from the first name at the bottom to the second one at the top.
        for points in ["121.5,206.0 224.5,94.0", "421.5,206.0 524.5,94.0"] {
            assert!(svg.contains(points), "{points} in\n{svg}");
        }
    }
}
