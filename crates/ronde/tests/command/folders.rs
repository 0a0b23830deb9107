//! Output folders that are full, not writable, or in use by another run.

use rustix::process::Signal;

use crate::support::{RONDE, TestFolder};

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

/// A file system of a given size, unmounted when dropped.
struct SmallDisk<'a>(&'a TestFolder);

impl<'a> SmallDisk<'a> {
    /// Mounts the file system, or returns `None` without the permission.
    #[expect(clippy::print_stderr, reason = "a skipped test prints the reason")]
    fn mount(dir: &'a TestFolder, size: &str) -> Option<Self> {
        std::fs::create_dir(dir.path().join("disk")).unwrap();
        let options = format!("size={size}");
        let arguments = ["-t", "tmpfs", "-o", &options, "tmpfs", "disk"];
        let mounted = dir.start("mount", &arguments, &[]).wait();
        if mounted.code != 0 {
            eprintln!("skipped: cannot mount a file system: {mounted:?}");
            return None;
        }
        Some(Self(dir))
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
fn a_disk_that_fills_up_leaves_no_incomplete_model() {
    let dir = TestFolder::new();
    let Some(_disk) = SmallDisk::mount(&dir, "128k") else {
        return;
    };
    // The event file alone is larger than the disk.
    let sets = ["--set", "run.output=disk/out", "--set", "train.steps=400"];
    let ended = dir
        .run(&[&["train", "-n", "2"], &sets[..]].concat())
        .expect(
            3,
            &[
                "error: rank 0: cannot write ",
                "No space left on device",
                "help: check that the disk has space",
                "cannot write events",
            ],
        );
    assert!(ended.stderr.contains("400 of 400"), "{}", ended.stderr);
    assert_eq!(
        dir.results("disk/out"),
        ["checkpoints", "events.jsonl", "run.toml"]
    );
}
