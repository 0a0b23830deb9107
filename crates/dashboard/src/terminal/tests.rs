//! Tests of the display in the terminal: keys, sizes, contents.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ronde_core::event::PhaseTimes;
use ronde_core::{Epoch, Event as RunEvent, Generation, Rank, Step};

use super::*;
use crate::history::RunHistory;

fn runs() -> Vec<RunSummary> {
    let run = |id: &str, phase| RunSummary {
        id: id.to_owned(),
        phase,
        step: 50,
        steps: 200,
        loss: Some(0.25),
        rate: Some(1_000.0),
        unit: "images",
        left_s: Some(30.0),
        read_share: 1.0,
        ..RunSummary::default()
    };
    vec![run("digits", "running"), run("other", "failed")]
}

fn history() -> RunHistory {
    let mut history = RunHistory::default();
    for step in 0..50 {
        let committed = RunEvent::StepCommitted {
            step: Step(step),
            epoch: Epoch(0),
            generation: Generation(1),
            loss: 1.0 / (step + 1) as f64,
            samples: 64,
            targets: 64,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: f64::NAN,
            skipped_update: None,
            duration_s: 0.1,
        };
        history.apply(step as f64, &committed);
    }
    let times = RunEvent::StepTimes {
        rank: Rank(1),
        step: Step(49),
        times: PhaseTimes {
            compute_s: 3.0,
            communicate_s: 1.0,
            ..PhaseTimes::default()
        },
        arrived_s: None,
        bytes_sent: 2048,
    };
    let notice = RunEvent::Notice {
        rank: Some(Rank(1)),
        message: "reading https://user:secret@host \u{1b}[2J".to_owned(),
    };
    history.apply(50.0, &times);
    history.apply(50.0, &notice);
    history
}

/// Draws and returns the text of the screen.
fn drawn(state: &TopState, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let history = history();
    terminal
        .draw(|frame| screen::draw(frame, state, &runs(), Some(&history), None))
        .unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut TopState, code: KeyCode) {
    state.press(KeyEvent::new(code, KeyModifiers::NONE), &runs());
}

#[test]
fn every_view_fits_every_size() {
    let mut state = TopState::new(true);
    for tab in Tab::ALL {
        state.open(tab);
        for size in [(1, 1), (8, 3), (40, 12), (80, 24), (250, 80)] {
            for shows_help in [false, true] {
                state.shows_help = shows_help;
                drawn(&state, size);
            }
        }
    }
}

#[test]
fn the_views_show_the_run_without_secrets() {
    let mut state = TopState::new(false);
    for (tab, words) in [
        (Tab::Curves, vec!["digits", "25 %", "Loss", "running"]),
        (Tab::Ranks, vec!["75 %", "2.0 KiB"]),
        (Tab::Members, vec!["nothing was recorded"]),
        (Tab::Checkpoints, vec!["nothing was recorded"]),
        (Tab::Messages, vec!["rank 1", "https://•••@host"]),
    ] {
        state.open(tab);
        let text = drawn(&state, (120, 40));
        for word in words {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        assert!(
            !text.contains("secret") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}

#[test]
fn a_failed_run_is_shown_with_its_help_on_every_width() {
    let mut failed = runs().remove(1);
    failed.failure = Some("rank 1: the loss is not finite".to_owned());
    failed.help = Some("try a lower train.learning_rate, a longer warm-up".to_owned());
    assert!(lines::line(&failed).ends_with(
        "rank 1: the loss is not finite; help: try a lower train.learning_rate, a longer warm-up"
    ));
    let state = TopState::new(false);
    for width in [30, 120] {
        let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
        let (runs, history) = ([failed.clone()], history());
        terminal
            .draw(|frame| screen::draw(frame, &state, &runs, Some(&history), None))
            .unwrap();
        let text = terminal.backend().to_string();
        let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
        for word in ["finite", "help", "lower", "warm"] {
            assert!(words.contains(&word), "{width}: {word} in\n{text}");
        }
    }
}

#[test]
fn narrow_screens_keep_the_names_of_the_runs() {
    let mut state = TopState::new(false);
    state.open(Tab::Curves);
    for (width, has_speed) in [(40, false), (60, false), (80, false), (120, true)] {
        let text = drawn(&state, (width, 24));
        for word in ["digits", "running", "25 %"] {
            assert!(text.contains(word), "{width}: {word} in\n{text}");
        }
        let list: String = text.lines().take(4).collect();
        assert_eq!(list.contains("speed"), has_speed, "{width}:\n{text}");
        assert!(!text.contains("│-"), "an axis is negative:\n{text}");
    }
}

#[test]
fn keys_choose_runs_and_views_and_leave() {
    let mut state = TopState::new(true);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.run.as_deref(), Some("other"));
    press(&mut state, KeyCode::Up);
    assert_eq!(state.run.as_deref(), Some("digits"));
    press(&mut state, KeyCode::Left);
    assert_eq!(state.tab, Tab::Messages);
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.tab, Tab::Curves);
    press(&mut state, KeyCode::Char('2'));
    assert_eq!(state.tab, Tab::Ranks);
    press(&mut state, KeyCode::Char('?'));
    assert!(state.shows_help && drawn(&state, (80, 24)).contains("choose a run"));
    press(&mut state, KeyCode::Char('q'));
    assert!(
        !state.shows_help && !state.is_over,
        "any key closes the help"
    );
    press(&mut state, KeyCode::Char('q'));
    assert!(state.is_over);
    let mut state = TopState::new(true);
    state.press(
        KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        &[],
    );
    assert!(state.is_over);
    press(&mut state, KeyCode::Down);
    state.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE), &[]);
}
