//! Compressed gradients with real processes: the bits do not depend on the workers, their deaths, or an interruption.

use rustix::process::Signal;

use crate::run_files::RunFile;
use crate::support::{RONDE, TestFolder, events, of_kind, send};

/// Convolutions, batch normalisation, dropout and clipping.
const RUN: RunFile = RunFile {
    name: "compressed.toml",
    text: r#"
[run]
name = "compressed"
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
[compression]
codec = "top_k"
senders = 4
"#,
};

#[test]
fn senders_have_the_same_bits_on_any_number_of_processes() {
    for sets in [
        &["compression.ratio=0.02"][..],
        &[
            "compression.codec=int8_blocks",
            "compression.senders=4",
            "comm.transport=tcp",
        ],
        &["compression.codec=power_sgd", "compression.senders=4"],
    ] {
        let run = |workers: &str| {
            let ended = RUN.start(&TestFolder::new(), workers, sets).wait();
            ended.expect(0, &[]).blake3()
        };
        let alone = run("1");
        for workers in ["2", "3", "4"] {
            assert!(run(workers) == alone, "{workers} workers, {sets:?}");
        }
    }
    let ended = RUN.start(&TestFolder::new(), "5", &[]).wait();
    ended.expect(2, &["5 workers cannot share 4 senders"]);
}

#[test]
fn after_a_worker_is_killed_all_load_the_newest_checkpoint() {
    let sets = ["train.epochs=12", "checkpoint.every_steps=10"];
    let alone = RUN
        .start(&TestFolder::new(), "1", &sets)
        .wait()
        .expect(0, &[]);
    for killed in [1, 0] {
        let dir = TestFolder::new();
        let mut running = RUN.start(&dir, "3", &sets);
        running.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
        let workers = running.after_steps(20);
        send(workers[&killed], Signal::KILL);
        let ended = running.wait().expect(0, &[]);
        assert_eq!(ended.blake3(), alone.blake3(), "worker {killed}");
        let all = events(&ended.stdout);
        assert!(of_kind(&all, "checkpoint_loaded").count() > 0);
        let told = "so all workers load the newest checkpoint after the loss of one";
        assert!(ended.stdout.contains(told), "{}", ended.stdout);
    }
}

#[test]
fn a_run_continues_from_a_checkpoint_with_another_number_of_workers() {
    for codec in ["compression.codec=top_k", "compression.codec=power_sgd"] {
        let sets = [codec, "compression.senders=4"];
        let alone = RUN
            .start(&TestFolder::new(), "1", &sets)
            .wait()
            .expect(0, &[]);
        let dir = TestFolder::new();
        let part = [codec, "compression.senders=4", "train.epochs=1"];
        RUN.start(&dir, "3", &part).wait().expect(0, &[]);
        let more = [codec, "compression.senders=4", "--resume"];
        let resumed = RUN.start(&dir, "2", &more).wait().expect(0, &[]);
        assert_eq!(resumed.blake3(), alone.blake3(), "{codec}");
        let changed = [codec, "compression.senders=2", "train.epochs=3", "--resume"];
        RUN.start(&dir, "2", &changed)
            .wait()
            .expect(2, &["compression.senders", "it determines the residuals"]);
    }
}

#[test]
fn the_largest_elements_take_few_bytes_and_int8_a_quarter() {
    let bytes = |sets: &[&str]| {
        let mut all = vec![
            "comm.transport=tcp",
            "comm.algorithm=direct",
            "model.channels=64",
        ];
        all.extend(sets);
        let ended = RUN
            .start(&TestFolder::new(), "4", &all)
            .wait()
            .expect(0, &[]);
        let all = ended.events();
        let of_rank = of_kind(&all, "step_times").filter(|event| event["rank"] == 2);
        let sent: Vec<u64> = of_rank
            .filter_map(|event| event["bytes_sent"].as_u64())
            .collect();
        (sent[sent.len() - 1] - sent[0]) as f64
    };
    let plain = bytes(&["compression.codec=none"]);
    let top = bytes(&[]) / plain;
    assert!(top < 0.035, "with headers and votes: {top}");
    let int8 = bytes(&["compression.codec=int8_blocks", "compression.senders=4"]) / plain;
    assert!(0.25 < int8 && int8 < 0.29, "{int8}");
}

#[test]
fn forecasts_are_refused_and_a_dry_run_counts_senders() {
    let dir = TestFolder::new();
    dir.write(RUN.name, RUN.text);
    let planned = dir.start(RONDE, &["plan", "compressed.toml"], &[]).wait();
    planned.expect(2, &["cannot forecast", "--set compression.codec=none"]);
    let arguments = ["train", "compressed.toml", "--dry-run"];
    let dry = dir.start(RONDE, &arguments, &[]).wait().expect(0, &[]);
    let text = format!("{}{}", dry.stdout, dry.stderr);
    assert!(text.contains("1 processes for 4 senders"), "{text}");
}
