//! `ronde data`: folders are packed into shards, shards are inspected and used for training.

use crate::support::TestFolder;
#[cfg(feature = "full")]
use crate::support::{Ended, copy_model, of_kind};

const JPEG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.jpg");
const PNG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.png");

fn dataset() -> TestFolder {
    let dir = TestFolder::new();
    for (class, image) in [("cat", JPEG), ("dog", PNG)] {
        let folder = dir.path().join("images").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..4 {
            let ending = if class == "cat" { "jpg" } else { "png" };
            std::fs::write(folder.join(format!("{number}.{ending}")), image).unwrap();
        }
    }
    dir
}

#[test]
fn folders_are_packed_and_shards_are_inspected() {
    let dir = dataset();
    let packed = dir
        .run(&["data", "pack", "images", "out", "--shard-size", "3KiB"])
        .expect(
            0,
            &[
                "packed 8 samples into 2 shards",
                "2 classes, the first one is \"cat\"",
            ],
        );
    assert!(
        packed.stdout.contains("train = \"out/train-*\""),
        "{}",
        packed.stdout
    );
    assert!(
        packed
            .stdout
            .contains("label = { field = \"image/class/label\", classes = 2 }")
    );
    assert_eq!(
        dir.list("out"),
        ["train-00000-of-00002", "train-00001-of-00002"]
    );
    dir.run(&["data", "pack", "images", "out"]).expect(
        2,
        &["error: cannot pack files: out: train-00000-of-00002 already exists; --force replaces"],
    );
    let seen = dir
        .run(&["data", "inspect", "out/train-*", "--samples", "2"])
        .expect(0, &[]);
    for word in [
        "tfrecord version 1",
        "samples       8",
        "image/class/text",
        " 64 x 48, ",
        "sample 1",
    ] {
        assert!(seen.stdout.contains(word), "{word:?} in\n{}", seen.stdout);
    }
    assert!(!seen.stdout.contains("sample 2"));
}

#[test]
fn unusable_records_are_listed() {
    let dir = dataset();
    dir.run(&["data", "pack", "images", "out", "--keep-order"])
        .expect(0, &[]);
    let shard = dir.path().join("out/train-00000-of-00001");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[1200] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let seen = dir.run(&["data", "inspect", "out"]).expect(0, &[]);
    assert!(seen.stdout.contains("samples       7"), "{}", seen.stdout);
    assert!(
        seen.stdout.contains("1 unusable records:"),
        "{}",
        seen.stdout
    );
    assert!(
        seen.stdout.contains("at byte 0: its bytes are damaged"),
        "{}",
        seen.stdout
    );
}

#[test]
fn errors_are_reported() {
    let dir = dataset();
    dir.run(&["data", "inspect", "nothing-*"])
        .expect(2, &["nothing-*"]);
    dir.run(&["data", "inspect"]).expect(2, &["ADDRESSES"]);
    dir.write("file.bin", "x");
    dir.run(&["data", "inspect", "file.bin"])
        .expect(2, &["set data.format"]);
    dir.run(&["data", "pack", "images", "out", "--format", "zip"])
        .expect(2, &["invalid format `zip`"]);
    dir.run(&["data", "pack", "images", "out", "--shard-size", "3 tons"])
        .expect(2, &["invalid unit ` tons`"]);
}

/// Runs the example on small images of two classes for two steps, with further settings in `more`.
#[cfg(feature = "full")]
fn imagenet(dir: &TestFolder, more: &[&str]) -> Ended {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/imagenet.toml");
    let mut arguments = vec!["train", path, "--json", "--overwrite"];
    let here = dir.path().display();
    let (train, test) = (
        format!("data.train={here}/out/train-*"),
        format!("data.test={here}/out/train-*"),
    );
    let sets = [
        &*train,
        &*test,
        "data.features.shape=[3,32,32]",
        "data.features.resize=36",
        "data.label.first=0",
        "data.label.classes=2",
        "model.small_input=true",
        "workers.logical_shards=2",
        "train.global_batch_size=4",
        "train.learning_rate_batch_size=4",
        "schedule.warmup_steps=0",
        "train.epochs=1",
    ];
    arguments.extend(
        sets.into_iter()
            .chain(more.iter().copied())
            .flat_map(|set| ["--set", set]),
    );
    dir.run(&arguments)
}

#[cfg(feature = "full")]
#[test]
fn resnet50_trains_from_packed_files_to_the_same_bits_on_any_workers() {
    let dir = dataset();
    dir.run(&["data", "pack", "images", "out", "--shard-size", "3KiB"])
        .expect(0, &[]);
    let two = imagenet(&dir, &[]).expect(0, &[]);
    let events = two.events();
    let started = of_kind(&events, "run_started").next().unwrap();
    assert_eq!(
        (&started["unit"], &started["steps"]),
        (&"image".into(), &2.into())
    );
    let epoch = of_kind(&events, "epoch_finished").next().unwrap();
    assert_eq!(
        (&epoch["used_once"], &epoch["repeated"]),
        (&8.into(), &0.into())
    );
    let one = imagenet(&dir, &["workers.count=1", "loader.threads=3"]).expect(0, &[]);
    assert_eq!(one.blake3(), two.blake3());
    // Another crop gives another model.
    let other = imagenet(&dir, &["data.features.crop=center"]).expect(0, &[]);
    assert_ne!(other.blake3(), two.blake3());
    imagenet(&dir, &["data.features.shape=[3,0,32]"]).expect(2, &["data.features"]);
    imagenet(&dir, &["data.train=nowhere/train-*"]).expect(2, &["nowhere/train-*"]);
}

/// Continues a text with the files of the model alone.
#[cfg(feature = "full")]
fn continues_alone(dir: &TestFolder) {
    copy_model(dir, "runs/gpt_tokens", "alone");
    dir.write("prompts.txt", "It is a truth\n");
    let words = "predict alone --to texts.jsonl --max-tokens 4 --prompts prompts.txt";
    dir.run(&words.split(' ').collect::<Vec<_>>())
        .expect(0, &["1 predictions"]);
}

/// Text is tokenized once, and the model does not depend on the number of workers.
#[cfg(feature = "full")]
#[test]
fn text_with_a_tokenizer_trains_to_the_same_bits_on_any_workers() {
    let dir = TestFolder::new();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/gpt_tokens.toml"
    );
    let train = |more: &[&str]| {
        let sets = ["train.epochs=1", "workers.logical_shards=4"];
        let sets = sets.iter().chain(more).flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = ["train", path, "--json", "--overwrite"]
            .into_iter()
            .chain(sets)
            .collect();
        dir.run(&arguments)
    };
    let two = train(&[]).expect(0, &[]);
    let kept = dir.list(".cache/ronde/tokens");
    assert_eq!(kept.len(), 1, "{kept:?}");
    let one = train(&["workers.count=1"]).expect(0, &[]);
    assert_eq!(one.blake3(), two.blake3());
    assert_eq!(dir.list(".cache/ronde/tokens"), kept);
    continues_alone(&dir);
    for (set, word) in [
        (
            "data.format.end_of_text=</s>",
            "the tokenizer has no such token",
        ),
        (
            "data.format.tokenizer=data/README.md",
            "is not a valid tokenizer.json",
        ),
        (
            "data.features.vocabulary=100",
            "less than the tokenizer's 512 tokens",
        ),
        ("data.format=text", "tokenizer = \"tokenizer.json\""),
    ] {
        train(&[set]).expect(2, &[word]);
    }
    let tokenizer = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/data/tokenizer.json"
    );
    let text = "a truth universally acknowledged ".repeat(100);
    let lines = format!("{{\"text\": \"{text}\"}}\nno line\n");
    let bad_offset = lines.len() - "no line\n".len();
    dir.write("lines.jsonl", &lines);
    let seen = dir
        .run(&[
            "data",
            "inspect",
            "lines.jsonl",
            "--tokenizer",
            tokenizer,
            "--json",
        ])
        .expect(0, &[]);
    let seen: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!((&seen["files"], &seen["bad_count"]), (&1.into(), &1.into()));
    let bad = &seen["bad"][0];
    assert_eq!(
        (&bad["offset"], &bad["record"]),
        (&bad_offset.into(), &1.into())
    );
    let file = bad["file"].as_str().unwrap();
    assert!(file.ends_with("lines.jsonl"), "{file}");
}

#[test]
fn inspecting_files_without_a_readable_sample_fails() {
    let dir = TestFolder::new();
    dir.write("a.tfrecord", "thirty-seven bytes that are no record");
    let ended = dir
        .run(&["data", "inspect", "a.tfrecord"])
        .expect(2, &["no samples in a.tfrecord"]);
    assert!(
        ended.stdout.contains("unusable records"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_run_whose_records_are_all_bad_fails() {
    let dir = TestFolder::new();
    dir.write("a.csv", &"2,word,0\n".repeat(20));
    dir.write(
        "a.toml",
        "[data]\nsource = \"records\"\ntrain = \"a.csv\"\non_bad_record = \"skip\"\n\
         features = { decode = \"numbers\", field = [\"0\", \"1\"], shape = [2] }\n\
         label = { field = \"2\", classes = 2 }\n\
         [model]\nkind = \"linear\"\n[train]\nepochs = 1\nglobal_batch_size = 4\n",
    );
    dir.run(&["train", "a.toml"])
        .expect(2, &["of 20 samples were skipped", "bad_record_limit"]);
}
