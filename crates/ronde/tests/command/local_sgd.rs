//! Local SGD with real processes: the bits do not depend on the workers, their deaths, or an interruption.

use rustix::process::Signal;

use crate::run_files::RunFile;
use crate::support::{Ended, RONDE, TestFolder, events, of_kind, send};

/// Convolutions, batch normalisation, dropout, clipping, and epochs of 7 rounds of 4 steps and one of a single step.
const RUN: RunFile = RunFile {
    name: "local.toml",
    text: r#"
[run]
name = "local"
output = "out"
[data]
source = "digits"
[model]
kind = "digits_cnn"
channels = 6
dropout = 0.25
[train]
epochs = 2
global_batch_size = 50
learning_rate = 0.01
clip_norm = 1.0
[sync]
kind = "local_sgd"
inner_steps = 4
replicas = 4
"#,
};

/// Returns the hash of the model and the losses of the inner steps.
fn bits(ended: &Ended) -> (String, Vec<String>) {
    let all = ended.events();
    let losses = of_kind(&all, "inner_losses").map(|event| event["losses"].to_string());
    (ended.blake3(), losses.collect())
}

#[test]
fn replicas_have_the_same_bits_on_any_number_of_processes() {
    for sets in [
        &[][..],
        &["sync.inner_state=average", "optimizer.kind=lamb"],
        &["sync.outer_format=int8_blocks", "comm.transport=tcp"],
        &["sync.outer_format=bf16"],
        &["sync.inner_state=keep"],
        &["sync.inner_state=keep", "sync.fragments=2"],
        // There is nothing to keep.
        &[
            "sync.inner_state=keep",
            "optimizer={kind='sgd', momentum=0.0}",
        ],
        &[
            "sync.inner_state=average",
            "optimizer={kind='sgd', momentum=0.0}",
        ],
    ] {
        let run = |workers: &str| {
            bits(
                &RUN.start(&TestFolder::new(), workers, sets)
                    .wait()
                    .expect(0, &[]),
            )
        };
        let alone = run("1");
        // 29 steps of an epoch are 7 rounds of 4 and one of a single step, or 14 of 2 and one of a single step.
        let rounds = if sets.contains(&"sync.fragments=2") {
            30
        } else {
            16
        };
        assert_eq!(alone.1.len(), rounds);
        for workers in ["2", "3", "4"] {
            assert!(run(workers) == alone, "{workers} workers, {sets:?}");
        }
    }
    let dir = TestFolder::new();
    let ended = RUN.start(&dir, "5", &[]).wait();
    ended.expect(2, &["5 workers cannot share 4 replicas"]);
}

#[test]
fn after_a_worker_is_killed_the_others_compute_its_replicas() {
    let sets = ["train.epochs=30", "elastic.max_restarts=0"];
    let alone = RUN
        .start(&TestFolder::new(), "1", &sets)
        .wait()
        .expect(0, &[]);
    for killed in [1, 0] {
        let dir = TestFolder::new();
        let mut running = RUN.start(&dir, "3", &sets);
        let workers = running.after_steps(20);
        send(workers[&killed], Signal::KILL);
        running.wait_stdout("\"event\":\"recovered\"", 1);
        let ended = running.wait().expect(0, &[]);
        assert_eq!(ended.blake3(), alone.blake3(), "worker {killed}");
        let all = events(&ended.stdout);
        for epoch in of_kind(&all, "epoch_finished") {
            assert_eq!(epoch["used_once"], 1437, "{epoch}");
            assert_eq!(epoch["repeated"], 0, "{epoch}");
        }
    }
    // A replacement joins and takes over replicas again.
    let dir = TestFolder::new();
    let mut running = RUN.start(&dir, "3", &["train.epochs=30"]);
    let workers = running.after_steps(20);
    send(workers[&2], Signal::KILL);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), alone.blake3());
}

#[test]
fn after_a_worker_is_killed_all_return_to_copies_in_memory() {
    let sets = [
        "train.epochs=30",
        "sync.inner_state=keep",
        "sync.fragments=2",
        "elastic.copy_steps=2",
    ];
    let alone = RUN
        .start(&TestFolder::new(), "1", &sets)
        .wait()
        .expect(0, &[]);
    for killed in [1, 0] {
        let dir = TestFolder::new();
        let mut running = RUN.start(&dir, "3", &sets);
        let workers = running.after_steps(20);
        send(workers[&killed], Signal::KILL);
        let ended = running.wait().expect(0, &[]);
        assert_eq!(ended.blake3(), alone.blake3(), "worker {killed}");
        let told = "each replica is copied to another worker every 2 steps";
        assert!(ended.stdout.contains(told), "{}", ended.stdout);
        let all = events(&ended.stdout);
        let mut loaded = of_kind(&all, "checkpoint_loaded");
        assert!(loaded.all(|event| event["address"].is_null()));
    }
}

#[test]
fn a_run_continues_from_a_checkpoint_with_another_number_of_workers() {
    for (state, optimizer) in [
        ("sync.inner_state=reset", "optimizer.kind=adam"),
        ("sync.inner_state=average", "optimizer.kind=adam"),
        ("sync.inner_state=keep", "optimizer.kind=adam"),
        (
            "sync.inner_state=keep",
            "optimizer={kind='sgd', momentum=0.0}",
        ),
    ] {
        let sets = |more: &[&'static str]| [&[state, optimizer], more].concat();
        let dir = TestFolder::new();
        let alone = RUN
            .start(&dir, "1", &sets(&[]))
            .wait()
            .expect(0, &[])
            .blake3();
        let dir = TestFolder::new();
        RUN.start(&dir, "3", &sets(&["train.epochs=1"]))
            .wait()
            .expect(0, &[]);
        let resumed = RUN.start(&dir, "2", &sets(&["--resume"]));
        let resumed = resumed.wait().expect(0, &[]);
        assert_eq!(resumed.blake3(), alone, "{state} {optimizer}");
        let changed = sets(&["train.epochs=3", "sync.inner_steps=2", "--resume"]);
        RUN.start(&dir, "2", &changed)
            .wait()
            .expect(2, &["sync.inner_steps", "it determines the steps"]);
    }
}

#[test]
fn forecasts_and_long_rounds_are_refused_with_a_sentence() {
    let dir = TestFolder::new();
    dir.write(RUN.name, RUN.text);
    let planned = dir.start(RONDE, &["plan", "local.toml"], &[]).wait();
    planned.expect(2, &["cannot forecast", "--set sync.kind=every_step"]);
    let ended = RUN.start(&dir, "1", &["sync.inner_steps=30"]).wait();
    ended.expect(
        2,
        &["rounds of 30 steps are longer than an epoch, which has 29 steps"],
    );
    let many = [
        "sync.inner_steps=24",
        "sync.inner_state=keep",
        "sync.fragments=24",
    ];
    let ended = RUN.start(&dir, "1", &many).wait();
    ended.expect(
        2,
        &[
            "24 fragments cannot divide a model of",
            "layers with weights",
        ],
    );
    let arguments = ["train", "local.toml", "--dry-run"];
    let dry = dir.start(RONDE, &arguments, &[]).wait().expect(0, &[]);
    let text = format!("{}{}", dry.stdout, dry.stderr);
    assert!(text.contains("1 processes for 4 replicas"), "{text}");
    assert!(
        text.contains("16 in 2 epochs, 200 samples per step"),
        "{text}"
    );
}
