//! `ronde check` finds what `ronde train` would find in the data and in the names of a run file, and says what it has not read.

use std::fmt::Write as _;

use crate::support::TestFolder;

/// Returns a run file for records of lines with two numbers and a label.
fn records(train: &str, field: &str, shape: usize, label: &str, rest: &str) -> String {
    format!(
        "[run]\nname = \"out\"\n[data]\nsource = \"records\"\ntrain = \"{train}\"\n\
         features = {{ decode = \"numbers\", field = \"{field}\", shape = [{shape}] }}\nlabel = {label}\n\
         [model]\nkind = \"mlp\"\nhidden = [4]\n[train]\nepochs = 1\nglobal_batch_size = 32\n{rest}"
    )
}

/// Returns lines with two numbers and a label from `first` on, of three classes.
fn lines(count: usize, first: usize) -> String {
    let mut text = String::new();
    for line in 0..count {
        let _ = writeln!(text, "0.{},{},{}", line % 10, line % 7, line % 3 + first);
    }
    text
}

/// Returns a run file for lines of two numbers and a value.
fn values(model: &str, train: &str) -> String {
    format!(
        "[data]\nsource = \"csv_values\"\ntrain = \"values.csv\"\nshape = [2]\n[model]\n{model}\n\
         [train]\nepochs = 1\nglobal_batch_size = 32\n{train}"
    )
}

const LABEL: &str = "{ field = \"2\", classes = 3 }";

/// Returns run files with a mistake each, and the words of the message about it.
fn mistakes() -> Vec<(String, &'static [&'static str])> {
    let group = |pattern: &str| {
        format!("[[train.parameter_groups]]\ntensors = \"{pattern}\"\nfrozen = true\n")
    };
    let csv = "[data]\nsource = \"csv\"\ntrain = \"one.csv\"\nshape = [2]\nclasses = 3\n[model]\nkind = \"linear\"\n\
               [train]\nepochs = 1\n";
    let zero = |label: &str, rest: &str| records("zero.csv", "0..2", 2, label, rest);
    vec![
        (
            zero("{ field = \"9\", classes = 3 }", ""),
            &["has no field `9`"][..],
        ),
        (
            records("zero.csv", "0..2", 3, LABEL, ""),
            &["hold 2 numbers, but the shape has 3"],
        ),
        (
            records("one.csv", "0..2", 2, LABEL, ""),
            &[
                "holds class 3, but classes are 0 to 2",
                "set `first = 1` in data.label",
            ],
        ),
        (
            zero("{ field = \"2\", classes = 3, first = 1 }", ""),
            &[
                "holds class 0, but classes are 1 to 3",
                "set `first = 0` in data.label",
            ],
        ),
        (
            csv.to_owned(),
            &[
                "holds class 3, but classes are 0 to 2",
                "`source = \"records\"`",
                "`first = 1`",
            ],
        ),
        (
            records("text.csv", "0..2", 2, LABEL, ""),
            &["record 299", "holds \"abc\", which is not a finite number"],
        ),
        (
            zero(LABEL, &group("nothing.*")),
            &[
                "no parameter of the model matches the group `nothing.*`",
                "output.bias",
            ],
        ),
        (
            zero(LABEL, &(group("*") + &group("*.bias"))),
            &["the group `*.bias` has no effect"],
        ),
        (
            values(
                "kind = \"matrix_factorisation\"\nusers = 2\nitems = 9\nfactors = 1",
                "",
            ),
            &["invalid user `2`", "the model has 2 users"],
        ),
        (
            values("kind = \"linear\"", "loss = \"binary_cross_entropy\"\n"),
            &["of target `2`", "expected 0 to 1"],
        ),
    ]
}

#[test]
fn what_training_would_refuse_is_found_without_training() {
    let dir = TestFolder::new();
    dir.write("zero.csv", &lines(300, 0));
    dir.write("one.csv", &lines(300, 1));
    dir.write("text.csv", &format!("{}abc,1,2\n", lines(299, 0)));
    let mut numbers = "0,1,0.5\n".repeat(299);
    numbers.push_str("2,1,2\n");
    dir.write("values.csv", &numbers);
    for (text, words) in mistakes() {
        dir.write("run.toml", &text);
        dir.run(&["check", "run.toml"]).expect(2, words);
        assert_eq!(dir.list("runs"), [""; 0]);
        dir.run(&["train", "run.toml", "--overwrite"])
            .expect(2, words);
        std::fs::remove_dir_all(dir.path().join("runs")).ok();
    }
    dir.write("run.toml", &records("zero.csv", "0..2", 2, LABEL, ""));
    let valid = dir.run(&["check", "run.toml"]).expect(0, &[]);
    assert_eq!(
        valid.stdout,
        "run.toml is valid: 10 steps in 1 epochs, 27 parameters\nread: all 300 training samples\n"
    );
    dir.write(
        "first.toml",
        &records(
            "one.csv",
            "0..2",
            2,
            "{ field = \"2\", classes = 3, first = 1 }",
            "",
        ),
    );
    dir.run(&["train", "first.toml"]).expect(0, &[]);
    let note = dir.run(&["check", "run.toml"]).expect(0, &[]);
    assert!(
        note.stderr.contains("has the results of a finished run"),
        "{}",
        note.stderr
    );
}

#[test]
fn data_that_was_not_read_is_not_called_valid() {
    let dir = TestFolder::new();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    for file in 0..300 {
        dir.write(&format!("data/{file:03}.csv"), &lines(20, 0));
    }
    dir.write("run.toml", &records("data", "0..2", 2, LABEL, ""));
    let part = dir.run(&["check", "run.toml"]).expect(0, &[]);
    for words in [
        "run.toml has no mistake in what was read of its data: about 188 steps",
        "read: 4,000 of about 6,000 training samples from 200 of 300 files\n",
        "not read: the rest",
    ] {
        assert!(part.stdout.contains(words), "{}", part.stdout);
    }
    assert!(!part.stdout.contains("is valid"), "{}", part.stdout);
    // A bad record is found in any of the files that are read, the last one among them.
    dir.write("data/299.csv", &format!("{}x,1,1\n", lines(19, 0)));
    dir.run(&["check", "run.toml"])
        .expect(2, &["299.csv, record 19", "\"x\""]);
}
