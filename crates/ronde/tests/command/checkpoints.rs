//! Whole jobs are killed and stopped: they resume from their last checkpoint with the same bits.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Ended, RONDE, Running, TestFolder, gone, of_kind, send};

/// Makes the first failure end the run.
const FRAGILE: &str = "elastic.enabled=false";
const OFTEN: &str = "checkpoint.every_steps=4";

/// How often a whole job is killed while it saves, and the seed of the moments.
const KILLS: u32 = 12;
const SEED: u64 = 5;

#[expect(clippy::disallowed_methods, reason = "the moment is tested")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn start(dir: &TestFolder, workers: &str, sets: &[&str]) -> Running {
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in ["train.epochs=10", "model.channels=4", "run.output=out"]
        .iter()
        .chain(sets)
    {
        arguments.extend(["--set", set]);
    }
    dir.start(RONDE, &arguments, &[])
}

fn resume(dir: &TestFolder, workers: &str) -> Running {
    dir.start(
        RONDE,
        &["train", "--json", "-n", workers, "--resume", "out"],
        &[],
    )
}

/// Returns the hash of the model of an undisturbed run.
fn undisturbed() -> &'static str {
    static BLAKE3: OnceLock<String> = OnceLock::new();
    BLAKE3.get_or_init(|| {
        let dir = TestFolder::new();
        start(&dir, "1", &[]).wait().expect(0, &[]).blake3()
    })
}

/// Returns the step that a run resumed from.
#[track_caller]
fn resumed_from(ended: &Ended) -> u64 {
    let events = ended.events();
    let loaded = of_kind(&events, "checkpoint_loaded").next();
    let loaded = loaded.unwrap_or_else(|| panic!("nothing was loaded: {ended:#?}"));
    let step = loaded["step"].as_u64().unwrap();
    let first = of_kind(&events, "step_committed").next().unwrap();
    assert_eq!(first["step"], step);
    step
}

#[test]
fn a_job_killed_while_it_saves_resumes_with_the_same_bits() {
    let long = |dir: &TestFolder, workers, sets: &[&str]| {
        let sets = [&["train.epochs=60"][..], sets].concat();
        start(dir, workers, &sets)
    };
    let alone = long(&TestFolder::new(), "1", &[]).wait().expect(0, &[]);
    let dir = TestFolder::new();
    let mut running = long(&dir, "3", &[OFTEN]);
    running.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
    // At random moments: saves begin every few milliseconds.
    let mut random = SEED;
    for round in 0..KILLS {
        let processes = running.workers();
        running.signal(Signal::KILL);
        running.wait();
        gone(processes.into_values());
        let workers = (1 + round % 4).to_string();
        running = resume(&dir, &workers);
        running.wait_stdout("\"event\":\"checkpoint_loaded\"", 1);
        if round + 1 < KILLS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Up to 131 ms.
            pause(Duration::from_micros(random >> 47));
        }
    }
    let ended = running.wait().expect(0, &[]);
    assert!(resumed_from(&ended) > 0);
    assert_eq!(ended.blake3(), alone.blake3());
}

#[test]
fn an_interrupted_job_saves_a_checkpoint_and_prints_how_to_resume() {
    let divided = ["parallel.zero=2"];
    let pipeline = ["parallel.pipeline=2"];
    let weights = ["parallel.zero=3"];
    for (sets, workers) in [
        (&[FRAGILE][..], "3"),
        (&[], "2"),
        (&divided, "1"),
        (&pipeline, "3"),
        (&weights, "1"),
    ] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "2", sets);
        let processes = running.after_steps(20);
        running.signal(Signal::TERM);
        let ended = running.wait().expect(
            143,
            &[
                "interrupted at step ",
                "; checkpoint saved; resume with `ronde train --resume out`",
            ],
        );
        gone(processes.into_values());
        let events = ended.events();
        let last = of_kind(&events, "step_committed").last().unwrap();
        let saved = of_kind(&events, "checkpoint_saved").last().unwrap();
        let next = last["step"].as_u64().unwrap() + 1;
        assert_eq!(saved["step"], next, "nothing is lost");
        let ended = resume(&dir, workers).wait().expect(0, &[]);
        assert_eq!(resumed_from(&ended), next);
        assert_eq!(ended.blake3(), undisturbed());
    }
}

#[test]
fn when_all_workers_die_at_once_their_replacements_go_on_from_the_checkpoint() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "2", &[OFTEN]);
    running.wait_stdout("\"event\":\"checkpoint_saved\"", 2);
    for process in running.workers().into_values() {
        send(process, Signal::KILL);
    }
    running.wait_stdout("\"event\":\"checkpoint_loaded\"", 1);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), undisturbed());
    let events = ended.events();
    let told = of_kind(&events, "membership_changed")
        .any(|event| event["reason"].as_str().unwrap().contains("checkpoint"));
    assert!(told, "{}", ended.stdout);
}

#[test]
fn what_cannot_go_on_is_told_with_what_differs() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "2", &[OFTEN]);
    running.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
    let processes = running.workers();
    running.signal(Signal::INT);
    running
        .wait()
        .expect(130, &["resume with `ronde train --resume out`"]);
    gone(processes.into_values());
    let again = [
        "train",
        "--set",
        "train.epochs=10",
        "--set",
        "model.channels=4",
    ];
    let out = ["--set", "run.output=out"];
    let run = |extra: &[&str]| dir.run(&[&again[..], &out, extra].concat());
    run(&[]).expect(2, &["this run is not finished", "ronde train --resume out"]);
    // One address for the checkpoints of two runs does not show whether the first one is finished.
    let other = [
        "--set",
        "run.output=other",
        "--set",
        "checkpoint.to=out/checkpoints",
    ];
    dir.run(&[&again[..], &other].concat()).expect(
        2,
        &[
            "there are checkpoints of a run at ",
            "out/checkpoints, the newest at step ",
            "--set checkpoint.to=ADDRESS",
        ],
    );
    run(&["--set", "run.seed=7"]).expect(
        2,
        &["checkpoints of another run, `digits`: run.seed changed from 42 to 7"],
    );
    let other = ["--resume", "out", "--set", "run.seed=7"];
    dir.run(&[&["train"][..], &other].concat())
        .expect(2, &["cannot resume: run.seed changed from 42 to 7"]);
    dir.run(&["train", "--resume", "nowhere"])
        .expect(2, &["no such folder: nowhere"]);
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    dir.run(&["train", "--resume", "empty"])
        .expect(2, &["cannot resume: no checkpoint in "]);
    let ended = resume(&dir, "2").wait().expect(0, &[]);
    assert_eq!(ended.blake3(), undisturbed());
    resume(&dir, "2")
        .wait()
        .expect(0, &["this run is finished: 230 steps", undisturbed()]);
}

#[test]
fn checkpoints_are_listed_shown_verified_and_exported() {
    let dir = TestFolder::new();
    let key = "checkpoint.encrypt=\"variable:KEY_OF_TEST\"";
    let variables = [(
        "KEY_OF_TEST",
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
    )];
    let sets = [
        "train.epochs=10",
        "model.channels=4",
        "run.output=out",
        "checkpoint.every_steps=115",
        "checkpoint.overlap=false",
        key,
    ];
    let mut arguments = vec!["train", "--json", "-n", "2"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let ended = dir
        .start(RONDE, &arguments, &variables)
        .wait()
        .expect(0, &[]);
    let command = |arguments: &[&str]| {
        let all = [&["checkpoint"][..], arguments].concat();
        dir.start(RONDE, &all, &variables).wait()
    };
    let encrypt = ["--encrypt", "variable:KEY_OF_TEST"];
    let open = |arguments: &[&str]| command(&[arguments, &encrypt].concat());
    let listed = open(&["ls", "out"]).expect(0, &[]);
    for words in ["230", "115", "complete"] {
        assert!(listed.stdout.contains(words), "{}", listed.stdout);
    }
    let shown = open(&["show", "out"]).expect(0, &[]);
    for words in ["optimizer.mean_square", "run.seed = 42", "rank 1"] {
        assert!(shown.stdout.contains(words), "{}", shown.stdout);
    }
    let exported = open(&["export", "out", "-o", "weights.safetensors"]).expect(0, &[]);
    assert!(
        exported.stdout.contains(&ended.blake3()),
        "{}",
        exported.stdout
    );
    let steps = "help: there are checkpoints of step 230, 115";
    for action in ["show", "verify"] {
        let problem = "no checkpoint of step 7 in out";
        open(&[action, "out", "--step", "7"]).expect(2, &[problem, steps]);
    }
    let of_nothing = ["export", "out", "-o", "none", "--vector", "nothing"];
    open(&of_nothing).expect(2, &["invalid vector `nothing`"]);
    command(&["ls", "gone"]).expect(2, &["no such folder: gone", "help: "]);
    let key = ["ls", "out", "--encrypt", "file:gone"];
    let without_key =
        command(&key).expect(2, &["invalid encryption key of the checkpoints: ./gone"]);
    assert_eq!(without_key.stderr.matches("invalid").count(), 1);
    let good = open(&["verify", "out/checkpoints"]).expect(0, &[]);
    assert!(good.stdout.contains("is intact"), "{}", good.stdout);
    command(&["verify", "out"]).expect(3, &["is damaged", "pass --encrypt"]);
    let slice = slices(&dir).pop().unwrap();
    let mut bytes = std::fs::read(&slice).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&slice, bytes).unwrap();
    let name = slice.file_name().unwrap().to_str().unwrap();
    open(&["verify", "out", "--step", "230"]).expect(3, &["is damaged", name]);
    open(&["verify", "out", "--step", "115"]).expect(0, &[]);
    let newest = open(&["verify", "out"]).expect(3, &["step 230 is damaged", name]);
    assert!(
        newest.stdout.contains("step 115 is intact"),
        "{}",
        newest.stdout
    );
}

#[test]
fn verify_finds_damage_of_manifests_and_claims_and_the_last_error_does_not_advise_to_resume() {
    let dir = TestFolder::new();
    dir.run(&[
        "train",
        "--set",
        "run.output=out",
        "--set",
        "checkpoint.every_steps=115",
        "--set",
        "train.epochs=10",
    ])
    .expect(0, &[]);
    let folder = dir.path().join("out/checkpoints");
    dir.run(&["checkpoint", "verify", "out"]).expect(0, &[]);
    for name in ["lineage.json", "step-00000230/manifest.json"] {
        let path = folder.join(name);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..good.len() / 2]).unwrap();
        dir.run(&["checkpoint", "verify", "out"]).expect(3, &[name]);
        std::fs::write(&path, good).unwrap();
    }
    std::fs::remove_file(dir.path().join("out/model.json")).unwrap();
    for step in ["step-00000115", "step-00000230"] {
        let inner = std::fs::read_dir(folder.join(step)).unwrap();
        let inner = inner.map(|e| e.unwrap().path()).find(|path| path.is_dir());
        for entry in std::fs::read_dir(inner.unwrap()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "slice") {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[300] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
    }
    dir.run(&["checkpoint", "verify", "out"]).expect(
        3,
        &["step 115 is damaged", "step 230 is damaged", "restore"],
    );
    let resumed = dir.run(&["train", "--resume", "out"]);
    assert!(
        !resumed.stderr.contains("resume with"),
        "{}",
        resumed.stderr
    );
    resumed.expect(2, &["no checkpoint can be used", "ronde checkpoint verify"]);
    // Damage that lengths show is found before workers start.
    for step in ["step-00000115", "step-00000230"] {
        std::fs::write(folder.join(step).join("manifest.json"), b"{}").unwrap();
    }
    let resumed = dir.run(&["train", "--resume", "out"]);
    assert!(
        !resumed.stderr.contains("resume with"),
        "{}",
        resumed.stderr
    );
    resumed.expect(
        2,
        &[
            "none of the 2 checkpoints",
            "manifest.json",
            "ronde checkpoint verify",
        ],
    );
}

/// Returns the slice files of the newest checkpoint.
fn slices(dir: &TestFolder) -> Vec<PathBuf> {
    let mut step = std::fs::read_dir(dir.path().join("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect::<Vec<_>>();
    step.sort();
    let folders = std::fs::read_dir(step.pop().unwrap()).unwrap();
    folders
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "slice")
        })
        .collect()
}

#[test]
fn changed_data_and_other_runs_are_reported_by_name() {
    let dir = TestFolder::new();
    let rows = |label: u32| {
        let row = |number: u32| format!("{number},{},{}\n", number % 7, (number + label) % 2);
        (0..40).map(row).collect::<String>()
    };
    dir.write("numbers.csv", &rows(0));
    dir.write(
        "a.toml",
        "[run]\nname = \"first\"\noutput = \"out\"\n\
         [data]\nsource = \"csv\"\ntrain = \"numbers.csv\"\nshape = [2]\nclasses = 2\n\
         [model]\nkind = \"linear\"\n[train]\nepochs = 2\nglobal_batch_size = 8\n\
         [checkpoint]\nevery_steps = 5\n",
    );
    dir.run(&["train", "a.toml"]).expect(0, &[]);
    std::fs::remove_file(dir.path().join("out/model.json")).unwrap();
    dir.write("numbers.csv", &rows(1));
    let changed = dir.run(&["train", "a.toml", "--resume", "out"]);
    let changed = changed.expect(2, &["data file numbers.csv changed from", "run `first`"]);
    assert!(
        !changed.stderr.contains("data.identity"),
        "{}",
        changed.stderr
    );
    dir.run(&[
        "train",
        "a.toml",
        "--set",
        "run.name=second",
        "--set",
        "train.epochs=3",
        "--set",
        "run.output=second",
        "--set",
        "checkpoint.to=out/checkpoints",
    ])
    .expect(2, &["checkpoints of another run, `first`"]);
}
