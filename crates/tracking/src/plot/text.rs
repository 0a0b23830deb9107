//! The loss curve as lines of characters.

use ronde_report::{ChartAxis, Scale};

use crate::loss_curve::LossCurve;
use crate::render::count;

/// The characters of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Characters {
    /// Braille patterns of eight dots per character.
    Braille,
    /// ASCII, one dot per character.
    Ascii,
}

/// The number of rows of a drawing.
const ROWS: usize = 12;
/// The fewest and most columns of a drawing.
const COLUMNS: std::ops::RangeInclusive<usize> = 24..=100;

/// Draws the smoothed training loss over the steps within `columns` columns, 14 lines. Returns `None` if there are fewer
/// than two points or 24 columns.
#[must_use]
pub fn text(curve: &LossCurve, columns: usize, characters: Characters) -> Option<String> {
    let points = curve.smoothed();
    let last = points.last()?.0;
    if points.len() < 2 || columns < *COLUMNS.start() {
        return None;
    }
    let y_axis = ChartAxis::of(points.iter().map(|point| point.1), Scale::Automatic, 4)?;
    let x_axis = ChartAxis::from_zero(last, 4);
    let widths = y_axis.ticks.iter().map(|(_, label)| label.len());
    let margin = widths.max().unwrap_or(0).max(4);
    let width = columns.min(*COLUMNS.end()) - margin - 2;
    let rows = canvas(&points, &x_axis, &y_axis, width, characters);
    let row_of = |tick: f64| ((1.0 - y_axis.position(tick)) * (ROWS - 1) as f64).round() as usize;
    let mut lines = vec![format!("{:>margin$}", "loss")];
    for (row, cells) in rows.iter().enumerate() {
        let mut ticks = y_axis.ticks.iter();
        let (text, mark) = match ticks.find(|(tick, _)| row_of(*tick) == row) {
            Some((_, label)) => (label.as_str(), edge(characters).1),
            None => ("", edge(characters).0),
        };
        let line = format!("{text:>margin$} {mark}{cells}");
        lines.push(line.trim_end().to_owned());
    }
    lines.push(x_labels(&x_axis, last, margin + 2, width));
    Some(lines.join("\n"))
}

/// Returns the left edge without and with a tick.
fn edge(characters: Characters) -> (char, char) {
    match characters {
        Characters::Braille => ('\u{2502}', '\u{2524}'),
        Characters::Ascii => ('|', '+'),
    }
}

/// Returns the rows of characters of a curve.
fn canvas(
    points: &[(f64, f64)],
    x_axis: &ChartAxis,
    y_axis: &ChartAxis,
    width: usize,
    characters: Characters,
) -> Vec<String> {
    let (across, down) = match characters {
        Characters::Braille => (2, 4),
        Characters::Ascii => (1, 1),
    };
    let (dots_x, dots_y) = (width * across, ROWS * down);
    let mut cells = vec![0_u8; width * ROWS];
    let mut previous: Option<(usize, usize)> = None;
    for &(step, loss) in points {
        let x = (x_axis.position(step) * (dots_x - 1) as f64).round() as usize;
        let y = ((1.0 - y_axis.position(loss)) * (dots_y - 1) as f64).round() as usize;
        // Neighbouring points are joined, so that a steep curve has no gaps.
        let (from_x, from_y) = previous.unwrap_or((x, y));
        let dots = x.abs_diff(from_x).max(y.abs_diff(from_y)).max(1);
        for dot in 0..=dots {
            let share = dot as f64 / dots as f64;
            let at = |from: usize, to: usize| {
                (from as f64 + share * (to as f64 - from as f64)).round() as usize
            };
            let (x, y) = (at(from_x, x), at(from_y, y));
            let bit = match characters {
                Characters::Braille => BRAILLE[y % 4][x % 2],
                Characters::Ascii => 1,
            };
            cells[(y / down) * width + x / across] |= bit;
        }
        previous = Some((x, y));
    }
    let rows = cells.chunks(width).map(|row| {
        let cell = |&bits: &u8| match (bits, characters) {
            (0, _) => ' ',
            (bits, Characters::Braille) => char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' '),
            (_, Characters::Ascii) => '*',
        };
        row.iter().map(cell).collect()
    });
    rows.collect()
}

/// The bit of each dot of a braille pattern, by row and column.
const BRAILLE: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Returns the line of labels of the steps, and the last step at its end.
fn x_labels(axis: &ChartAxis, last: f64, margin: usize, width: usize) -> String {
    let mut line = " ".repeat(margin);
    let end = format!("step {}", count(last as u64));
    let end_at = (margin + width).saturating_sub(end.len());
    for (tick, text) in &axis.ticks {
        let at = margin + (axis.position(*tick) * (width - 1) as f64).round() as usize;
        let free = line.len();
        if at >= free && at + text.len() + 1 < end_at {
            line.push_str(&" ".repeat(at - free));
            line.push_str(text);
            line.push(' ');
        }
    }
    let free = line.len();
    line.push_str(&" ".repeat(end_at.saturating_sub(free)));
    line.push_str(&end);
    line
}

#[cfg(test)]
pub(in crate::plot) mod tests;
