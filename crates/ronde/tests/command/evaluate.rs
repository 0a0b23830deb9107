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
