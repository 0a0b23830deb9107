//! Output folders that are full, not writable, or in use by another run.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, RONDE, Running, TestFolder};

#[test]
fn a_folder_that_cannot_be_created_is_refused() {
    let dir = TestFolder::new();
    dir.write("file", "");
    dir.run(&["train", "--set", "run.output=file/out"]).expect(
        2,
        &["error: cannot create output folder file/out", "help: "],
    );
    assert_eq!(dir.list("."), ["file"]);
}

#[test]
fn a_command_that_refuses_leaves_no_folder() {
    let dir = TestFolder::new();
    dir.write("hosts", "");
    dir.write(
        "sweep.toml",
        "name = \"x\"\nrun = \"none.toml\"\nmetric = \"loss\"\n",
    );
    let before = dir.list(".");
    for arguments in [
        &["train", "--resume", "--set", "run.output=o"][..],
        &["train", "--resume", "--set", "checkpoint.to=o"],
        &["train", "--set", "checkpoint.to=/proc/o"],
        &["train", "--set", "tracking.mlflow=nowhere"],
        &["train", "-n", "99"],
        &["train", "-n", "4", "--hosts", "localhost"],
        &["train", "--init-from", "none"],
        &["fetch", "s3://none/none"],
        &["fetch", "none"],
        &["sweep", "sweep.toml"],
        &["predict", "none", "--to", "o"],
        &["export", "none", "--to", "o"],
        &["evaluate", "none"],
        &["top"],
    ] {
        let ended = dir.run(arguments);
        assert_ne!(ended.code, 0, "{arguments:?}: {ended:#?}");
        assert_eq!(dir.list("."), before, "{arguments:?}: {ended:#?}");
    }
    // Beside a run in another folder, whose run file names the usual one.
    let train = ["train", "--set", "train.epochs=1"];
    dir.run(&train).expect(0, &[]);
    let rename = |from: &str, to: &str| {
        std::fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
    };
    rename("runs/digits", "runs/other");
    rename("runs/other/checkpoints", "away");
    dir.run(&["train", "--resume"])
        .expect(2, &["cannot resume"]);
    assert_eq!(dir.list("runs"), ["other"]);
}

#[test]
fn a_folder_is_locked_by_one_run_at_a_time() {
    let dir = TestFolder::new();
    let forever = ["train", "--json", "--set", "train.epochs=1000000"];
    let mut first = dir.start(RONDE, &forever, &[]);
    let mut elsewhere = dir.start(
        RONDE,
        &[&forever[..], &["--set", "run.name=other"]].concat(),
        &[],
    );
    first.after_steps(3);
    let same = ["train", "--set", "run.output=runs/digits"];
    dir.run(&same).expect(
        2,
        &["another run is writing to it", "help: wait for that run"],
    );
    // Both runs continue, and the event file of the first one still grows.
    elsewhere.after_steps(5);
    first.after_steps(30);
    for running in [first, elsewhere] {
        running.signal(Signal::INT);
        let ended = running.wait().expect(130, &["interrupted"]);
        assert!(!ended.stdout.contains("worker_failed"));
    }
    let short = ["--json", "--set", "train.steps=2", "--overwrite"];
    dir.run(&[&same[..], &short].concat())
        .expect(0, &[])
        .blake3();
    let events = std::fs::read_to_string(dir.path().join("runs/digits/events.jsonl")).unwrap();
    let mut found = crate::support::events(&events);
    // Their number depends on the duration of the run.
    found.retain(|event| event["event"] != "memory_used");
    assert_eq!(found.len(), 2 + 2 + 2 * 2 + 2 + 4, "{events}");
}

#[test]
fn runs_that_start_at_the_same_time_do_not_share_a_folder() {
    let dir = TestFolder::new();
    let short = ["--json", "--set", "train.steps=20"];
    let all = |arguments: &[&str]| -> Vec<Ended> {
        let arguments = [arguments, &short[..]].concat();
        let started: Vec<Running> = (0..3).map(|_| dir.start(RONDE, &arguments, &[])).collect();
        started.into_iter().map(Running::wait).collect()
    };
    // The example takes another folder.
    let hashes: Vec<String> = all(&["train"])
        .into_iter()
        .map(|ended| ended.expect(0, &[]).blake3())
        .collect();
    assert_eq!(dir.list("runs"), ["digits", "digits-2", "digits-3"]);
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    dir.run(&["init", "my.toml"]).expect(0, &[]);
    dir.run(&[
        "train",
        "my.toml",
        "--set",
        "run.name=same",
        "--set",
        "train.steps=10",
    ])
    .expect(0, &[]);
    for begin in [
        &["train", "--resume", "runs/same"][..],
        &["train", "--resume", "runs/same", "--listen"],
    ] {
        for ended in all(begin) {
            // A process may also start after another one has finished.
            if ended.code != 0 {
                ended.expect(
                    2,
                    &["another run is writing to it", "help: wait for that run"],
                );
            }
        }
    }
    let other = dir.run(&[
        "train",
        "my.toml",
        "--json",
        "--set",
        "run.name=other",
        "--set",
        "train.steps=20",
    ]);
    assert_eq!(other.expect(0, &[]).blake3(), hashes[0]);
}

/// A file system of a given size, unmounted when dropped.
pub(crate) struct SmallDisk<'a>(&'a TestFolder);

impl<'a> SmallDisk<'a> {
    /// Mounts the file system, or returns `None` without the permission.
    pub(crate) fn mount(dir: &'a TestFolder, size: &str) -> Option<Self> {
        std::fs::create_dir(dir.path().join("disk")).unwrap();
        let options = format!("size={size}");
        let arguments = ["-t", "tmpfs", "-o", &options, "tmpfs", "disk"];
        let mounted = dir.start("mount", &arguments, &[]).wait();
        if mounted.code != 0 {
            ronde_testing::skip(&format!("cannot mount a file system: {mounted:?}"));
            return None;
        }
        Some(Self(dir))
    }

    /// Changes the size.
    pub(crate) fn grow(&self, size: &str) {
        assert!(self.remount(&format!("size={size}")));
    }

    /// Changes an option, and returns whether that was possible: a file may be open for writing.
    pub(crate) fn remount(&self, option: &str) -> bool {
        let option = format!("remount,{option}");
        let remounted = self.0.start("mount", &["-o", &option, "disk"], &[]);
        remounted.wait().code == 0
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        self.0.start("umount", &["--lazy", "disk"], &[]).wait();
    }
}

#[test]
fn a_full_disk_is_detected_before_the_start() {
    let dir = TestFolder::new();
    let Some(_disk) = SmallDisk::mount(&dir, "64k") else {
        return;
    };
    let ended = dir.run(&["train", "--set", "run.output=disk/out"]);
    ended.expect(
        2,
        &[
            "error: not enough space in disk/out: 64.0 KiB free",
            "help: free some space",
        ],
    );
    assert_eq!(dir.list("disk"), [""; 0]);
}

#[test]
fn trackers_on_a_full_disk_do_not_stop_training_and_continue_after_it() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "1m") else {
        return;
    };
    let sets = [
        "run.output=disk/out",
        "train.steps=1500",
        "model.channels=1",
        "checkpoint.every_steps=50",
        "track.tensorboard=true",
        "track.csv=true",
        "track.mlflow=http://127.0.0.1:1",
        "track.histogram_every_steps=10",
    ];
    let sets: Vec<&str> = sets.into_iter().flat_map(|set| ["--set", set]).collect();
    let arguments = [&["train", "-n", "2", "--trace"], &sets[..]].concat();
    let ended = stopped_on_full_disk(&dir, &arguments).expect(143, &["1,500 of 1,500"]);
    let mut missing = Vec::new();
    for what in [
        "cannot write events:",
        "cannot write TensorBoard events:",
        "cannot write metrics in CSV:",
        "cannot write the spool for MLflow:",
    ] {
        missing.extend((!ended.stderr.contains(what)).then_some(what));
    }
    assert_eq!(missing, [""; 0], "{}", ended.stderr);
    dir.run(&["trace", "disk/out", "--to", "trace.json"])
        .expect(0, &["trace.json: "]);
    disk.grow("64m");
    let arguments = [&["train", "--resume", "disk/out", "-n", "2"], &sets[..]].concat();
    let ended = dir.run(&arguments).expect(0, &["blake3"]);
    assert!(!ended.stderr.contains("cannot write"), "{}", ended.stderr);
    let path = dir.path().join("disk/out");
    let rows = std::fs::read_to_string(path.join("metrics.csv")).unwrap();
    let mut steps: Vec<u64> = Vec::new();
    for row in rows.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        assert_eq!(fields.len(), 8, "{row}");
        steps.push(fields[0].parse().unwrap());
    }
    assert!(steps.is_sorted_by(|a, b| a < b), "each step at most once");
    assert_eq!(steps.last(), Some(&1500));
    let spool = std::fs::read_to_string(path.join("mlflow/spool.jsonl")).unwrap();
    for line in spool.lines() {
        let entry: Result<Value, _> = serde_json::from_str(line);
        assert!(entry.is_ok(), "{line}");
    }
    assert!(spool.contains("\"step\":1500") && spool.contains("FINISHED"));
}

/// Runs `ronde` until it waits for space for the model.
fn waiting_for_space(dir: &TestFolder, arguments: &[&str]) -> Running {
    let mut running = dir.start(RONDE, arguments, &[]);
    running.wait_stderr("the workers keep the model until it can be written", 1);
    running
}

/// Does the same, and stops it.
fn stopped_on_full_disk(dir: &TestFolder, arguments: &[&str]) -> Ended {
    let running = waiting_for_space(dir, arguments);
    running.signal(Signal::TERM);
    running.wait()
}

#[test]
fn a_trained_model_is_written_when_a_full_disk_has_space_again() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "128k") else {
        return;
    };
    let sets = ["--set", "run.output=disk/out", "--set", "train.steps=400"];
    let arguments = [&["train", "-n", "2"], &sets[..]].concat();
    let mut running = waiting_for_space(&dir, &arguments);
    // The remaining worker keeps the model, too.
    let workers = running.workers();
    crate::support::send(workers[&0], Signal::KILL);
    running.wait_stderr("the workers keep the model until it can be written", 2);
    disk.grow("64m");
    running.wait().expect(0, &["blake3"]);
    assert!(dir.path().join("disk/out/model.safetensors").exists());
}

#[test]
fn a_disk_that_fills_up_leaves_no_incomplete_model() {
    let dir = TestFolder::new();
    let Some(_disk) = SmallDisk::mount(&dir, "128k") else {
        return;
    };
    // The event file alone is larger than the disk.
    let sets = ["--set", "run.output=disk/out", "--set", "train.steps=400"];
    let arguments = [&["train", "-n", "2"], &sets[..]].concat();
    let ended = stopped_on_full_disk(&dir, &arguments).expect(
        143,
        &[
            "rank 0 failed: cannot write ",
            "No space left on device",
            "cannot write events",
        ],
    );
    assert!(ended.stderr.contains("400 of 400"), "{}", ended.stderr);
    assert_eq!(
        dir.results("disk/out"),
        ["checkpoints", "events.jsonl", "run.toml"]
    );
}
