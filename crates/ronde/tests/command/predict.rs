//! Predictions of a saved model: the same bytes for any number of workers, interruptions and mistakes.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{TestFolder, gone, send, until};

/// Trains a small model on the handwritten digits.
fn trained() -> TestFolder {
    let dir = TestFolder::new();
    let sets = ["model.channels=1", "run.output=out", "train.epochs=1"];
    let mut arguments = vec!["train", "--json"];
    sets.iter()
        .for_each(|set| arguments.extend(["--set", *set]));
    dir.run(&arguments).expect(0, &[]);
    dir
}

fn read(dir: &TestFolder, name: &str) -> Vec<u8> {
    std::fs::read(dir.path().join(name)).unwrap()
}

#[test]
fn predictions_do_not_depend_on_the_workers_and_agree_with_the_evaluation() {
    let dir = trained();
    let one = dir.run(&["predict", "out", "--to", "one.jsonl"]);
    one.expect(0, &["wrote one.jsonl: 360 predictions"]);
    dir.run(&["predict", "out", "--to", "three.jsonl", "-n", "3", "--json"])
        .expect(0, &[]);
    assert_eq!(read(&dir, "one.jsonl"), read(&dir, "three.jsonl"));
    let text = String::from_utf8(read(&dir, "one.jsonl")).unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers = rows.iter().map(|row| row["sample"].as_u64().unwrap());
    assert!(numbers.eq(0..360));
    assert_eq!(rows[0]["probabilities"].as_array().unwrap().len(), 10);
    let top = [
        "predict",
        "out/model.safetensors",
        "--to",
        "top.csv",
        "--top",
        "2",
    ];
    dir.run(&top).expect(0, &[]);
    let text = String::from_utf8(read(&dir, "top.csv")).unwrap();
    let mut lines = text.lines();
    let header =
        "sample,class,probability,top_class_0,top_class_1,top_probability_0,top_probability_1";
    assert_eq!(lines.next(), Some(header));
    for (line, row) in lines.zip(&rows) {
        let start = format!("{},{},", row["sample"], row["class"]);
        assert!(line.starts_with(&start), "{line}: {start}");
    }
    let names = dir.list(".");
    assert!(
        names.iter().all(|name| !name.ends_with(".parts")),
        "{names:?}"
    );
}

/// Data whose samples take long enough that a command can be interrupted.
const LONG: &str = "[data]\nsource = \"synthetic_images\"\nsamples = 120\ntest_samples = 30000\nshape = [3, 16, 16]\n\
    classes = 4\n[model]\nkind = \"resnet18\"\nsmall_input = true\n[train]\nsteps = 1\n[run]\noutput = \"long\"\n";
const SHORT_TEST: &str = "data.test_samples=8";

/// Trains a model whose predictions take long.
fn trained_long() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("long.toml", LONG);
    dir.run(&["train", "long.toml", "--json", "--set", SHORT_TEST])
        .expect(0, &[]);
    dir
}

/// Returns the number of finished parts of `out.csv`.
fn finished(dir: &TestFolder) -> usize {
    let names = dir.list("out.csv.parts");
    let parts = names
        .iter()
        .filter(|name| name.starts_with("0000") && name.ends_with(".json"));
    parts.count()
}

#[test]
fn interrupted_predictions_continue_where_they_ended() {
    let dir = trained_long();
    let command = |samples: &str| -> Vec<String> {
        let samples = format!("data.test_samples={samples}");
        let words = "predict long --data long.toml --to out.csv -n 2 --set";
        let words = words.split(' ').map(ToString::to_string);
        words.chain([samples]).collect()
    };
    let long = command("30000");
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let ronde = crate::support::RONDE;
    let started = dir.start(ronde, &long, &[]);
    until("a part is finished", || finished(&dir) > 0);
    dir.run(&long).expect(2, &["another command"]);
    // A killed worker is replaced.
    let workers = started.children();
    send(workers[0], Signal::KILL);
    until("a worker is replaced", || {
        started
            .children()
            .iter()
            .any(|worker| !workers.contains(worker))
    });
    started.signal(Signal::INT);
    let all = started.children();
    started.wait().expect(
        130,
        &[
            "worker",
            "killed by signal 9",
            "interrupted",
            "run the same command again to continue",
        ],
    );
    gone(all);
    let before = finished(&dir);
    assert!(before > 0 && !dir.path().join("out.csv").exists());
    // Workers end with a killed command.
    let started = dir.start(ronde, &long, &[]);
    until("another part is finished", || finished(&dir) > before);
    let workers = started.children();
    started.signal(Signal::KILL);
    started.wait();
    gone(workers);
    let other = command("120");
    let other: Vec<&str> = other.iter().map(String::as_str).collect();
    dir.run(&other).expect(2, &["changed from", "--force"]);
    let forced = [&other[..], &["--force"]].concat();
    dir.run(&forced)
        .expect(0, &["wrote out.csv: 120 predictions"]);
    let text = String::from_utf8(read(&dir, "out.csv")).unwrap();
    let mut numbers = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').next().unwrap());
    assert!((0..120).all(|number| numbers.next() == Some(&*number.to_string())));
    assert_eq!(numbers.next(), None);
}

#[test]
fn finished_parts_are_not_computed_again() {
    let dir = trained();
    let arguments = ["predict", "out", "--to", "whole.csv"];
    dir.run(&arguments).expect(0, &[]);
    // A folder that is not writable for parts simulates a full disk: the third part cannot be published.
    let blocked = dir.path().join("out.csv.parts/00000002.part");
    std::fs::create_dir_all(blocked.join("x")).unwrap();
    let arguments = ["predict", "out", "--to", "out.csv"];
    dir.run(&arguments).expect(
        3,
        &["00000002.part", "2 of 6 parts of out.csv are finished"],
    );
    std::fs::remove_dir_all(&blocked).unwrap();
    dir.run(&arguments)
        .expect(0, &["2 of 6 parts are finished", "wrote out.csv"]);
    assert_eq!(read(&dir, "out.csv"), read(&dir, "whole.csv"));
}

#[test]
fn mistakes_are_named() {
    let dir = trained();
    dir.run(&["predict", "nothing", "--to", "a.csv"])
        .expect(2, &["nothing"]);
    dir.run(&["predict", "out", "--to", "a.txt"])
        .expect(2, &[".parquet, .csv or .jsonl"]);
    dir.run(&["predict", "out", "--to", "absent/a.csv"])
        .expect(2, &["cannot create absent/a.csv.parts"]);
    dir.run(&["predict", "out", "--to", "a.csv", "-n", "0"])
        .expect(2, &["--workers", "0"]);
    dir.write("a.csv", "mine");
    dir.run(&["predict", "out", "--to", "a.csv"]).expect(
        2,
        &["cannot write predictions to a.csv: it exists", "--force"],
    );
    assert_eq!(read(&dir, "a.csv"), b"mine");
    dir.run(&["predict", "out", "--to", "a.csv", "--force"])
        .expect(0, &[]);
    std::fs::create_dir(dir.path().join("b.csv")).unwrap();
    dir.run(&["predict", "out", "--to", "b.csv", "--force"])
        .expect(2, &["b.csv: is a directory", "name a file"]);
    let damaged = dir.path().join("out/model.safetensors");
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    dir.run(&["predict", "out", "--to", "c.csv"])
        .expect(2, &["model.safetensors"]);
}

#[cfg(feature = "full")]
#[test]
fn parquet_is_written() {
    let dir = trained();
    dir.run(&["predict", "out", "--to", "a.parquet", "-n", "2"])
        .expect(0, &["360 predictions"]);
    let bytes = read(&dir, "a.parquet");
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

/// A small model of letters, and one that translates numbers.
const GPT: &str = "[data]\nsource = \"text\"\ncontext = 32\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\n\
    [train]\nsteps = 20\n[run]\noutput = \"gpt\"\n";
const TRANSFORMER: &str = "[data]\nsource = \"number_words\"\nsamples = 200\ntest_samples = 130\n[model]\n\
    kind = \"transformer\"\nsource = 9\nlayers = 1\nwidth = 16\nheads = 2\n[train]\nsteps = 20\n[run]\noutput = \"numbers\"\n";

#[test]
fn generated_text_does_not_depend_on_the_workers() {
    let dir = TestFolder::new();
    dir.write("gpt.toml", GPT);
    dir.run(&["train", "gpt.toml", "--json"]).expect(0, &[]);
    let prompts: String = (0..150)
        .map(|line| format!("It was {}\n", "the ".repeat(line % 6)))
        .collect();
    dir.write("prompts.txt", &prompts);
    let predict = |to: &str, more: &str| {
        let words = format!("predict gpt --prompts prompts.txt --to {to} {more}");
        dir.run(&words.split_whitespace().collect::<Vec<_>>())
    };
    for (name, more) in [
        ("greedy", ""),
        (
            "drawn",
            "--temperature 0.9 --top-k 7 --seed 3 --max-tokens 5",
        ),
    ] {
        predict(&format!("{name}1.jsonl"), more).expect(0, &["150 predictions"]);
        predict(&format!("{name}3.jsonl"), &format!("-n 3 {more}")).expect(0, &[]);
        assert_eq!(
            read(&dir, &format!("{name}1.jsonl")),
            read(&dir, &format!("{name}3.jsonl"))
        );
    }
    let text = String::from_utf8(read(&dir, "drawn1.jsonl")).unwrap();
    let row: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert_eq!(row["prompt"], "It was the ");
    assert_eq!(row["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(row["text"].as_str().unwrap().chars().count(), 5, "{row}");
    // Equal prompts have different random numbers, and the same most probable text.
    let greedy = String::from_utf8(read(&dir, "greedy1.jsonl")).unwrap();
    let texts = |text: &str| -> Vec<Value> {
        let rows = text
            .lines()
            .step_by(6)
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| row["text"].clone()).collect()
    };
    assert!(texts(&greedy).iter().all(|one| *one == texts(&greedy)[0]));
    assert!(texts(&text).iter().any(|one| *one != texts(&text)[0]));
    predict("x.csv", "--temperature=-1").expect(2, &["temperature `-1`"]);
    predict("x.csv", "--top 3").expect(2, &["--top", "--top-k"]);
    dir.run(&["predict", "gpt", "--to", "x.csv", "--seed", "1"])
        .expect(2, &["--seed", "--prompts"]);
    dir.write("prompts.txt", "It was\n\u{416}");
    predict("x.csv", "").expect(2, &["line 2", "\u{416}"]);
    assert!(!dir.list(".").iter().any(|name| name.starts_with("x.csv")));
}

#[test]
fn translations_have_source_and_target_texts() {
    let dir = TestFolder::new();
    dir.write("numbers.toml", TRANSFORMER);
    dir.run(&["train", "numbers.toml", "--json"]).expect(0, &[]);
    dir.run(&["predict", "numbers", "--to", "1.jsonl"])
        .expect(0, &["130 predictions"]);
    dir.run(&["predict", "numbers", "--to", "2.jsonl", "-n", "2"])
        .expect(0, &[]);
    assert_eq!(read(&dir, "1.jsonl"), read(&dir, "2.jsonl"));
    dir.write("prompts.txt", "twenty one\nfive hundred");
    dir.run(&[
        "predict",
        "numbers",
        "--to",
        "3.csv",
        "--prompts",
        "prompts.txt",
    ])
    .expect(0, &[]);
    let text = String::from_utf8(read(&dir, "3.csv")).unwrap();
    assert!(
        text.starts_with("sample,prompt,text,tokens\n0,twenty one,"),
        "{text}"
    );
    dir.write("prompts.txt", "twenty onions");
    dir.run(&[
        "predict",
        "numbers",
        "--to",
        "x.csv",
        "--prompts",
        "prompts.txt",
    ])
    .expect(2, &["line 1", "`onions`"]);
}

#[test]
fn samples_of_files_have_the_file_and_the_record() {
    let dir = TestFolder::new();
    let lines = |from: u32, to: u32| -> String {
        let line = |number: u32| format!("{number}.5,0.5,{}\n", number % 2);
        (from..to).map(line).collect()
    };
    dir.write("train.csv", &lines(0, 40));
    dir.write("test-1.csv", &format!("a,b,label\n{}", lines(0, 70)));
    dir.write("test-2.csv", &lines(70, 75));
    let run = "[data]\nsource = \"records\"\ntrain = \"train.csv\"\ntest = [\"test-1.csv\", \"test-2.csv\"]\n\
        features = { decode = \"numbers\", field = [\"0\", \"1\"], shape = [2] }\n\
        label = { field = \"2\", classes = 2 }\n[model]\nkind = \"linear\"\n\
        [train]\nsteps = 3\nglobal_batch_size = 8\n[run]\noutput = \"out\"\n";
    dir.write("run.toml", run);
    dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    for format in ["csv", "jsonl", "parquet"] {
        let to = format!("of.{format}");
        dir.run(&["predict", "out", "--to", &to, "-n", "2"])
            .expect(0, &["75 predictions"]);
    }
    let text = String::from_utf8(read(&dir, "of.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("sample,file,record,class,"),
        "{}",
        lines[0]
    );
    assert!(
        lines[70].starts_with("69,") && lines[70].contains("test-1.csv,69,"),
        "{}",
        lines[70]
    );
    assert!(
        lines[75].starts_with("74,") && lines[75].contains("test-2.csv,4,"),
        "{}",
        lines[75]
    );
    let text = String::from_utf8(read(&dir, "of.jsonl")).unwrap();
    let row: Value = serde_json::from_str(text.lines().nth(72).unwrap()).unwrap();
    assert_eq!(
        (row["sample"].as_u64(), row["record"].as_u64()),
        (Some(72), Some(2))
    );
}
