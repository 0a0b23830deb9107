//! Stages that update with predicted gradients, with real processes: the bits do not depend on the workers, their deaths, or an
//! interruption.

use rustix::process::Signal;
use serde_json::Value;

use crate::run_files::RunFile;
use crate::support::{Ended, RONDE, TestFolder, events, gone, of_kind, send};

/// Dropout-free layers, clipping, and epochs of 2 rounds of 20 batches and one of 18.
const RUN: RunFile = RunFile {
    name: "predicted.toml",
    text: r#"
[run]
name = "predicted"
output = "out"
[workers]
logical_shards = 2
[data]
source = "digits"
[model]
kind = "mlp"
hidden = [48, 40, 32]
[train]
epochs = 2
global_batch_size = 25
learning_rate = 0.003
clip_norm = 5.0
[sync]
kind = "synthetic_gradients"
stages = 4
round_steps = 20
hidden = 32
"#,
};

/// Returns the hash of the model, and the predictions.
fn bits(ended: &Ended) -> (String, Vec<String>) {
    let all = ended.events();
    let found = of_kind(&all, "gradients_predicted").map(ToString::to_string);
    let without_time = found.map(|text| {
        let mut event: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(fields) = event.as_object_mut() {
            fields.remove("t");
        }
        event.to_string()
    });
    (ended.blake3(), without_time.collect())
}

#[test]
fn stages_have_the_same_bits_on_any_number_of_processes() {
    for sets in [
        &[][..],
        &["sync.gradient_delay=1", "optimizer.kind=lamb"],
        &["train.precision=bf16", "comm.transport=tcp"],
        &[
            "model.kind=digits_cnn",
            "model.hidden",
            "sync.stages=3",
            "sync.borders=[\"top\", \"classifier\"]",
        ],
    ] {
        let is_cnn = sets.contains(&"model.hidden");
        let sets: Vec<&str> = sets
            .iter()
            .copied()
            .filter(|set| *set != "model.hidden")
            .collect();
        let run = |workers: &str| {
            let dir = TestFolder::new();
            let text = match is_cnn {
                true => RUN
                    .text
                    .replace("hidden = [48, 40, 32]\n", "channels = 4\n"),
                false => RUN.text.to_owned(),
            };
            dir.write("run.toml", &text);
            let mut arguments = vec!["train", "run.toml", "--json", "-n", workers];
            sets.iter().for_each(|set| arguments.extend(["--set", set]));
            bits(&dir.start(RONDE, &arguments, &[]).wait().expect(0, &[]))
        };
        let alone = run("1");
        // 58 batches of an epoch are 2 rounds of 20 and one of 18.
        assert_eq!(alone.1.len(), 6);
        let workers: &[&str] = if is_cnn {
            &["2", "3"]
        } else {
            &["2", "3", "4"]
        };
        for workers in workers {
            assert!(run(workers) == alone, "{workers} workers, {sets:?}");
        }
    }
}

#[test]
fn after_a_worker_is_killed_the_others_compute_its_stages() {
    let sets = ["train.epochs=60", "elastic.max_restarts=0"];
    let alone = RUN
        .start(&TestFolder::new(), "1", &sets)
        .wait()
        .expect(0, &[]);
    for killed in [2, 0] {
        let dir = TestFolder::new();
        let mut running = RUN.start(&dir, "4", &sets);
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
    // A replacement joins and takes over stages again.
    let dir = TestFolder::new();
    let mut running = RUN.start(&dir, "3", &["train.epochs=60"]);
    let workers = running.after_steps(20);
    send(workers[&1], Signal::KILL);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), alone.blake3());
}

#[test]
fn a_run_continues_from_a_checkpoint_with_another_number_of_workers() {
    let dir = TestFolder::new();
    let alone = RUN.start(&dir, "1", &[]).wait().expect(0, &[]).blake3();
    let dir = TestFolder::new();
    RUN.start(&dir, "4", &["train.epochs=1"])
        .wait()
        .expect(0, &[]);
    let resumed = RUN.start(&dir, "2", &["--resume"]).wait().expect(0, &[]);
    assert_eq!(resumed.blake3(), alone);
    let changed = ["train.epochs=3", "sync.hidden=16", "--resume"];
    RUN.start(&dir, "2", &changed)
        .wait()
        .expect(2, &["sync.hidden", "it determines the steps"]);
    // All workers are killed in a round; the run goes back to the newest checkpoint.
    let sets = ["train.epochs=40", "checkpoint.every_steps=7"];
    let dir = TestFolder::new();
    let alone = RUN.start(&dir, "1", &sets).wait().expect(0, &[]).blake3();
    let dir = TestFolder::new();
    let mut running = RUN.start(&dir, "3", &sets);
    running.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
    let workers = running.after_steps(20);
    running.signal(Signal::KILL);
    let _ = running.wait();
    // The watchdog ends the workers, which may still write until then.
    gone(workers.into_values());
    let sets = ["train.epochs=40", "checkpoint.every_steps=7", "--resume"];
    let resumed = RUN.start(&dir, "4", &sets).wait().expect(0, &[]);
    assert_eq!(resumed.blake3(), alone);
}

#[test]
fn the_saved_model_has_no_predictors_and_the_run_describes_its_stages() {
    let dir = TestFolder::new();
    let ended = RUN.start(&dir, "2", &[]).wait().expect(0, &[]);
    let all = ended.events();
    let notices = of_kind(&all, "notice").map(|event| event["message"].to_string());
    let notices = notices.collect::<Vec<_>>().join("\n");
    assert!(notices.contains("4 stages of the model"), "{notices}");
    assert!(notices.contains("3 predictors with"), "{notices}");
    let weights = std::fs::read(dir.path().join("out/model.safetensors")).unwrap();
    let text = String::from_utf8_lossy(&weights);
    assert!(text.contains("layer1.weight") && !text.contains("predictor"));
    let evaluated = dir.start(RONDE, &["evaluate", "out"], &[]).wait();
    evaluated.expect(0, &[]);
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_sentence() {
    let dir = TestFolder::new();
    for (set, part) in [
        ("sync.stages=1", "must be at least 2"),
        (
            "sync.stages=5",
            "5 stages cannot divide a model of 4 layers",
        ),
        ("sync.round_steps=0", "at least 1"),
        (
            "sync.round_steps=59",
            "rounds of 59 steps are longer than an epoch, which has 58 steps",
        ),
        ("sync.gradient_delay=0", "at least 1"),
        ("sync.predictor_learning_rate=0", "must be above 0"),
        (
            "sync.borders=[\"layer2\"]",
            "which make 2 stages, but `sync.stages` is 4",
        ),
        (
            "sync.borders=[\"layer2\", \"layer3\", \"layer9\"]",
            "sync.borders names `layer9`, but the model has no such layer",
        ),
        ("train.precision=f16", "cannot train in f16"),
        ("parallel.zero=1", "hold the whole state"),
        ("parallel.pipeline=2", "hold the whole state"),
        ("workers.balance=measured", "no shares to balance"),
        ("model.tensor_parts=2", "layers are in parts"),
        ("sync.inner_steps=2", "inner_steps"),
    ] {
        RUN.start(&dir, "2", &[set]).wait().expect(2, &[part]);
    }
    let ended = RUN.start(&dir, "5", &[]).wait();
    ended.expect(2, &["5 workers cannot share 4 stages"]);
    dir.write(RUN.name, RUN.text);
    let planned = dir.start(RONDE, &["plan", "predicted.toml"], &[]).wait();
    planned.expect(2, &["cannot forecast", "--set sync.kind=every_step"]);
}
