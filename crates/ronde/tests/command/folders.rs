//! The folder of the results: full, not to be written, or another run's.

use rustix::process::Signal;

use crate::support::{Place, RONDE};

#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let place = Place::new();
    place.write("file", "");
    place
        .run(&["train", "--set", "run.output=file/out"])
        .expect(
            2,
            &["error: cannot create the output folder file/out", "hint: "],
        );
    assert_eq!(place.list("."), ["file"]);
}

#[test]
fn a_folder_belongs_to_one_run_at_a_time() {
    let place = Place::new();
    let forever = ["train", "--json", "--set", "train.epochs=1000000"];
    let mut first = place.start(RONDE, &forever, &[]);
    let mut elsewhere = place.start(
        RONDE,
        &[&forever[..], &["--set", "run.name=other"]].concat(),
        &[],
    );
    first.after_steps(3);
    place
        .run(&["train"])
        .expect(2, &["another run writes to ", "hint: wait for it"]);
    // Neither is harmed: both go on, and the event file of the first one grows on.
    elsewhere.after_steps(5);
    first.after_steps(30);
    for running in [first, elsewhere] {
        running.signal(Signal::INT);
        let ended = running.wait().expect(130, &["stopped"]);
        assert!(!ended.stdout.contains("worker_failed"));
    }
    let short = ["train", "--json", "--set", "train.steps=2"];
    place.run(&short).expect(0, &[]).blake3();
    let events = std::fs::read_to_string(place.path().join("runs/digits/events.jsonl")).unwrap();
    assert_eq!(
        crate::support::events(&events).len(),
        2 + 2 + 2 * 2 + 2 + 3,
        "{events}"
    );
}

/// A file system of a given size; gone with the value.
struct SmallDisk<'a>(&'a Place);

impl<'a> SmallDisk<'a> {
    /// `None` where this process may not mount.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn mount(place: &'a Place, size: &str) -> Option<Self> {
        std::fs::create_dir(place.path().join("disk")).unwrap();
        let options = format!("size={size}");
        let arguments = ["-t", "tmpfs", "-o", &options, "tmpfs", "disk"];
        let mounted = place.start("mount", &arguments, &[]).wait();
        if mounted.code != 0 {
            eprintln!("skipped: no file system can be mounted here: {mounted:?}");
            return None;
        }
        Some(Self(place))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        self.0.start("umount", &["--lazy", "disk"], &[]).wait();
    }
}

#[test]
fn a_full_disk_is_seen_before_the_start() {
    let place = Place::new();
    let Some(_disk) = SmallDisk::mount(&place, "64k") else {
        return;
    };
    let ended = place.run(&["train", "--set", "run.output=disk/out"]);
    ended.expect(
        2,
        &["error: disk/out has 64.0 KiB free", "hint: free some space"],
    );
    assert_eq!(place.list("disk"), [""; 0]);
}

#[test]
fn a_disk_that_fills_up_leaves_no_half_of_a_model() {
    let place = Place::new();
    let Some(_disk) = SmallDisk::mount(&place, "128k") else {
        return;
    };
    // The record of the events alone is larger than the disk.
    let sets = ["--set", "run.output=disk/out", "--set", "train.steps=400"];
    let ended = place
        .run(&[&["train", "-n", "2"], &sets[..]].concat())
        .expect(
            3,
            &[
                "error: rank 0: cannot write ",
                "No space left on device",
                "hint: is the disk full",
                "writing events failed",
            ],
        );
    assert!(ended.stderr.contains("400 of 400"), "{}", ended.stderr);
    assert_eq!(place.results("disk/out"), ["events.jsonl"]);
}
