//! [`plot`]: time and bus bandwidth as a picture (SVG) with logarithmic axes.

mod axis;

use std::fmt::Write;

use crate::operation::OperationKind;
use crate::report::{CollectivesReport, MeasurementRow};
use crate::sizes::show_bytes;
use axis::LogAxis;

/// Colours that people with any colour vision tell apart (Okabe and Ito), black last.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d00", "#000000",
];
/// Dashes, one more for each time that the colours are used up.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

const PANEL_WIDTH: f64 = 400.0;
const PANEL_HEIGHT: f64 = 290.0;
/// Left of a panel: ticks and what they are.
const LEFT: f64 = 86.0;
/// Above a row of panels.
const ABOVE: f64 = 58.0;
/// Below a row of panels.
const BELOW: f64 = 62.0;
const LEGEND_WIDTH: f64 = 330.0;
/// Room that the name of a tick takes along the x axis.
const TICK_WIDTH: f64 = 54.0;
const HEAD: f64 = 34.0;

/// What stands along the x axis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum XAxis {
    Bytes,
    Ranks,
}

/// One row of the picture: an operation, its time on the left and its bandwidth on the right.
struct PanelRow<'a> {
    title: String,
    across: XAxis,
    lines: Vec<(String, Vec<&'a MeasurementRow>)>,
}

/// The picture of a run: a row of two panels for each operation and count of ranks, a line for each
/// transport, memory and algorithm, and for each of those that it was compared with. Where an
/// operation was measured at one size and several counts of ranks, these are the x axis.
#[must_use]
pub fn plot(report: &CollectivesReport) -> String {
    let strips = strips(&report.rows);
    let names = legend(&strips);
    let strip_height = ABOVE + PANEL_HEIGHT + BELOW;
    let width = 2.0 * (LEFT + PANEL_WIDTH) + LEGEND_WIDTH;
    let legend_height = 26.0 * names.len() as f64 + ABOVE + 20.0;
    let height = HEAD + (strip_height * strips.len() as f64).max(legend_height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let machine = &report.machine;
    let head = format!(
        "ronde {} bench, {} {}, {} cores of {}",
        report.ronde, report.settings.dtype, report.settings.op, machine.cores, machine.cpu
    );
    text(&mut svg, (16.0, 24.0), "start", "#555555", &head);
    for (place, strip) in strips.iter().enumerate() {
        let top = HEAD + place as f64 * strip_height + ABOVE;
        draw_strip(&mut svg, strip, &names, top);
    }
    draw_legend(
        &mut svg,
        &names,
        2.0 * (LEFT + PANEL_WIDTH) + 24.0,
        HEAD + ABOVE,
    );
    svg + "</svg>\n"
}

fn strips(rows: &[MeasurementRow]) -> Vec<PanelRow<'_>> {
    let mut strips: Vec<PanelRow<'_>> = Vec::new();
    for row in rows {
        let same = rows.iter().filter(|other| other.operation == row.operation);
        let one_size = same.clone().all(|other| other.bytes == row.bytes);
        let one_world = same.clone().all(|other| other.ranks == row.ranks);
        let (across, title) = if one_size && !one_world {
            let title = match row.operation {
                OperationKind::Barrier => row.operation.to_string(),
                _ => format!("{}, {}", row.operation, show_bytes(row.bytes)),
            };
            (XAxis::Ranks, title)
        } else {
            (
                XAxis::Bytes,
                format!("{}, {} ranks", row.operation, row.ranks),
            )
        };
        let place = strips.iter().position(|strip| strip.title == title);
        let place = place.unwrap_or_else(|| {
            strips.push(PanelRow {
                title,
                across,
                lines: Vec::new(),
            });
            strips.len() - 1
        });
        let (lines, label) = (&mut strips[place].lines, row.way.label());
        match lines.iter_mut().find(|(name, _)| *name == label) {
            Some((_, rows)) => rows.push(row),
            None => lines.push((label, vec![row])),
        }
    }
    strips
}

/// The names of all lines, in order of appearance.
fn legend(strips: &[PanelRow<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in strips.iter().flat_map(|strip| &strip.lines) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Colour and dashes of the line of that number.
fn style(number: usize) -> (&'static str, &'static str) {
    let dashes = number / COLOURS.len() % DASHES.len();
    (COLOURS[number % COLOURS.len()], DASHES[dashes])
}

fn draw_strip(svg: &mut String, strip: &PanelRow<'_>, names: &[String], top: f64) {
    type Measure = (&'static str, fn(&MeasurementRow) -> Option<f64>);
    let measures: [Measure; 2] = [
        ("time of one operation, microseconds", |row| {
            Some(row.times.median_us)
        }),
        ("bus bandwidth, GB/s", MeasurementRow::bus_bandwidth),
    ];
    for (place, (label, measure)) in measures.into_iter().enumerate() {
        let left = LEFT + place as f64 * (LEFT + PANEL_WIDTH);
        let lines: Vec<(usize, Vec<(f64, f64)>)> = strip
            .lines
            .iter()
            .map(|(name, rows)| {
                let number = names.iter().position(|one| one == name).unwrap_or(0);
                let mut points: Vec<(f64, f64)> = rows
                    .iter()
                    .filter_map(|row| Some((x_of(strip.across, row), measure(row)?)))
                    .filter(|(x, y)| *x > 0.0 && *y > 0.0)
                    .collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                (number, points)
            })
            .collect();
        if place == 0 {
            let title = (left, top - 30.0);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" font-size=\"17\" font-weight=\"bold\">{}</text>",
                title.0,
                title.1,
                escape(&strip.title)
            );
        }
        if lines.iter().any(|(_, points)| !points.is_empty()) {
            draw_panel(svg, &lines, strip.across, label, (left, top));
        }
    }
}

fn x_of(across: XAxis, row: &MeasurementRow) -> f64 {
    match across {
        XAxis::Bytes => row.bytes as f64,
        XAxis::Ranks => row.ranks as f64,
    }
}

fn draw_panel(
    svg: &mut String,
    lines: &[(usize, Vec<(f64, f64)>)],
    across: XAxis,
    label: &str,
    (left, top): (f64, f64),
) {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let x = LogAxis::of_values(points().map(|point| point.0).collect());
    let y = LogAxis::of_range(points().map(|point| point.1));
    let (bottom, right) = (top + PANEL_HEIGHT, left + PANEL_WIDTH);
    let at_x = |value: f64| left + 14.0 + x.place(value) * (PANEL_WIDTH - 28.0);
    let at_y = |value: f64| bottom - y.place(value) * PANEL_HEIGHT;
    for &tick in &y.ticks {
        let at = at_y(tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#e2e2e2\"/>"
        );
        let number = axis::number(tick);
        text(svg, (left - 7.0, at + 4.5), "end", "black", &number);
    }
    let mut free = f64::MAX;
    // From the right: the last one is always named.
    for &tick in &x.ticks {
        let at = at_x(tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#eeeeee\"/>"
        );
        let name = match across {
            XAxis::Bytes => show_bytes(tick as usize),
            XAxis::Ranks => tick.to_string(),
        };
        if at <= free {
            text(svg, (at, bottom + 19.0), "middle", "black", &name);
            free = at - TICK_WIDTH;
        }
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
         stroke=\"#333333\"/>"
    );
    let below = match across {
        XAxis::Bytes => "bytes of the buffer",
        XAxis::Ranks => "ranks",
    };
    text(
        svg,
        ((left + right) / 2.0, bottom + 41.0),
        "middle",
        "black",
        below,
    );
    text(svg, (left, top - 9.0), "start", "black", label);
    draw_lines(svg, lines, (&at_x, &at_y));
}

/// Lines of a panel, where its axes put their points.
fn draw_lines(
    svg: &mut String,
    lines: &[(usize, Vec<(f64, f64)>)],
    (at_x, at_y): (&dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64),
) {
    for (number, points) in lines {
        let (colour, dashes) = style(*number);
        let places: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", at_x(x), at_y(y)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>",
            places.join(" ")
        );
        for &(x, y) in points {
            let (x, y) = (at_x(x), at_y(y));
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{colour}\"/>"
            );
        }
    }
}

fn draw_legend(svg: &mut String, names: &[String], left: f64, top: f64) {
    for (number, name) in names.iter().enumerate() {
        let (colour, dashes) = style(number);
        let y = top + 12.0 + 26.0 * number as f64;
        let (end, middle) = (left + 34.0, left + 17.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y}H{end}\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>\n<circle cx=\"{middle}\" cy=\"{y}\" r=\"3.4\" fill=\"{colour}\"/>"
        );
        text(svg, (left + 42.0, y + 4.5), "start", "black", name);
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, colour: &str, text: &str) {
    let text = escape(text);
    // Writing to a text does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::samples::{gloo, row};
    use crate::settings::small;

    fn report(rows: Vec<MeasurementRow>) -> CollectivesReport {
        let mut machine = Machine::here();
        machine.cpu = "A <fast> & good CPU".to_owned();
        let mut report = CollectivesReport::new(machine, small(), vec![4]);
        report.rows = rows;
        report
    }

    #[test]
    fn there_is_a_line_for_each_way_in_both_panels() {
        let rows = [8, 4096, 1 << 20].map(|bytes| row(bytes, bytes as f64 / 500.0 + 3.0, "ring"));
        let others = [8, 4096, 1 << 20].map(|bytes| gloo(bytes, bytes as f64 / 100.0 + 90.0));
        let svg = plot(&report([rows, others].concat()));
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches("<circle").count(), 2 * 6 + 2);
        for words in [
            ">all_reduce, 4 ranks<",
            ">time of one operation, microseconds<",
            ">bus bandwidth, GB/s<",
            ">bytes of the buffer<",
            ">4 KiB<",
            ">tcp, ring<",
            ">Gloo<",
            "A &lt;fast&gt; &amp; good CPU",
        ] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
    }

    #[test]
    fn one_size_and_several_worlds_are_drawn_over_the_ranks() {
        let rows = [2, 4, 8].map(|ranks| MeasurementRow {
            ranks,
            ..row(1 << 20, 100.0 * ranks as f64, "driver")
        });
        let svg = plot(&report(rows.to_vec()));
        assert!(
            svg.contains(">all_reduce, 1 MiB<") && svg.contains(">ranks<"),
            "{svg}"
        );
        assert_eq!(svg.matches("<polyline").count(), 2);
    }

    #[test]
    fn a_single_point_and_no_row_at_all_are_pictures_too() {
        for rows in [Vec::new(), vec![row(8, 2.0, "ring")]] {
            let svg = plot(&report(rows));
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
