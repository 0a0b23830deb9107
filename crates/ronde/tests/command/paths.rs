//! The paths of runs: data is found from the folder of a run, whatever the current folder is, and paths are text.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::support::{RONDE, TestFolder};

/// Returns lines with two numbers and the class whose number is whether the first is larger, or `flipped`.
fn lines(count: usize, flipped: bool) -> String {
    let line = |at: usize| {
        let (a, b) = (at * 7 % 11, at * 5 % 13);
        format!("{a},{b},{}\n", usize::from((a > b) != flipped))
    };
    (0..count).map(line).collect()
}

const RUN: &str = "[run]\nname = \"x\"\n[data]\nsource = \"csv\"\ntrain = \"a.csv\"\ntest = \"t.csv\"\nshape = [2]\n\
                   classes = 2\n[model]\nkind = \"linear\"\n[train]\nepochs = 3\n";

/// Runs the command in a folder, and returns its exit code and both of its outputs.
fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(RONDE)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn project(dir: &TestFolder) {
    for (folder, count) in [("p", 60), ("other", 5)] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
        dir.write(&format!("{folder}/a.csv"), &lines(2 * count, false));
        dir.write(&format!("{folder}/t.csv"), &lines(count, count == 5));
    }
    dir.write("p/run.toml", RUN);
    let (code, _, problem) = run(&dir.path().join("p"), &["train", "run.toml"]);
    assert_eq!(code, Some(0), "{problem}");
}

#[test]
fn the_data_of_a_run_is_found_from_its_folder() {
    let dir = TestFolder::new();
    project(&dir);
    let other = dir.path().join("other");
    let (_, expected, _) = run(&dir.path().join("p"), &["evaluate", "runs/x"]);
    assert!(
        expected.starts_with("samples               60\n"),
        "{expected}"
    );
    // Data of the same names in the current folder is not that of the run.
    let (code, found, warning) = run(&other, &["evaluate", "../p/runs/x"]);
    assert_eq!(
        (code, found, warning),
        (Some(0), expected.clone(), String::new())
    );
    let (code, _, said) = run(&other, &["predict", "../p/runs/x", "--to", "o.csv"]);
    assert!(code == Some(0) && said.contains("60 predictions"), "{said}");

    // A renamed project works as a whole, also when it is resumed and when its saved run file is trained again.
    std::fs::rename(dir.path().join("p"), dir.path().join("q")).unwrap();
    let (_, found, _) = run(&other, &["evaluate", "../q/runs/x"]);
    assert_eq!(found, expected);
    let more = [
        "train",
        "--resume",
        "../q/runs/x",
        "--set",
        "train.epochs=4",
    ];
    let (code, _, problem) = run(&other, &more);
    assert_eq!(code, Some(0), "{problem}");
    let again = ["train", "../q/runs/x/run.toml", "--set", "run.output=again"];
    let (code, _, problem) = run(&other, &again);
    assert_eq!(code, Some(0), "{problem}");
}

#[test]
fn data_that_differs_from_that_of_the_run_is_reported() {
    let dir = TestFolder::new();
    project(&dir);
    let other = dir.path().join("other");
    dir.write("p/t.csv", &lines(40, false));
    let (code, found, warning) = run(&other, &["evaluate", "../p/runs/x"]);
    assert!(
        code == Some(0) && found.starts_with("samples               40\n"),
        "{found}"
    );
    for words in [
        "warning: the test data in ",
        "of the run: 60 samples, blake3:",
        "found: 40 samples, blake3:",
    ] {
        assert!(warning.contains(words), "{warning}");
    }
    // Other data on request is not compared.
    let (_, _, warning) = run(
        &other,
        &["evaluate", "../p/runs/x", "--set", "data.test=a.csv"],
    );
    assert_eq!(warning, "");
}

#[test]
fn a_run_without_its_project_says_where_it_has_looked() {
    let dir = TestFolder::new();
    project(&dir);
    std::fs::create_dir(dir.path().join("alone")).unwrap();
    std::fs::rename(dir.path().join("p/runs/x"), dir.path().join("alone/x")).unwrap();
    std::fs::rename(dir.path().join("p"), dir.path().join("q")).unwrap();
    let alone = dir.path().join("alone");
    let resume = ["train", "--resume", "x", "--set", "train.epochs=4"];
    for arguments in [&["evaluate", "x"][..], &resume] {
        let (code, _, problem) = run(&alone, arguments);
        assert_eq!(code, Some(2), "{problem}");
        for words in [
            "looked for `a.csv` and `t.csv` in /",
            "--set run.base=FOLDER",
        ] {
            assert!(problem.contains(words), "{problem}");
        }
        let named = [arguments, &["--set", "run.base=../q"]].concat();
        let (code, _, problem) = run(&alone, &named);
        assert_eq!(code, Some(0), "{problem}");
    }
    // Data of the same names in the current folder is used if it is that of the run, and only then.
    std::fs::rename(dir.path().join("alone/x"), dir.path().join("y")).unwrap();
    std::fs::remove_file(dir.path().join("y/run.toml")).unwrap();
    let saved = format!("{RUN}\n").replace("name = \"x\"", "name = \"x\"\nbase = \"/nowhere\"");
    dir.write("y/run.toml", &saved);
    let (code, _, _) = run(&dir.path().join("q"), &["evaluate", "../y"]);
    assert_eq!(code, Some(0));
    let (code, _, problem) = run(&dir.path().join("other"), &["evaluate", "../y"]);
    assert_eq!(code, Some(2), "{problem}");
    assert!(
        problem.contains("in /nowhere") && problem.contains("differs"),
        "{problem}"
    );
}

#[test]
fn paths_that_are_not_utf8_are_errors_with_the_path() {
    let dir = TestFolder::new();
    let latin1 = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&latin1).unwrap();
    let write = |name: &str, text: &str| std::fs::write(latin1.join(name), text).unwrap();
    write("a.csv", &lines(20, false));
    write("t.csv", &lines(20, false));
    write("csv.toml", RUN);
    write(
        "digits.toml",
        "[data]\nsource = \"digits\"\n[model]\nkind = \"linear\"\n[train]\nepochs = 1\n",
    );
    let expect = |folder: &Path, arguments: &[&str]| {
        let (code, _, problem) = run(folder, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {problem}");
        assert!(problem.contains(r"caf\xE9"), "{arguments:?}: {problem}");
    };
    for file in ["csv.toml", "digits.toml"] {
        for command in ["check", "train", "submit"] {
            expect(&latin1, &[command, file]);
        }
    }
    // The folder is reached by another name.
    let linked = dir.path().join("linked");
    std::os::unix::fs::symlink(&latin1, &linked).unwrap();
    expect(dir.path(), &["train", "linked/digits.toml"]);
    assert!(!latin1.join("runs").exists());
    let mut command = Command::new(RONDE);
    command
        .current_dir(dir.path())
        .args(["train", "--init-from"]);
    let output = command.arg(latin1.join("model")).output().unwrap();
    let problem = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{problem}");
    assert!(problem.contains(r"caf\xE9"), "{problem}");
}
