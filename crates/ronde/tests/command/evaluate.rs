//! Evaluation of a saved model: the numbers of the training process, and mistakes.

use serde_json::Value;

use crate::support::{TestFolder, of_kind};

const SMALL: [&str; 9] = [
    "train",
    "--json",
    "--set",
    "model.channels=1",
    "--set",
    "run.output=out",
    "--set",
    "train.epochs=1",
    "--set",
];

#[test]
fn a_saved_model_has_the_loss_and_metrics_of_its_run() {
    let dir = TestFolder::new();
    let metrics = "train.metrics=[\"f1\", \"confusion_matrix\"]";
    let arguments = [&SMALL[..], &[metrics, "-n", "3"]].concat();
    let events = dir.run(&arguments).expect(0, &[]).events();
    let trained = of_kind(&events, "evaluated").last().unwrap().clone();
    let ended = dir.run(&["evaluate", "out", "--json"]).expect(0, &[]);
    let found: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    let fields = found.as_object().unwrap();
    assert!(
        fields.contains_key("f1") && fields.contains_key("accuracy"),
        "{found}"
    );
    let measured = of_kind(&events, "confusion_measured").collect::<Vec<_>>();
    assert_eq!(measured.len(), 1);
    for (name, value) in fields {
        let trained = match name.as_str() {
            "confusion_matrix" => &measured[0]["rows"],
            name => &trained[name],
        };
        assert_eq!(value, trained, "{name}");
    }
    let rows: Vec<Vec<u64>> = serde_json::from_value(found["confusion_matrix"].clone()).unwrap();
    assert_eq!(rows.iter().flatten().sum::<u64>(), 360);
    let hits: u64 = (0..10).map(|class| rows[class][class]).sum();
    assert_eq!(found["accuracy"], hits as f64 / 360.0);
    let text = dir
        .run(&["evaluate", "out/model.safetensors"])
        .expect(0, &[]);
    assert!(
        text.stdout.contains("samples               360\n"),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout.contains("accuracy              0."),
        "{}",
        text.stdout
    );
    let last: Vec<String> = rows[9].iter().map(ToString::to_string).collect();
    let printed = text
        .stdout
        .lines()
        .find(|line| line.trim_start().starts_with("9  "));
    let printed: Vec<&str> = printed.unwrap().split_whitespace().skip(1).collect();
    assert_eq!(printed, last, "{}", text.stdout);
}

/// A run whose learning rate grows until it spoils the model, so that an early evaluation is the best.
const SPOILED: [&str; 12] = [
    "run.output=out",
    "workers.logical_shards=6",
    "model={kind='mlp', hidden=[12]}",
    "train.epochs=5",
    "train.global_batch_size=120",
    "train.evaluate_every_epochs=1",
    "train.keep_best=loss",
    "train.learning_rate=0.3",
    "optimizer={kind='adam'}",
    "schedule={kind='cosine', warmup_steps=60}",
    "checkpoint.every_steps=7",
    "checkpoint.to=out/checkpoints",
];

/// The kinds of training, and the numbers of workers that give the same bits; empty if none do.
const KINDS: [(&[&str], &[&str]); 18] = [
    (&[], &["1", "2", "3"]),
    (&["parallel.zero=1"], &["1", "3"]),
    (&["parallel.zero=2"], &["1", "3"]),
    (&["parallel.zero=3"], &["1", "3"]),
    (&["parallel.pipeline=2"], &["2", "4"]),
    (&["parallel.pipeline=2", "parallel.zero=1"], &["2", "4"]),
    (&["parallel.servers=1"], &["2", "3"]),
    (
        &[
            "model={kind='mlp', hidden=[12], tensor_parts=2}",
            "parallel.tensor=2",
        ],
        &["2", "4"],
    ),
    (
        &["compression={codec='top_k', ratio=0.1, senders=3}"],
        &["1", "3"],
    ),
    (
        &["compression={codec='power_sgd', rank=2, senders=3}"],
        &["1", "3"],
    ),
    (
        &["sync={kind='local_sgd', inner_steps=4, replicas=3}"],
        &["1", "3"],
    ),
    (
        &["sync={kind='local_sgd', inner_steps=4, replicas=3, inner_state='average'}"],
        &["1", "2"],
    ),
    (
        &["sync={kind='local_sgd', inner_steps=4, replicas=3, inner_state='keep'}"],
        &["1", "3"],
    ),
    (
        &["sync={kind='local_sgd', inner_steps=4, replicas=3, inner_state='keep', fragments=2}"],
        &["1", "2"],
    ),
    (
        &[
            "sync={kind='synthetic_gradients', stages=2, round_steps=4}",
            "train.learning_rate=0.02",
        ],
        &["1", "2"],
    ),
    (&["sync={kind='parameter_server', round_updates=4}"], &[]),
    (&["sync={kind='gossip', round_updates=4}"], &[]),
    (
        &[
            "train.early_stopping={metric='loss', patience=2}",
            "train.reduce_on_plateau={metric='loss', patience=1}",
        ],
        &["1", "2"],
    ),
];

/// Trains with some values, and returns the hash of the model after a comparison of its evaluation with the recorded one.
fn kept_best(sets: &[&str], workers: &str) -> String {
    let dir = TestFolder::new();
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in SPOILED.iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    let ended = dir.run(&arguments).expect(0, &[]);
    let events = ended.events();
    let best = of_kind(&events, "best_model").last().unwrap().clone();
    let evaluated = || of_kind(&events, "evaluated");
    let last = evaluated().last().unwrap();
    // Here the speed of the workers decides which evaluation is the best one; it may be the last.
    let is_timed = |set: &&str| set.contains("'parameter_server'") || set.contains("'gossip'");
    let is_last = best["step"] == last["step"];
    assert!(
        !is_last || sets.iter().any(is_timed),
        "{sets:?}: {best} {last}"
    );
    let recorded = evaluated().find(|event| event["step"] == best["step"]);
    let found = dir.run(&["evaluate", "out", "--json"]).expect(0, &[]);
    let found: Value = serde_json::from_str(found.stdout.trim()).unwrap();
    let manifest = std::fs::read_to_string(dir.path().join("out/model.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let steps = best["step"].as_u64().unwrap() + 1;
    assert_eq!(manifest["steps"], steps);
    assert_eq!(manifest["evaluation"]["steps"], steps);
    if !is_last {
        let run_steps = last["step"].as_u64().unwrap() + 1;
        assert_eq!(manifest["best"]["run_steps"], run_steps);
    }
    for name in ["loss", "accuracy", "samples"] {
        let expected = &found[name];
        assert_eq!(expected, &best[name], "{sets:?} on {workers}: {name}");
        assert_eq!(expected, &recorded.unwrap()[name], "{sets:?}: {name}");
        if name != "samples" {
            assert_eq!(
                expected, &manifest["evaluation"]["values"][name],
                "{sets:?}"
            );
        }
    }
    // Tensors in parts have other names in a checkpoint.
    if !sets.iter().any(|set| set.contains("tensor_parts")) {
        assert_eq!(best_of_checkpoint(&dir), ended.blake3(), "{sets:?}");
    }
    ended.blake3()
}

/// Returns the hash of the best model in the newest checkpoint.
fn best_of_checkpoint(dir: &TestFolder) -> String {
    let export = ["checkpoint", "export", "out", "--vector", "best"];
    let exported = dir.run(&export).expect(0, &[]).stdout;
    let is_hash = |word: &&str| word.len() == 64;
    let hash = exported.split_whitespace().find(is_hash);
    hash.unwrap_or_else(|| panic!("{exported}")).to_owned()
}

#[test]
fn the_last_checkpoint_has_the_best_model_also_if_it_is_the_last_one() {
    let dir = TestFolder::new();
    let mut arguments = vec!["train", "--json", "-n", "2"];
    // No checkpoint of the last step is saved before its evaluation.
    let sets = [
        "train.learning_rate=0.003",
        "schedule.warmup_steps=0",
        "checkpoint.every_steps=1000",
    ];
    for set in SPOILED.iter().chain(&sets) {
        arguments.extend(["--set", set]);
    }
    let ended = dir.run(&arguments).expect(0, &[]);
    let events = ended.events();
    let [best, last] = ["best_model", "evaluated"]
        .map(|kind| of_kind(&events, kind).last().unwrap()["step"].clone());
    assert_eq!(best, last);
    assert_eq!(best_of_checkpoint(&dir), ended.blake3());
}

#[test]
fn the_model_with_the_best_evaluation_is_kept_by_every_kind_of_training() {
    for (sets, workers) in KINDS {
        for average in [None, Some("train.average_decay=0.5")] {
            // The average of weights is spoiled later.
            let has_own_rate = |set: &&str| set.starts_with("sync=") || set.contains("stopping");
            let is_usual = average.is_some() && !sets.iter().any(has_own_rate);
            let rate = is_usual.then_some("train.learning_rate=1.5");
            let sets = sets.iter().copied().chain(average).chain(rate);
            let sets: Vec<&str> = sets.collect();
            if workers.is_empty() {
                for workers in ["1", "3"] {
                    kept_best(&sets, workers);
                }
                continue;
            }
            let hashes: Vec<String> = workers.iter().map(|n| kept_best(&sets, n)).collect();
            let is_equal = hashes.iter().all(|hash| *hash == hashes[0]);
            assert!(is_equal, "{sets:?}: {hashes:?}");
        }
    }
}

#[test]
fn a_model_of_another_engine_is_evaluated_with_a_note() {
    let dir = TestFolder::new();
    let arguments = [&SMALL[..], &["run.name=one"]].concat();
    dir.run(&arguments).expect(0, &[]);
    let same = dir.run(&["evaluate", "out"]).expect(0, &[]);
    assert!(!same.stderr.contains("engine"), "{}", same.stderr);
    let manifest = dir.path().join("out/model.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let engine = ronde_engine::engine_name();
    assert!(text.contains(&engine), "{text}");
    std::fs::write(&manifest, text.replace(&engine, "ronde 0")).unwrap();
    let other = dir.run(&["evaluate", "out"]).expect(0, &[]);
    let note = format!("trained by the engine ronde 0 and is evaluated by {engine}");
    assert!(other.stderr.contains(&note), "{}", other.stderr);
    assert_eq!(other.stdout, same.stdout);
}

#[test]
fn mistakes_are_named() {
    let dir = TestFolder::new();
    let arguments = [&SMALL[..], &["run.name=one"]].concat();
    dir.run(&arguments).expect(0, &[]);
    dir.run(&["evaluate", "nothing"]).expect(2, &["nothing"]);
    let other = "[data]\nsource = \"synthetic_images\"\nsamples = 20\ntest_samples = 10\nshape = [1, 4, 4]\n\
                 classes = 3\n[model]\nkind = \"linear\"\n[train]\nsteps = 3\n";
    dir.write("other.toml", other);
    dir.run(&["evaluate", "out", "--data", "other.toml"])
        .expect(2, &["[1, 8, 8] with 10", "[1, 4, 4] with 3", "--data"]);
    let manifest = dir.path().join("out/model.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let version = "format version is 2, and this release of ronde supports up to version 1";
    dir.run(&["evaluate", "out"])
        .expect(2, &[version, "help: install the release"]);
    let tuned = [&SMALL[..], &["model.init=out", "--set", "run.output=tuned"]].concat();
    dir.run(&tuned)
        .expect(2, &[version, "help: install the release"]);
    std::fs::write(&manifest, text).unwrap();
    std::fs::remove_file(dir.path().join("out/run.toml")).unwrap();
    dir.run(&["evaluate", "out"])
        .expect(2, &["no run file beside the model", "--data"]);
    let weights = dir.path().join("out/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    dir.run(&["evaluate", "out"])
        .expect(2, &["model.safetensors", "hash"]);
}
