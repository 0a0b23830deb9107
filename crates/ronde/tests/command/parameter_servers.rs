//! Parameter servers with real processes: each sample counts once, whichever process is killed.

use rustix::process::Signal;
use serde_json::Value;

use crate::run_files::{RunFile, check_epochs, last_accuracy};
use crate::support::{Ended, RONDE, TestFolder, events, of_kind, send};

/// Epochs of 58 updates: a round of 40 and one of 18.
const RUN: RunFile = RunFile {
    name: "served.toml",
    text: r#"
[run]
name = "served"
output = "out"
[data]
source = "digits"
[model]
kind = "digits_cnn"
channels = 6
dropout = 0.25
[train]
epochs = 2
global_batch_size = 25
learning_rate = 0.003
clip_norm = 1.0
[sync]
kind = "parameter_server"
round_updates = 40
servers = 2
"#,
};

/// Checks that each sample counts once in each epoch, and returns the last evaluation's accuracy.
fn check(ended: &Ended) -> f64 {
    let all = events(&ended.stdout);
    check_epochs(&all);
    for round in of_kind(&all, "staleness") {
        let counts = |worker: &Value| {
            let counts = worker["counts"].as_array().cloned().unwrap_or_default();
            counts.iter().filter_map(Value::as_u64).sum::<u64>()
        };
        let updates: u64 = round["workers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(counts)
            .sum();
        assert!([40, 18, 57, 1].contains(&updates), "{round}");
    }
    last_accuracy(&all)
}

#[test]
fn a_single_computing_worker_trains_the_bits_of_a_run_without_servers() {
    let dir = TestFolder::new();
    let text = RUN.without("[sync]");
    dir.write("plain.toml", text);
    let arguments = ["train", "plain.toml", "--json"];
    let plain_hash = dir
        .start(RONDE, &arguments, &[])
        .wait()
        .expect(0, &[])
        .blake3();
    for workers in ["1", "2", "3"] {
        // The updates of an epoch have the samples of its steps.
        let sets = ["sync.round_updates=57"];
        let ended = RUN
            .start(&TestFolder::new(), workers, &sets)
            .wait()
            .expect(0, &[]);
        check(&ended);
        assert_eq!(ended.blake3(), plain_hash, "{workers} workers");
    }
}

#[test]
fn any_process_may_be_killed_and_each_sample_counts_once() {
    for (killed, restarts) in [(0, "0"), (3, "0"), (4, "5"), (1, "5")] {
        let dir = TestFolder::new();
        let restarts = format!("elastic.max_restarts={restarts}");
        let sets = ["train.epochs=40", &*restarts];
        let mut running = RUN.start(&dir, "5", &sets);
        let workers = running.after_steps(4);
        send(workers[&killed], Signal::KILL);
        running.wait_stdout("\"event\":\"recovered\"", 1);
        let ended = running.wait().expect(0, &[]);
        let accuracy = check(&ended);
        assert!(accuracy > 0.8, "worker {killed}: {accuracy}");
    }
}

#[test]
fn a_run_continues_from_a_checkpoint_and_says_that_it_is_not_repeatable() {
    let dir = TestFolder::new();
    RUN.start(&dir, "4", &["train.epochs=1"])
        .wait()
        .expect(0, &[]);
    let sets = [
        "train.epochs=3",
        "sync.servers=1",
        "sync.copies=1",
        "--resume",
    ];
    let ended = RUN.start(&dir, "3", &sets).wait().expect(0, &[]);
    let manifest = std::fs::read_to_string(dir.path().join("out/model.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let reason = manifest["unrepeatable"].as_str().unwrap_or_default();
    assert!(reason.contains("in which they arrive"), "{manifest}");
    let all = events(&ended.stdout);
    let notices = of_kind(&all, "notice").map(|event| event["message"].to_string());
    let notices: Vec<String> = notices.collect();
    assert!(
        notices
            .iter()
            .any(|text| text.contains("so another run has others")),
        "{notices:?}"
    );
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_sentence() {
    let dir = TestFolder::new();
    for (set, part) in [
        ("optimizer.kind=lamb", "needs the norms of whole tensors"),
        ("train.precision=f16", "cannot train in f16"),
        ("parallel.zero=1", "divide the state themselves"),
        ("workers.balance=measured", "no shares to balance"),
        ("sync.copies=3", "must be 1 or 2"),
        ("sync.round_updates=0", "at least 1"),
        (
            "sync.round_updates=59",
            "longer than an epoch, which has 58 updates",
        ),
    ] {
        RUN.start(&dir, "2", &[set]).wait().expect(2, &[part]);
    }
    dir.write(RUN.name, RUN.text);
    let planned = dir.start(RONDE, &["plan", "served.toml"], &[]).wait();
    planned.expect(2, &["cannot forecast", "--set sync.kind=every_step"]);
}
