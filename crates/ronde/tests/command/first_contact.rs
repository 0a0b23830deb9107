//! The first commands of a new user: the embedded example, repeated runs, wrong flags, interruptions, output options.

use rustix::process::Signal;

use crate::support::{RONDE, Running, TestFolder, gone};

const SHORT: [&str; 3] = ["train", "--set", "train.steps=3"];

#[test]
fn the_example_can_be_repeated_and_keeps_earlier_results() {
    let dir = TestFolder::new();
    for folder in ["runs/digits", "runs/digits-2"] {
        let ended = dir.run(&SHORT).expect(
            0,
            &[&format!(
                "no run file: training the embedded example in {folder} ("
            )],
        );
        assert!(!ended.stderr.contains("[train]"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("engine: "), "{}", ended.stderr);
        assert!(dir.list(folder).contains(&"model.safetensors".to_owned()));
    }
    let verbose = dir.run(&[&SHORT[..], &["-v"]].concat());
    verbose.expect(0, &["engine: ", "worker 0 started: pid "]);
}

#[test]
fn a_finished_run_is_not_replaced_without_a_flag() {
    let dir = TestFolder::new();
    dir.run(&["init", "my.toml"]).expect(0, &[]);
    let run = |extra: &[&str]| {
        let usual = ["train", "my.toml", "--set", "train.steps=3"];
        dir.run(&[&usual[..], extra].concat())
    };
    run(&[]).expect(0, &[]);
    let model = dir.path().join("runs/digits/model.json");
    let before = std::fs::metadata(&model).unwrap().modified().unwrap();
    run(&[]).expect(
        2,
        &[
            "has the results of a finished run",
            "`--overwrite`",
            "--set run.name=NAME",
        ],
    );
    assert_eq!(
        std::fs::metadata(&model).unwrap().modified().unwrap(),
        before
    );
    run(&["--set", "run.name=other"]).expect(0, &[]);
    run(&["--overwrite"]).expect(0, &["finished in"]);
    assert_ne!(
        std::fs::metadata(&model).unwrap().modified().unwrap(),
        before
    );
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let dir = TestFolder::new();
    let ended = dir.run(&["train", "-n", "3", "--dry-run"]).expect(0, &[]);
    for words in [
        "nothing is trained",
        "575 in 25 epochs, 64 samples per step",
        "3 processes for 8 logical shards",
        "runs/digits (would be created)",
    ] {
        assert!(ended.stdout.contains(words), "{words} in {}", ended.stdout);
    }
    assert_eq!(dir.list("runs"), [""; 0]);
    dir.run(&["train", "--dry-run", "--set", "train.epochs=0"])
        .expect(2, &["must be at least 1"]);
}

#[test]
fn flags_that_are_keys_of_the_run_file_are_explained() {
    let dir = TestFolder::new();
    for (flag, key) in [
        ("--epochs", "train.epochs"),
        ("--lr=0.1", "train.learning_rate"),
        ("--batch-size", "train.global_batch_size"),
    ] {
        let help = format!("use `--set {key}=VALUE`");
        dir.run(&["train", flag, "3"]).expect(2, &[&help]);
    }
    dir.run(&["train", "--set", "train.lr=0.1"])
        .expect(2, &["did you mean `learning_rate`?"]);
    dir.run(&["train", "--set", "train.batch_size=8"])
        .expect(2, &["did you mean `global_batch_size`?"]);
    dir.run(&["train", "--no-such-flag"])
        .expect(2, &["unexpected argument '--no-such-flag'"]);
}

#[test]
fn output_options_apply_to_all_commands() {
    let dir = TestFolder::new();
    let quiet = dir.run(&[&SHORT[..], &["-q"]].concat()).expect(0, &[]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let bad = ["train", "--set", "train.epochs=x"];
    let colour = |extra: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&bad[..], extra].concat();
        let ended = dir
            .start(RONDE, &arguments, variables)
            .wait()
            .expect(2, &[]);
        ended.stderr.contains('\u{1b}')
    };
    assert!(!colour(&[], &[]), "not a terminal");
    assert!(colour(&["--color", "always"], &[("NO_COLOR", "1")]));
    assert!(!colour(&["--color=never"], &[]));
    dir.run(&["train", "-q", "-v"])
        .expect(2, &["cannot be used with"]);
    dir.run(&["init", "-q", "quiet.toml"]).expect(0, &[]);
    dir.run(&["data", "inspect", "gone", "--color", "sometimes"])
        .expect(2, &["sometimes"]);
}

#[test]
fn a_full_standard_error_does_not_change_the_exit_code() {
    let dir = TestFolder::new();
    for (arguments, code) in [
        ("train --set train.steps=3", 0),
        ("train gone.toml", 2),
        ("init", 0),
        ("status nowhere", 2),
        ("run -- sh -c 'exit 7'", 7),
    ] {
        let script = format!("exec {RONDE} {arguments} 2> /dev/full");
        let ended = dir.start("/bin/sh", &["-c", &script], &[]).wait();
        assert_eq!(ended.code, code, "{arguments}: {ended:?}");
    }
}

#[test]
fn control_characters_of_files_do_not_reach_the_terminal() {
    let dir = TestFolder::new();
    dir.write("rows.csv", "\u{1b}[2Jname,label\n1,0\n2,1\n");
    let seen = dir.run(&["data", "inspect", "rows.csv"]);
    assert!(!seen.stdout.contains('\u{1b}'), "{seen:?}");
    assert!(seen.stdout.contains("\\u{1b}[2J"), "{seen:?}");
    let gone = dir
        .run(&["train", "gone\u{1b}[2J.toml"])
        .expect(2, &["gone\\u{1b}[2J"]);
    assert!(!gone.stderr.contains('\u{1b}'));
}

#[test]
fn a_signal_ends_the_command_while_it_reads_its_input() {
    let dir = TestFolder::new();
    // Opening a named pipe blocks until another process writes; a run file must be a regular file.
    dir.start("mkfifo", &["pipe"], &[]).wait().expect(0, &[]);
    dir.run(&["train", "pipe"])
        .expect(2, &["not a regular file"]);
    dir.run(&["train", "/dev/zero"])
        .expect(2, &["not a regular file"]);
}

/// Starts a long run; waits until it has committed some steps.
fn long_run(dir: &TestFolder, prefix: &str) -> Running {
    let sets = "--set train.epochs=1000000 --set model.channels=4 --set run.output=out";
    let script = format!("{prefix} exec {RONDE} train --json -n 2 {sets}");
    let mut running = dir.start("/bin/sh", &["-c", &script], &[]);
    running.after_steps(5);
    running
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let dir = TestFolder::new();
    let mut running = long_run(&dir, "trap '' HUP;");
    let workers = running.workers();
    running.signal(Signal::HUP);
    running.after_steps(60);
    running.signal(Signal::INT);
    running.wait().expect(130, &["; checkpoint saved; "]);
    gone(workers.into_values());
}

#[test]
fn later_signals_end_the_run_at_once() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let dir = TestFolder::new();
        let mut running = long_run(&dir, "");
        let workers = running.workers();
        // A stopped worker cannot finish its step, so only a later signal ends the run.
        crate::support::send(workers[&1], Signal::STOP);
        running.signal(signal);
        running.wait_stdout("Ctrl-C ends them at once", 1);
        // Signals within a second count as one; Ctrl-C counts as the second one, SIGTERM as the third.
        running.repeat_until_end(signal);
        running.wait().expect(code, &["interrupted at step "]);
        gone(workers.into_values());
    }
}

#[test]
fn the_status_of_a_plain_run_names_its_phase_and_processes() {
    let dir = TestFolder::new();
    let running = long_run(&dir, "");
    let shown = dir.run(&["status", "out"]).expect(0, &[]).stdout;
    assert!(shown.starts_with("digits: running"), "{shown}");
    let workers = running.workers();
    for (slot, pid) in &workers {
        assert!(
            shown.contains(&format!("worker {slot:<9}pid {pid} on ")),
            "{shown}"
        );
    }
    let json = dir.run(&["status", "out", "--json"]).expect(0, &[]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["workers"][1]["pid"], workers[&1]);
    running.signal(Signal::TERM);
    running.wait().expect(143, &[]);
    let shown = dir.run(&["status", "out"]).expect(0, &[]).stdout;
    for words in ["digits: interrupted", "checkpoint      step "] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    assert!(!shown.contains("pid"), "{shown}");
    // The newest run is the default.
    dir.run(&SHORT).expect(0, &[]);
    let shown = dir.run(&["status"]).expect(0, &[]).stdout;
    for words in ["digits: finished", "3 of 3, last loss ", "runs/digits"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

#[test]
fn the_doctor_checks_this_host() {
    let dir = TestFolder::new();
    let ended = dir.run(&["doctor"]);
    for name in [
        "build",
        "CPU",
        "memory",
        "shared memory",
        "loopback",
        "open files",
        "clock",
    ] {
        assert!(ended.stdout.contains(name), "{name} in {}", ended.stdout);
    }
    let json = dir.run(&["doctor", "--json"]);
    assert_eq!(json.code, ended.code);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let checks = json["checks"].as_array().unwrap();
    let failed = checks.iter().any(|check| check["ok"] == false);
    assert_eq!(i32::from(failed), ended.code);
    let script = format!("ulimit -n 64; exec {RONDE} doctor");
    let limited = dir.start("/bin/sh", &["-c", &script], &[]).wait();
    assert_eq!(limited.code, 1, "{limited:?}");
    assert!(limited.stdout.contains("FAIL  open files"), "{limited:?}");
}
