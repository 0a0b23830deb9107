//! User errors: reported with their location and help, before anything is started or created.

use crate::support::TestFolder;

const GOOD: &str = r#"[data]
source = "digits"
[model]
kind = "linear"
[train]
epochs = 1
"#;

/// A changed run file and arguments are refused with all of `words`, and nothing is left behind.
#[track_caller]
fn check(change: (&str, &str), arguments: &[&str], words: &[&str]) {
    let dir = TestFolder::new();
    assert!(GOOD.contains(change.0));
    dir.write("a.toml", &GOOD.replace(change.0, change.1));
    let ended = dir.run(&[&["train", "a.toml"], arguments].concat());
    let ended = ended.expect(2, words);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
    assert_eq!(dir.list("."), ["a.toml"], "{}", ended.stderr);
}

const SAME: (&str, &str) = ("", "");

#[test]
fn an_error_in_the_file_is_reported_with_its_position() {
    check(
        ("epochs", "epohcs"),
        &[],
        &[
            "unknown key `epohcs` in [train]",
            "a.toml:6:1",
            "did you mean `epochs`?",
        ],
    );
    check(
        ("epochs = 1", "epochs = \"three\""),
        &[],
        &["`train.epochs` must be a whole number", "a.toml:6:10"],
    );
    check(
        ("epochs = 1", "epochs = 0"),
        &[],
        &["`train.epochs` must be at least 1", "a.toml:6:10"],
    );
    check(
        ("linear", "lineer"),
        &[],
        &["a.toml:4:8", "did you mean `linear`?"],
    );
    check(("epochs = 1", "epochs = = 1"), &[], &["a.toml:6:10"]);
    check(
        (
            "\"digits\"",
            "\"csv\"\ntrain = \"gone.csv\"\nshape = [2]\nclasses = 2",
        ),
        &[],
        &[
            "gone.csv",
            "a.toml:3:9",
            "help: relative paths are resolved",
        ],
    );
}

#[test]
fn an_error_in_an_argument_is_reported() {
    check(
        SAME,
        &["-n", "9"],
        &[
            "8 logical shards are fewer than 9 workers",
            "--workers 9",
            "help: ",
        ],
    );
    check(SAME, &["-n", "0"], &["`workers.count` must be at least 1"]);
    check(
        SAME,
        &["--set", "nonsense"],
        &["key=value", "train.epochs=3"],
    );
    check(
        SAME,
        &["--set", "a.b=3"],
        &["unknown section [a]", "expected one of"],
    );
    check(SAME, &["--set", "train.epochs=x"], &["--set:1:14", "\"x\""]);
    check(SAME, &["--set", "run.output="], &["`run.output` is empty"]);
    check(
        SAME,
        &["--set", "run.name=../x"],
        &["it is also the name of a folder", "help: "],
    );
}

#[test]
fn a_missing_run_file_has_a_help_line() {
    let dir = TestFolder::new();
    dir.run(&["train", "gone.toml"]).expect(
        2,
        &["cannot read run file gone.toml", "ronde init gone.toml"],
    );
    dir.write("bad.toml", "");
    std::fs::write(dir.path().join("bad.toml"), [0xff, 0xfe, 0]).unwrap();
    dir.run(&["train", "bad.toml"])
        .expect(2, &["UTF-8", "TOML"]);
    assert_eq!(dir.list("."), ["bad.toml"]);
}

#[test]
fn a_path_that_cannot_be_used_has_a_help_line() {
    let dir = TestFolder::new();
    std::fs::create_dir_all(dir.path().join("runs/a")).unwrap();
    for (arguments, words) in [
        (
            &["logs", "runs/a"][..],
            &["it is a folder", "help: pass the name of a job"][..],
        ),
        (&["man", "/proc/x"], &["to /proc/x: ", "help: "]),
        (
            &["bench", "--against", "foo"],
            &["--against: invalid value `foo`", "help: "],
        ),
    ] {
        dir.run(arguments).expect(2, words);
    }
}

#[test]
fn an_impossible_plan_is_refused_with_its_numbers() {
    let mlp = ["--set", "model.kind=mlp", "--set"];
    let large = [&mlp[..], &["model.hidden=[200000, 200000]"]].concat();
    check(
        SAME,
        &large,
        &[
            "the model does not fit: 1 worker",
            "1.5 TiB",
            "available on this host",
            "optimizer 298",
            "help: use a smaller model",
        ],
    );
    let unknown = ["--set", "train.recompute_activations=[\"nowhere\"]"];
    check(
        SAME,
        &unknown,
        &[
            "cannot compute the activations of `nowhere` again",
            "the layers are, in order, ",
        ],
    );
    let absurd = [&mlp[..], &["model.hidden=[9223372036854775807]"]].concat();
    check(SAME, &absurd, &["`model.hidden` is 9223372036854775807"]);
    let flat = [&mlp[..], &["model.hidden=[8, 0]"]].concat();
    check(SAME, &flat, &["`model.hidden` is 0"]);
    check(
        ("epochs = 1", "epochs = 9223372036854775807"),
        &[],
        &[
            "epochs of 23 steps are too many",
            "help: lower train.epochs",
        ],
    );
    check(
        SAME,
        &[
            "--set",
            "train.global_batch_size=2000",
            "--set",
            "train.drop_last=true",
        ],
        &[
            "an epoch of 1437 samples in batches of 2000 contains no step",
            "help: ",
        ],
    );
}

#[test]
fn a_batch_larger_than_the_data_set_does_not_count_as_memory() {
    let dir = TestFolder::new();
    dir.write("a.toml", GOOD);
    let batch = "train.global_batch_size=1000000000000";
    dir.run(&["train", "a.toml", "--set", batch]).expect(0, &[]);
}

#[test]
fn invalid_data_is_reported_by_line() {
    let dir = TestFolder::new();
    dir.write(
        "a.toml",
        "[data]\nsource = \"csv\"\ntrain = \"a.csv\"\nshape = [2]\nclasses = 2\n\
         [model]\nkind = \"linear\"\n[train]\nepochs = 1\n",
    );
    for (text, words) in [
        ("1,2,0\n3,x,1\n", "line 2: field `column 2`"),
        ("1,2,0\n3,4,2\n", "line 2: field `column 3`"),
        ("", "no samples in"),
    ] {
        dir.write("a.csv", text);
        dir.run(&["train", "a.toml"]).expect(2, &["a.csv", words]);
    }
    assert_eq!(dir.list("."), ["a.csv", "a.toml"]);
}

/// FIFOs and devices never end, or wait for a writer: they are refused before they are opened.
#[test]
fn only_regular_files_of_limited_size_are_read() {
    let dir = TestFolder::new();
    let fifo = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for (path, found) in [("fifo", "a FIFO"), ("/dev/zero", "a device")] {
        let words = ["not a regular file", found];
        dir.run(&["train", path]).expect(2, &words);
        dir.write(
            "a.toml",
            &format!(
                "[data]\nsource = \"csv\"\ntrain = \"{path}\"\nshape = [2]\nclasses = 2\n\
                 [model]\nkind = \"linear\"\n[train]\nepochs = 1\n"
            ),
        );
        dir.run(&["train", "a.toml"]).expect(2, &words);
        dir.run(&["data", "inspect", path, "--format", "tfrecord"])
            .expect(2, &words);
    }
    dir.write("long.toml", &"# a long comment\n".repeat(1 << 17));
    dir.run(&["train", "long.toml"]).expect(
        2,
        &["the file has 2228224 bytes", "the limit is 1048576 bytes"],
    );
}
