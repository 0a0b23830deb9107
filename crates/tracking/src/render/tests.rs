//! Texts of synthetic runs.

use ronde_core::event::{PhaseTimes, SampleUnit};
use ronde_core::{Epoch, Event, Generation, Rank, Step};

use super::*;

fn run(workers: u32, steps: u64, total: u64) -> RunView {
    let mut view = RunView::default();
    view.apply(&Event::RunStarted {
        name: "digits".into(),
        plan: "0123456789abcdef".repeat(4),
        world_size: workers,
        logical_shards: 16,
        parameters: 12_345,
        steps: total,
        epochs: 10,
        samples: 1437,
        unit: SampleUnit::Image,
    });
    for step in 0..steps {
        view.apply(&Event::StepCommitted {
            step: Step(step),
            epoch: Epoch(step / 23),
            generation: Generation(0),
            loss: 0.5,
            samples: 64,
            targets: 64,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            skipped_update: None,
            duration_s: 0.25,
        });
        for rank in 0..workers {
            view.apply(&Event::StepTimes {
                rank: Rank(rank),
                step: Step(step),
                times: PhaseTimes {
                    compute_s: 0.2,
                    communicate_s: 0.04,
                    wait_data_s: 0.01,
                    ..PhaseTimes::default()
                },
                arrived_s: None,
                bytes_sent: (step + 1) * 1_000_000,
            });
        }
    }
    view
}

#[test]
fn the_lines_of_a_running_job() {
    let view = run(2, 46, 230);
    assert_eq!(
        started(&view),
        "digits: 12,345 parameters, 230 steps in 10 epochs on 2 workers (plan 01234567)"
    );
    assert_eq!(
        progress(&view),
        "step 46/230  epoch 2/10  loss 0.5000  lr 0.1  256 images/s  46 s left"
    );
    assert_eq!(
        workers(&view, 80),
        [
            "rank 0  compute 80 %  communication 16 %  waiting for data 4 %  sent 43.9 MiB",
            "rank 1  compute 80 %  communication 16 %  waiting for data 4 %  sent 43.9 MiB"
        ]
    );
    let waiting = "step 0/230  waiting for the first step";
    assert_eq!(progress(&run(1, 0, 230)), waiting);
    assert_eq!(bar(&run(1, 0, 230), 40), waiting);
}

#[test]
fn workers_beyond_the_limit_are_only_counted() {
    let lines = workers(&run(20, 1, 10), 80);
    assert_eq!(lines.len(), WORKER_LINES_MAX + 1);
    assert_eq!(lines[WORKER_LINES_MAX], "and 12 more workers");
}

#[test]
fn the_summary_of_a_finished_run() {
    let mut view = run(2, 230, 230);
    for event in [
        Event::EpochFinished {
            epoch: Epoch(9),
            used_once: 1437,
            missing: 0,
            repeated: 0,
        },
        Event::Evaluated {
            step: Step(229),
            loss: 0.1,
            metrics: [
                ("accuracy".to_owned(), 0.9694),
                ("accuracy_top5".to_owned(), 0.99),
            ]
            .into(),
            samples: 360,
        },
        Event::ModelSaved {
            path: "out/model.safetensors".into(),
            config_path: "out/model.json".into(),
            blake3: "ab".repeat(32),
        },
        Event::RunFinished {
            steps: 230,
            samples: 14_370,
            skipped: 3,
            duration_s: 57.5,
        },
    ] {
        view.apply(&event);
    }
    let expected = "\
digits finished in 58 s
  steps          230 of 230, last loss 0.5000, 256 images/s
  test           accuracy 96.94 %, loss 0.1000, top-5 99.00 %, 360 samples
  last epoch     1,437 samples used once
  skipped        3 records
  rank        compute  communication  waiting for data  bytes sent
  0     46.00 s  80 %   9.20 s  16 %      2.30 s   4 %   219.3 MiB
  1     46.00 s  80 %   9.20 s  16 %      2.30 s   4 %   219.3 MiB
  model          out/model.safetensors
  configuration  out/model.json
  blake3         abababababababababababababababababababababababababababababababab";
    assert_eq!(summary(&view, 160), expected);
    let narrow = "\
digits finished in 58 s
  steps          230 of 230, last loss 0.5000, 256 images/s
  test           accuracy 96.94 %, loss 0.1000,
                 top-5 99.00 %, 360 samples
  last epoch     1,437 samples used once
  skipped        3 records
  rank  compute  comm  data  bytes sent
  0        80 %  16 %   4 %   219.3 MiB
  1        80 %  16 %   4 %   219.3 MiB
  model          out/model.safetensors
  configuration  out/model.json
  blake3         abababababababababababababababab
                 abababababababababababababababab";
    assert_eq!(summary(&view, 60), narrow);
    // At 80 columns everything but the hash is as in a wide terminal.
    let usual = expected.replace("blake3         ", "blake3\n    ");
    assert_eq!(summary(&view, 80), usual);
}

#[test]
fn the_summary_shows_the_evaluation_of_the_saved_model_with_its_step() {
    let mut view = run(1, 230, 230);
    let evaluated = |step, loss| Event::Evaluated {
        step: Step(step),
        loss,
        metrics: Default::default(),
        samples: 360,
    };
    view.apply(&evaluated(68, 0.25));
    let line = |view: &RunView| {
        let text = summary(view, 160);
        let line = text.lines().find(|line| line.starts_with("  test"));
        line.unwrap_or_default().to_owned()
    };
    let earlier = "  test           loss 0.2500, 360 samples, after step 69";
    assert_eq!(line(&view), earlier, "the run was stopped later");
    view.apply(&evaluated(229, 0.5));
    assert_eq!(line(&view), "  test           loss 0.5000, 360 samples");
    view.apply(&Event::BestModel {
        step: Step(68),
        metric: "loss".to_owned(),
        loss: 0.25,
        metrics: Default::default(),
        samples: 360,
    });
    assert_eq!(line(&view), format!("{earlier} (best loss)"));
    // A summary that is made from the totals shows the same.
    let mut restored = RunView::default();
    restored.apply(&Event::RunTotals(Box::new(view.totals(1.0))));
    assert_eq!(restored.best, view.best);
}

#[test]
fn the_summary_of_an_interrupted_run_names_its_last_step() {
    assert_eq!(summary(&RunView::default(), 80), "");
    let text = summary(&run(1, 12, 230), 80);
    assert!(
        text.starts_with("digits stopped after 12 of 230 steps\n"),
        "{text}"
    );
}

#[test]
fn only_notable_events_are_announced() {
    let mut view = run(1, 1, 10);
    view.failures = 1;
    let failed = |secondary| Event::WorkerFailed {
        rank: Rank(2),
        message: "disk full\nwhere: rank 2".into(),
        last_step: None,
        secondary,
        user_error: false,
    };
    let epoch = |missing| Event::EpochFinished {
        epoch: Epoch(0),
        used_once: 1437,
        missing,
        repeated: 0,
    };
    let notice = |rank| Event::Notice {
        rank,
        message: "watch out".into(),
    };
    let cases = [
        (failed(false), Some("rank 2 failed: disk full")),
        (failed(true), None),
        (epoch(0), None),
        (
            epoch(3),
            Some("note: epoch 1: 3 samples not used, 0 used more than once"),
        ),
        (notice(None), Some("note: watch out")),
        (notice(Some(Rank(3))), Some("note: rank 3: watch out")),
    ];
    for (event, expected) in cases {
        assert_eq!(
            announcement(&view, &event).as_deref(),
            expected,
            "{event:?}"
        );
    }
}

#[test]
fn the_first_failure_keeps_its_help() {
    for (message, cause, help) in [
        (
            "disk full\n  where: rank 2\n  help: remove files,\n  or use another disk\n",
            "disk full",
            Some("remove files, or use another disk"),
        ),
        ("disk full\n  where: rank 2", "disk full", None),
        ("", "", None),
    ] {
        let mut view = run(2, 1, 10);
        for rank in [1, 0] {
            view.apply(&Event::WorkerFailed {
                rank: Rank(rank),
                message: message.to_owned(),
                last_step: None,
                secondary: false,
                user_error: false,
            });
        }
        let failure = view.failure.unwrap();
        assert_eq!(failure.to_string(), format!("rank 1: {cause}"));
        assert_eq!(failure.help.as_deref(), help);
    }
}

#[test]
fn only_the_first_of_several_failures_is_announced() {
    let mut view = run(2, 1, 10);
    let mut announced = Vec::new();
    for (rank, secondary) in [(1, true), (0, false), (2, false)] {
        let event = Event::WorkerFailed {
            rank: Rank(rank),
            message: "no".into(),
            last_step: None,
            secondary,
            user_error: false,
        };
        view.apply(&event);
        announced.extend(announcement(&view, &event));
    }
    assert_eq!(announced, ["rank 0 failed: no"]);
}

#[test]
fn the_bar_fits_the_terminal_and_keeps_speed_and_time_left() {
    let view = run(2, 46, 230);
    let rest = "step 46/230  epoch 2/10  loss 0.5000  lr 0.1  256 images/s  46 s left";
    let rest = rest.replacen("  epoch 2/10", "", 1);
    assert_eq!(
        bar(&view, 160),
        format!("epoch 2/10 [================]  {rest}")
    );
    let half = run(2, 46 + 12, 230);
    let line = bar(&half, 160);
    assert!(
        line.starts_with("epoch 3/10 [========>       ]  step 58/230  "),
        "{line}"
    );
    assert_eq!(
        bar(&half, 80),
        "epoch 3/10 [========>       ]  step 58/230  loss 0.5000  256 images/s  43 s left"
    );
    let single = run(2, 12, 23);
    assert!(
        bar(&single, 160).contains("[========>       ]"),
        "{}",
        bar(&single, 160)
    );
    assert_eq!(
        bar(&view, 60),
        "step 46/230  loss 0.5000  256 images/s  46 s left"
    );
    assert_eq!(
        bar(&view, 50),
        "step 46/230  loss 0.5000  256 images/s  46 s left"
    );
    assert_eq!(bar(&view, 10), "step 46/230");
    let narrow = workers(&view, 60);
    assert_eq!(
        narrow[0],
        "rank 0  compute 80 %  comm 16 %  data 4 %  43.9 MiB"
    );
}

#[test]
fn interim_evaluations_are_announced_and_the_last_one_is_in_the_summary() {
    let mut view = run(1, 46, 230);
    for (step, line) in [
        (
            45,
            Some("evaluation at step 46: accuracy 91.00 %, loss 0.3000"),
        ),
        (229, None),
    ] {
        let event = Event::Evaluated {
            step: Step(step),
            loss: 0.3,
            metrics: [("accuracy".to_owned(), 0.91)].into(),
            samples: 360,
        };
        view.apply(&event);
        assert_eq!(announcement(&view, &event).as_deref(), line);
    }
}

#[test]
fn control_characters_are_escaped() {
    assert_eq!(printable("plain\n\ttext ü"), "plain\n\ttext ü");
    assert_eq!(
        printable("a\u{1b}[2J\u{7}\u{9b}b\r"),
        "a\\u{1b}[2J\\u{7}\\u{9b}b\\r"
    );
}

#[test]
fn numbers_are_formatted() {
    for (value, text) in [
        (0.5, "0.5000"),
        (0.0, "0.0000"),
        (123_456.0, "123456.0000"),
        (7e33, "7.0000e33"),
        (-2e-7, "-2.0000e-7"),
        (f64::NAN, "NaN"),
    ] {
        assert_eq!(number(value), text);
    }
    for (value, text) in [
        (0.1, "0.1"),
        (0.002_345_6, "0.00235"),
        (3.2e-5, "3.2e-5"),
        (0.0, "0"),
        (1e30, "1e30"),
    ] {
        assert_eq!(short_number(value), text);
    }
    for (n, text) in [
        (0, "0"),
        (999, "999"),
        (1000, "1,000"),
        (1_234_567, "1,234,567"),
    ] {
        assert_eq!(count(n), text);
    }
    for (n, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (u64::MAX, "16384.0 PiB"),
    ] {
        assert_eq!(bytes(n), text);
    }
    for (s, text) in [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (7620.0, "2 h 07 min"),
        (f64::NAN, "unknown time"),
        (f64::INFINITY, "unknown time"),
    ] {
        assert_eq!(duration(s), text);
    }
}

#[test]
fn checkpoint_events_are_announced() {
    let saved = Event::CheckpointSaved {
        step: Step(1_200),
        generation: Generation(2),
        bytes: 3 << 20,
        held_up_s: 0.0021,
        total_s: 0.25,
        address: "runs/one/checkpoints".into(),
    };
    let failed = Event::CheckpointFailed {
        step: Step(1_200),
        rank: Rank(3),
        message: "no space left".into(),
        is_last: false,
    };
    let loaded = Event::CheckpointLoaded {
        step: Step(1_200),
        world_size: 4,
        bytes: 3 << 20,
        duration_s: 0.1,
        address: Some("runs/one/checkpoints".to_owned()),
        skipped: vec!["step 1300: x is damaged".into()],
    };
    let view = RunView::default();
    for (event, line) in [
        (
            saved,
            "checkpoint saved at step 1,200: 3.0 MiB in 0.25 s, training paused for 2.1 ms",
        ),
        (
            failed,
            "warning: checkpoint at step 1,200 not saved, training continues; rank 3: no space left",
        ),
        (
            loaded,
            "resuming from the checkpoint at step 1,200 in runs/one/checkpoints, saved by 4 workers, \
             loaded in 0.10 s\nnote: a newer checkpoint is unusable: step 1300: x is damaged",
        ),
    ] {
        assert_eq!(announcement(&view, &event).as_deref(), Some(line));
    }
}

#[test]
fn metrics_of_a_program_are_fields_of_the_event_and_shown_by_name() {
    let line = r#"{"event":"evaluated","step":3,"loss":0.5,"samples":9,"recall":0.25,"accuracy":null,"note":"x"}"#;
    let event: Event = serde_json::from_str(line).unwrap();
    let Event::Evaluated { metrics, .. } = &event else {
        panic!("{event:?}");
    };
    assert_eq!(metrics.len(), 2);
    assert!(metrics["accuracy"].is_nan());
    let written = serde_json::to_value(&event).unwrap();
    assert_eq!(
        (&written["recall"], &written["step"]),
        (&0.25.into(), &3.into())
    );
    let mut view = run(1, 46, 230);
    view.apply(&event);
    let text = announcement(&view, &event).unwrap();
    assert!(text.contains("loss 0.5000, recall 0.2500"), "{text}");
}

#[test]
fn a_run_that_begins_again_is_announced_and_counted() {
    let restarted = Event::RunRestarted {
        lost: Step(17),
        reason: "a part of the state was lost".into(),
    };
    assert_eq!(
        announcement(&RunView::default(), &restarted).unwrap(),
        "starting again from the first step: a part of the state was lost; 17 steps computed again"
    );
    let mut view = RunView::default();
    view.apply(&restarted);
    let mut later = run(2, 3, 230);
    later.apply(&Event::RunTotals(Box::new(view.totals(1.0))));
    assert_eq!(later.restarts, 1);
    let text = summary(&later, 100);
    assert!(
        text.contains("restarted      1 time from the first step"),
        "{text}"
    );
}
