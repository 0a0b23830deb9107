//! Runs whose processes may open few files.

use rustix::process::Signal;

use crate::support::{Running, TestFolder, send};

/// Starts `ronde` with a limit of open files, for itself and its workers.
fn limited(dir: &TestFolder, files: u32, arguments: &[&str]) -> Running {
    let script = format!("ulimit -n {files}; exec {} \"$@\"", crate::support::RONDE);
    let shell = ["-c", &script, "sh"];
    dir.start("sh", &[&shell[..], arguments].concat(), &[])
}

#[test]
fn sixty_four_open_files_are_enough_for_a_launcher_and_four_workers_that_are_replaced() {
    let dir = TestFolder::new();
    let sets = [
        "--json",
        "--set",
        "train.steps=300",
        "--set",
        "checkpoint.every_steps=50",
    ];
    let train = |more: &[&'static str]| [&["train"], more, &sets[..]].concat();
    let expected = dir
        .run(&train(&["--set", "run.output=reference"]))
        .expect(0, &[]);
    for open in [&["-n", "4"][..], &["-n", "2", "--listen"]] {
        let output = ["--overwrite", "--set", "run.output=out"];
        let mut run = limited(&dir, 64, &train(&[open, &output[..]].concat()));
        let workers = run.after_steps(5);
        send(workers[&1], Signal::KILL);
        let ended = run.wait().expect(0, &[]);
        assert_eq!(ended.blake3(), expected.blake3(), "{open:?}");
    }
}

#[test]
fn too_few_open_files_end_a_run_with_the_remedy() {
    let dir = TestFolder::new();
    // The process may have inherited open files, so the rank that cannot be started is not known.
    for (files, words) in [
        (8, "cannot listen for workers: Too many open files"),
        (14, " cannot be started: "),
    ] {
        let ended = limited(&dir, files, &["train", "-n", "2"]).wait();
        ended.expect(3, &[words, "help: raise the limit of open files"]);
    }
}
