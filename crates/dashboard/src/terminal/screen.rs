//! The screen: the list of runs, the run in focus, the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Tabs};
use ronde_tracking::render;

use super::{Tab, TopState, views};
use crate::history::RunHistory;
use crate::library::RunSummary;
use crate::settings::masked;

/// Largest number of rows of the list of runs.
const RUN_ROWS_MAX: u16 = 8;
/// The keys, as the help shows them.
const KEYS: [(&str, &str); 6] = [
    ("↑ ↓", "choose a run"),
    ("← →  Tab  1-5", "choose a view"),
    ("PgUp PgDn", "scroll"),
    ("Home End", "first and last run"),
    ("?", "this help"),
    ("q  Esc  Ctrl-C", "leave; runs continue"),
];

impl TopState {
    /// Returns a style with a colour, if colours are enabled.
    pub(super) fn coloured(&self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn phase_style(&self, phase: &str) -> Style {
        self.coloured(match phase {
            "running" => Color::Blue,
            "finished" => Color::Green,
            "failed" => Color::Red,
            "interrupted" => Color::Yellow,
            _ => Color::DarkGray,
        })
    }
}

/// Draws everything. `history`: of the run in focus, as far as it was read.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    state: &TopState,
    runs: &[RunSummary],
    history: Option<&RunHistory>,
    problem: Option<&str>,
) {
    let rows = (runs.len() as u16).clamp(1, RUN_ROWS_MAX) + 1;
    let [title, list, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rows + 1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let running = runs.iter().filter(|run| run.phase == "running").count();
    let text = match problem {
        Some(problem) => format!("  cannot read the folder: {problem}"),
        None => format!("  {} runs, {running} under way", runs.len()),
    };
    let heading = Line::from(vec![
        Span::styled("ronde", bold.patch(state.coloured(Color::Blue))),
        Span::raw(text),
    ]);
    frame.render_widget(heading, title);
    if runs.is_empty() {
        let text = "No runs yet. Start one with `ronde train`, and it appears here.";
        frame.render_widget(Paragraph::new(text), list);
    } else {
        draw_runs(frame, list, state, runs);
    }
    let names = Tab::ALL.iter().enumerate();
    let names = names.map(|(at, tab)| format!("{} {}", at + 1, tab.name()));
    let selected = Tab::ALL.iter().position(|tab| *tab == state.tab);
    let bar = Tabs::new(names)
        .select(selected)
        .highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_widget(bar, tabs);
    if let (Some(history), Some(run)) = (history, runs.get(state.position(runs))) {
        views::draw(frame, body, state, run, history);
    }
    let hint = "q quit   ↑↓ run   ←→ view   ? help";
    frame.render_widget(Line::styled(hint, state.coloured(Color::DarkGray)), foot);
    if state.shows_help {
        draw_help(frame);
    }
}

/// The columns of the list of runs: heading, width, and the narrowest screen that has the column.
const RUN_COLUMNS: [(&str, Constraint, u16); 7] = [
    ("run", Constraint::Fill(2), 0),
    ("phase", Constraint::Length(11), 0),
    ("step", Constraint::Length(15), 72),
    ("", Constraint::Length(6), 0),
    ("loss", Constraint::Length(11), 40),
    ("speed", Constraint::Length(18), 100),
    ("time left", Constraint::Length(12), 54),
];

fn draw_runs(frame: &mut Frame<'_>, area: Rect, state: &TopState, runs: &[RunSummary]) {
    let columns = || {
        let fits = move |(_, _, narrowest): &&(_, _, u16)| area.width >= *narrowest;
        RUN_COLUMNS.iter().filter(fits)
    };
    let rows = runs.iter().map(|run| {
        let cell = |heading: &str| match heading {
            "run" => Cell::from(run.id.clone()),
            "phase" => Cell::from(Span::styled(run.phase, state.phase_style(run.phase))),
            "step" => {
                let steps = [run.step, run.steps].map(render::count);
                Cell::from(steps.join("/"))
            }
            "loss" => Cell::from(run.loss.map_or_else(String::new, render::number)),
            "speed" => {
                let rate = run.rate.map(|rate| render::count(rate as u64));
                Cell::from(rate.map_or_else(String::new, |rate| format!("{rate} {}/s", run.unit)))
            }
            "time left" => Cell::from(run.left_s.map_or_else(String::new, render::duration)),
            _ => match run.steps {
                0 => Cell::default(),
                steps => Cell::from(format!("{} %", 100 * run.step.min(steps) / steps)),
            },
        };
        Row::new(columns().map(|(heading, ..)| cell(heading)))
    });
    let head = Row::new(columns().map(|(heading, ..)| *heading));
    let table = Table::new(rows, columns().map(|(_, width, _)| *width))
        .header(head.style(state.coloured(Color::DarkGray)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::default().with_selected(Some(state.position(runs)));
    frame.render_stateful_widget(table, area, &mut selection);
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = KEYS
        .iter()
        .map(|(keys, text)| Line::raw(format!(" {keys:<16}{text}")))
        .collect();
    let whole = frame.area();
    let (width, height) = (
        44.min(whole.width),
        (lines.len() as u16 + 2).min(whole.height),
    );
    let area = Rect {
        x: (whole.width - width) / 2,
        y: (whole.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" Keys ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Returns a text for the screen, without credentials and control characters.
pub(super) fn shown(text: &str) -> String {
    render::printable(&masked(text)).into_owned()
}
