//! Mistakes of users: told with their place and a hint, before anything is started or made.

use crate::support::Place;

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
    let place = Place::new();
    assert!(GOOD.contains(change.0));
    place.write("a.toml", &GOOD.replace(change.0, change.1));
    let ended = place.run(&[&["train", "a.toml"], arguments].concat());
    let ended = ended.expect(2, words);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
    assert_eq!(place.list("."), ["a.toml"], "{}", ended.stderr);
}

const SAME: (&str, &str) = ("", "");

#[test]
fn a_mistake_in_the_file_is_shown_where_it_stands() {
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
        &["gone.csv", "a.toml:3:9", "help: a path starts"],
    );
}

#[test]
fn a_mistake_in_an_argument_is_shown_too() {
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
        &["unknown section [a]", "known here"],
    );
    check(SAME, &["--set", "train.epochs=x"], &["--set:1:14", "\"x\""]);
    check(SAME, &["--set", "run.output="], &["names no folder"]);
    check(
        SAME,
        &["--set", "run.name=../x"],
        &["names a folder", "help: "],
    );
}

#[test]
fn a_missing_run_file_has_a_hint() {
    let place = Place::new();
    place.run(&["train", "gone.toml"]).expect(
        2,
        &["cannot read the run file gone.toml", "ronde init gone.toml"],
    );
    place.write("bad.toml", "");
    std::fs::write(place.path().join("bad.toml"), [0xff, 0xfe, 0]).unwrap();
    place
        .run(&["train", "bad.toml"])
        .expect(2, &["UTF-8", "TOML"]);
    assert_eq!(place.list("."), ["bad.toml"]);
}

#[test]
fn what_cannot_be_computed_is_refused_with_its_numbers() {
    let mlp = ["--set", "model.kind=mlp", "--set"];
    let large = [&mlp[..], &["model.hidden=[200000, 200000]"]].concat();
    check(
        SAME,
        &large,
        &[
            "the model does not fit: 1 worker",
            "1192.62 GiB",
            "available on this host",
            "optimizer 298",
            "hint: a smaller model",
        ],
    );
    let absurd = [&mlp[..], &["model.hidden=[9223372036854775807]"]].concat();
    check(SAME, &absurd, &["`model.hidden` is 9223372036854775807"]);
    let flat = [&mlp[..], &["model.hidden=[8, 0]"]].concat();
    check(SAME, &flat, &["`model.hidden` is 0"]);
    check(
        ("epochs = 1", "epochs = 9223372036854775807"),
        &[],
        &["more than can be counted", "hint: lower train.epochs"],
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
            "an epoch of 1437 samples in batches of 2000 has no step",
            "hint: ",
        ],
    );
}

#[test]
fn a_batch_above_the_data_set_is_not_held_against_memory() {
    let place = Place::new();
    place.write("a.toml", GOOD);
    let batch = "train.global_batch_size=1000000000000";
    place
        .run(&["train", "a.toml", "--set", batch])
        .expect(0, &[]);
}

#[test]
fn data_that_makes_no_sense_is_shown_by_line() {
    let place = Place::new();
    place.write(
        "a.toml",
        "[data]\nsource = \"csv\"\ntrain = \"a.csv\"\nshape = [2]\nclasses = 2\n\
         [model]\nkind = \"linear\"\n[train]\nepochs = 1\n",
    );
    for (text, words) in [
        ("1,2,0\n3,x,1\n", "line 2, column 2"),
        ("1,2,0\n3,4,2\n", "line 2, column 3"),
        ("", "has no sample"),
    ] {
        place.write("a.csv", text);
        place.run(&["train", "a.toml"]).expect(2, &["a.csv", words]);
    }
    assert_eq!(place.list("."), ["a.csv", "a.toml"]);
}
