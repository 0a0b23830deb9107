//! The views of the run in focus: curves, ranks, members, checkpoints, messages.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Row, Table, Wrap};
use ronde_tracking::render;

use super::screen::shown;
use super::{Tab, TopState};
use crate::history::{RunHistory, StepBucket};
use crate::library::RunSummary;

/// Largest number of rows above a view.
const STATUS_ROWS_MAX: usize = 8;
/// Width of the bar of a rank in characters.
const BAR_COLUMNS: usize = 30;

/// Draws the chosen view.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    run: &RunSummary,
    history: &RunHistory,
) {
    let body = draw_status(frame, area, state, run, history);
    match state.tab {
        Tab::Curves => draw_curves(frame, body, state, history),
        Tab::Ranks => draw_ranks(frame, body, state, history),
        Tab::Members => {
            let rows = history.members.iter().rev().map(|record| {
                let generation = record
                    .generation
                    .map_or_else(String::new, |n| n.to_string());
                let workers = record
                    .world_size
                    .map_or_else(String::new, |n| n.to_string());
                vec![
                    since(history, record.t),
                    generation,
                    workers,
                    shown(&record.text),
                ]
            });
            let widths = [12, 11, 8].map(Constraint::Length);
            draw_records(
                frame,
                body,
                state,
                &["after", "generation", "workers", "what happened"],
                &widths,
                rows,
            );
        }
        Tab::Checkpoints => {
            let rows = history.checkpoints.iter().rev().map(|record| {
                vec![
                    since(history, record.t),
                    record.outcome.to_owned(),
                    render::count(record.step),
                    render::bytes(record.bytes),
                    render::duration(record.seconds),
                    shown(&record.text),
                ]
            });
            let widths = [12, 9, 12, 11, 12].map(Constraint::Length);
            draw_records(
                frame,
                body,
                state,
                &[
                    "after",
                    "outcome",
                    "step",
                    "size",
                    "duration",
                    "address or reason",
                ],
                &widths,
                rows,
            );
        }
        Tab::Messages => draw_messages(frame, body, state, history),
    }
}

/// Draws the progress or the failure, and returns the area below.
fn draw_status(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    run: &RunSummary,
    history: &RunHistory,
) -> Rect {
    let lines = status_lines(state, run, history);
    let width = usize::from(area.width.max(1));
    let rows = lines.iter().map(|line| line.width().div_ceil(width).max(1));
    // A failure and its help are shown whole; a word that moves to the next row can take one more.
    let rows = match run.trouble() {
        Some(_) => (rows.sum::<usize>() + 1).min(STATUS_ROWS_MAX),
        None => 2,
    };
    let [status, body] =
        Layout::vertical([Constraint::Length(rows as u16), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), status);
    body
}

/// Returns the progress, and why the run has failed, its straggler or its evaluation.
fn status_lines(state: &TopState, run: &RunSummary, history: &RunHistory) -> Vec<Line<'static>> {
    let mut first = match history.view.progress {
        Some(_) => render::progress(&history.view),
        None => "no step is committed yet".to_owned(),
    };
    if run.read_share < 1.0 {
        first = format!("reading {:.0} %   {first}", 100.0 * run.read_share);
    }
    let straggler = history.view.straggler();
    let straggler = straggler.filter(|_| run.phase == "running");
    let mut lines = vec![Line::raw(first)];
    match (run.trouble(), straggler) {
        (Some((trouble, help)), _) => {
            let red = state.coloured(Color::Red);
            lines.push(Line::styled(shown(trouble), red));
            lines.extend(help.map(|help| Line::raw(format!("help: {}", shown(help)))));
        }
        (None, Some(straggler)) => {
            let text = format!("straggler: {}", render::straggler(straggler));
            lines.push(Line::styled(text, state.coloured(Color::Yellow)));
        }
        (None, None) => lines.push(Line::raw(evaluation(history))),
    }
    lines
}

/// Returns the evaluation of the model that the run saves as text: the best one, or the last one.
fn evaluation(history: &RunHistory) -> String {
    let view = &history.view;
    let Some(result) = view.saved_evaluation() else {
        return String::new();
    };
    let mut text = format!("evaluated: loss {}", render::number(result.loss));
    for (name, value) in &result.metrics {
        text.push_str(&format!(", {name} {}", render::number(*value)));
    }
    text.push_str(&format!(", after step {}", render::count(result.steps)));
    if let Some(best) = &view.best {
        text.push_str(&format!(" (best {})", best.metric));
    }
    text
}

/// Returns the time since the first event of a run.
fn since(history: &RunHistory, t: f64) -> String {
    let start = history.times.map_or(t, |(first, _)| first);
    render::duration(t - start)
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, state: &TopState, history: &RunHistory) {
    let series = |value: fn(&StepBucket) -> f64| -> Vec<(f64, f64)> {
        let points = history.steps.from_step(0);
        points
            .map(|(step, bucket)| (step as f64, value(bucket)))
            .filter(|(_, value)| value.is_finite())
            .collect()
    };
    let curves = [
        (" Loss ", Color::Blue, series(|at| at.loss.mean())),
        (
            " Samples per second ",
            Color::Green,
            series(|at| at.samples as f64 / at.seconds),
        ),
        (
            " Gradient norm ",
            Color::Magenta,
            series(|at| at.gradient_norm.mean()),
        ),
        (
            " Learning rate ",
            Color::Yellow,
            series(|at| at.learning_rate.mean()),
        ),
    ];
    // A small terminal shows fewer curves, so that they stay readable.
    let columns = if area.width >= 100 { 2 } else { 1 };
    let rows = if area.height >= 16 { 2 } else { 1 };
    let lines = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    let cells = lines.iter().flat_map(|line| {
        let cells = Layout::horizontal(vec![Constraint::Fill(1); columns]).split(*line);
        cells.to_vec()
    });
    for (cell, (title, colour, points)) in cells.zip(curves) {
        draw_curve(frame, cell, state, title, colour, &points);
    }
}

fn draw_curve(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    title: &'static str,
    colour: Color,
    points: &[(f64, f64)],
) {
    let block = Block::bordered()
        .title(title)
        .border_style(state.coloured(Color::DarkGray));
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        frame.render_widget(Paragraph::new("no values yet").block(block), area);
        return;
    };
    let low = points.iter().map(|at| at.1).fold(f64::INFINITY, f64::min);
    let high = points
        .iter()
        .map(|at| at.1)
        .fold(f64::NEG_INFINITY, f64::max);
    let margin = match high > low {
        true => (high - low) * 0.05,
        false => (high.abs() * 0.1).max(1e-9),
    };
    // Values that are never negative have no negative axis.
    let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
    let (low, high) = ((low - margin).max(floor), high + margin);
    let dataset = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(state.coloured(colour))
        .data(points);
    let ends = [first.0, last.0.max(first.0 + 1.0)];
    let steps = ends.map(|step| render::count(step as u64));
    let chart = Chart::new(vec![dataset])
        .block(block)
        .x_axis(Axis::default().bounds(ends).labels(steps))
        .y_axis(
            Axis::default()
                .bounds([low, high])
                .labels([low, high].map(render::short_number)),
        );
    frame.render_widget(chart, area);
}

fn draw_ranks(frame: &mut Frame<'_>, area: Rect, state: &TopState, history: &RunHistory) {
    let rows = history.view.workers.iter().skip(state.scrolled);
    let rows = rows.map(|(rank, worker)| {
        let times = &worker.times;
        let parts = [times.compute_s, times.communicate_s, times.wait_data_s];
        let total = times.total_s().max(f64::MIN_POSITIVE);
        let columns = parts.map(|part| (BAR_COLUMNS as f64 * part / total).round() as usize);
        let bar = Line::from(vec![
            Span::styled(
                "█".repeat(columns[0].min(BAR_COLUMNS)),
                state.coloured(Color::Blue),
            ),
            Span::styled(
                "▒".repeat(columns[1].min(BAR_COLUMNS)),
                state.coloured(Color::Yellow),
            ),
            Span::styled(
                "░".repeat(columns[2].min(BAR_COLUMNS)),
                state.coloured(Color::DarkGray),
            ),
        ]);
        let memory = history.ranks.get(rank).and_then(|rank| {
            let last = rank.memory.from_step(0).last()?;
            Some(render::bytes(last.1.resident.max as u64))
        });
        let share = |part: f64| Line::raw(format!("{:.0} %", 100.0 * part / total));
        Row::new(vec![
            Line::raw(rank.to_string()),
            bar,
            share(parts[0]),
            share(parts[1]),
            share(parts[2]),
            Line::raw(memory.unwrap_or_default()),
            Line::raw(render::bytes(worker.bytes_sent)),
        ])
    });
    let widths = [5, BAR_COLUMNS as u16 + 1, 9, 15, 12, 11, 11].map(Constraint::Length);
    let head = Row::new([
        "rank",
        "share of time",
        "█ compute",
        "▒ communication",
        "░ wait data",
        "memory",
        "sent",
    ]);
    let table = Table::new(rows, widths).header(head.style(state.coloured(Color::DarkGray)));
    frame.render_widget(table, area);
}

/// Draws records as rows whose last column takes the rest of the width.
fn draw_records(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    head: &[&'static str],
    widths: &[Constraint],
    records: impl Iterator<Item = Vec<String>>,
) {
    let rows: Vec<Row<'_>> = records.skip(state.scrolled).map(Row::new).collect();
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("nothing was recorded"), area);
        return;
    }
    let widths = widths.iter().copied().chain([Constraint::Fill(1)]);
    let head = Row::new(head.to_vec()).style(state.coloured(Color::DarkGray));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn draw_messages(frame: &mut Frame<'_>, area: Rect, state: &TopState, history: &RunHistory) {
    let lines: Vec<Line<'_>> = history
        .messages
        .iter()
        .rev()
        .skip(state.scrolled)
        .take(area.height.into())
        .flat_map(|message| {
            let sender = message
                .rank
                .map_or_else(|| "run".to_owned(), |rank| format!("rank {rank}"));
            let style = match message.is_warning {
                true => state.coloured(Color::Red),
                false => ratatui::style::Style::new(),
            };
            let text = format!(
                "{:>12}  {sender:<8} {}",
                since(history, message.t),
                shown(&message.text)
            );
            let lines: Vec<Line<'_>> = text
                .lines()
                .map(|line| Line::styled(line.to_owned(), style))
                .collect();
            lines
        })
        .collect();
    let text = match lines.is_empty() {
        true => Paragraph::new("no messages"),
        false => Paragraph::new(lines).wrap(Wrap { trim: false }),
    };
    frame.render_widget(text, area);
}
