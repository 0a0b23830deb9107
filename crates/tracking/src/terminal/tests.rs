//! Terminals that write to a buffer.

use std::io::Write;
use std::sync::{Arc, Mutex};

use ronde_core::{Epoch, Event, Generation, Rank, Step, Tracker};

use super::{Terminal, Verbosity};

#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl SharedBuffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[test]
fn lines_of_ranks_notices_and_the_summary_are_printed_in_order() {
    let kept = SharedBuffer::default();
    let terminal = Terminal::plain(Box::new(kept.clone()), Verbosity::Normal);
    terminal.rank_line(Rank(1), "hello");
    terminal.record(Event::Notice {
        rank: None,
        message: "slow disk".into(),
    });
    terminal.record(Event::StepCommitted {
        step: Step(3),
        epoch: Epoch(0),
        generation: Generation(0),
        loss: 1.5,
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: 1.0,
        skipped_update: None,
        duration_s: 0.5,
    });
    terminal.finish();
    terminal.finish();
    let text = kept.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["[rank 1] hello", "note: slow disk"]);
    let last = lines
        .iter()
        .rposition(|l| l.contains("stopped after 4 of 0 steps"));
    assert_eq!(last, Some(lines.len() - 2), "{text}");
    assert!(
        lines[lines.len() - 1].contains("last loss 1.5000, 128 samples/s"),
        "{text}"
    );
    assert_eq!(terminal.view().progress.unwrap().committed, 4);
}

#[test]
fn a_run_without_steps_has_no_summary() {
    let kept = SharedBuffer::default();
    let terminal = Terminal::plain(Box::new(kept.clone()), Verbosity::Normal);
    terminal.line("only this");
    drop(terminal);
    assert_eq!(kept.text(), "only this\n");
}

#[test]
fn a_quiet_terminal_prints_warnings_only_and_a_verbose_one_processes() {
    let events = || {
        [
            Event::WorkerStarted {
                place: 1,
                host: "vm".into(),
                pid: 4711,
            },
            Event::CheckpointFailed {
                step: Step(3),
                rank: Rank(0),
                message: "disk\u{1b}[2J full".into(),
                is_last: true,
            },
            Event::RunStopped {
                step: Step(3),
                saved: false,
            },
        ]
    };
    let warning = "warning: last checkpoint at step 3 not saved; rank 0: disk\\u{1b}[2J full\n";
    let stopped = "training stopped after 3 steps\n";
    for (verbosity, expected) in [
        (Verbosity::Quiet, warning.to_owned()),
        (Verbosity::Normal, format!("{warning}{stopped}")),
        (
            Verbosity::Verbose,
            format!("worker 1 started: pid 4711 on vm\n{warning}{stopped}"),
        ),
    ] {
        let kept = SharedBuffer::default();
        let terminal = Terminal::plain(Box::new(kept.clone()), verbosity);
        terminal.line("");
        events()
            .into_iter()
            .for_each(|event| terminal.record(event));
        terminal.finish();
        assert_eq!(kept.text().trim_start_matches('\n'), expected);
    }
}

#[test]
fn no_output_of_a_rank_is_lost_however_fast_it_is_written() {
    let kept = SharedBuffer::default();
    let terminal = Terminal::plain(Box::new(kept.clone()), Verbosity::Normal);
    for n in 0..3 * super::LINES_MAX {
        terminal.rank_line(Rank(0), &n.to_string());
    }
    terminal.finish();
    let text = kept.text();
    assert_eq!(text.lines().count(), 3 * super::LINES_MAX);
    assert!(text.ends_with(&format!("[rank 0] {}\n", 3 * super::LINES_MAX - 1)));
}
