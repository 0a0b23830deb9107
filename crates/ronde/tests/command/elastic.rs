//! Workers are killed, stopped and restarted: the remaining workers continue, no step is lost or repeated, and the model
//! has the bits of an undisturbed run.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Ended, RONDE, Running, TestFolder, events, example, gone, of_kind, send, stopped, until,
};

/// The number of steps: a replacement joins before the end, on a busy machine too.
const STEPS: u64 = 1380;

fn start(dir: &TestFolder, workers: &str, sets: &[&str]) -> Running {
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in ["train.epochs=60", "model.channels=4", "run.output=out"]
        .iter()
        .chain(sets)
    {
        arguments.extend(["--set", set]);
    }
    dir.start(RONDE, &arguments, &[])
}

/// Returns the hash of the model of an undisturbed run.
fn undisturbed() -> &'static str {
    static BLAKE3: OnceLock<String> = OnceLock::new();
    BLAKE3.get_or_init(|| {
        let dir = TestFolder::new();
        start(&dir, "1", &[]).wait().expect(0, &[]).blake3()
    })
}

/// Checks the end of a disturbed run and returns its membership changes.
#[track_caller]
fn whole(ended: Ended) -> Vec<Value> {
    let ended = ended.expect(0, &[]);
    assert_eq!(ended.blake3(), undisturbed(), "{}", ended.stdout);
    let events = events(&ended.stdout);
    let steps: Vec<u64> = of_kind(&events, "step_committed")
        .map(|event| event["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (0..STEPS).collect::<Vec<_>>(), "each step once");
    for epoch in of_kind(&events, "epoch_finished") {
        assert_eq!(epoch["used_once"], 1437, "{epoch}");
        assert_eq!(
            (&epoch["missing"], &epoch["repeated"]),
            (&0.into(), &0.into())
        );
    }
    assert_eq!(of_kind(&events, "evaluated").count(), 1);
    of_kind(&events, "membership_changed").cloned().collect()
}

fn reason(change: &Value) -> &str {
    change["reason"].as_str().unwrap()
}

/// Returns the slots whose process is the same as before.
fn unchanged(before: &BTreeMap<u32, u32>, after: &BTreeMap<u32, u32>) -> Vec<u32> {
    let same = |dir: &&u32| before.get(dir) == after.get(dir);
    before.keys().filter(same).copied().collect()
}

#[test]
fn after_a_worker_is_killed_one_step_is_recomputed() {
    // Rank 0, which reports and writes the model, is included.
    for killed in [1, 0] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", &["elastic.max_restarts=0"]);
        let before = running.after_steps(20);
        send(before[&killed], Signal::KILL);
        running.wait_stdout("\"event\":\"recovered\"", 1);
        let survivors: Vec<u32> = before.keys().copied().filter(|p| *p != killed).collect();
        assert_eq!(unchanged(&before, &running.workers()), survivors);
        let ended = running.wait();
        let all = events(&ended.stdout);
        let changes = whole(ended);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0]["world_size"], 2);
        let reason_text = reason(&changes[0]);
        for words in [
            &format!("worker {killed} on "),
            "killed (SIGKILL); recomputing step ",
            " with 2 workers (generation 2)",
        ] {
            assert!(reason_text.contains(words), "{reason_text}");
        }
        one_step_is_recomputed(&all, reason_text);
        // No process was restarted, and there was no checkpoint to resume from.
        assert_eq!(of_kind(&all, "worker_started").count(), 3);
        let files = [
            "README.md",
            "checkpoints",
            "events.jsonl",
            "model.json",
            "model.safetensors",
            "run.toml",
        ];
        assert_eq!(dir.list("out"), files);
    }
}

#[test]
fn a_divided_state_survives_killed_workers_that_are_replaced() {
    for (sets, killed) in [
        (["parallel.zero=2", "parallel.copies=2"], [1, 0]),
        (["parallel.pipeline=3", "parallel.copies=2"], [1, 0]),
        (["parallel.pipeline=2", "parallel.copies=2"], [1, 0]),
        (["parallel.zero=3", "parallel.copies=2"], [1, 0]),
        // The server, then a worker that computes.
        (["parallel.servers=1", "parallel.copies=2"], [2, 0]),
    ] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", &sets);
        for (round, killed) in (1..).zip(killed) {
            let workers = running.after_steps(20);
            send(workers[&killed], Signal::KILL);
            // The loss, and the replacement that joins.
            running.wait_stdout("\"event\":\"membership_changed\"", 2 * round);
        }
        let changes = whole(running.wait());
        let sizes: Vec<u64> = changes
            .iter()
            .filter_map(|change| change["world_size"].as_u64())
            .collect();
        assert!(
            sizes.contains(&2) && sizes.last() == Some(&3),
            "{sets:?}: {changes:?}"
        );
    }
}

#[test]
fn a_second_worker_is_killed_while_copies_of_slices_are_missing() {
    for (first, second) in [(3, 1), (2, 0), (1, 3)] {
        let dir = TestFolder::new();
        let sets = [
            "parallel.zero=2",
            "parallel.copies=2",
            "elastic.max_restarts=0",
            "checkpoint.every_steps=10",
        ];
        let mut running = start(&dir, "4", &sets);
        let workers = running.after_steps(20);
        send(workers[&first], Signal::KILL);
        // The remaining workers continue, and move the copies after their next step.
        running.wait_stdout("\"event\":\"resumed\"", 2);
        send(workers[&second], Signal::KILL);
        let ended = running.wait().expect(0, &[]);
        // Without all slices, the workers load a checkpoint and compute some steps again.
        let all = events(&ended.stdout);
        let last = of_kind(&all, "membership_changed").last();
        assert_eq!(last.unwrap()["world_size"], 2, "{}", ended.stdout);
        assert_eq!(ended.blake3(), undisturbed(), "{}", ended.stdout);
    }
}

#[test]
fn clusters_have_the_same_bits_after_a_worker_is_killed() {
    let file = format!("{}/../../examples/kmeans.toml", env!("CARGO_MANIFEST_DIR"));
    let start = |dir: &TestFolder, workers| {
        let mut arguments = vec!["train", &file, "--json", "-n", workers];
        for set in ["train.epochs=4000", "elastic.max_restarts=0"] {
            arguments.extend(["--set", set]);
        }
        dir.start(RONDE, &arguments, &[])
    };
    let alone = TestFolder::new();
    let expected = start(&alone, "1").wait().expect(0, &[]).blake3();
    let dir = TestFolder::new();
    let mut running = start(&dir, "3");
    let workers = running.after_steps(20);
    send(workers[&1], Signal::KILL);
    running.wait_stdout("\"event\":\"recovered\"", 1);
    assert_eq!(running.wait().expect(0, &[]).blake3(), expected);
}

/// Checks that only the step in flight was recomputed: earlier steps are unchanged, and the new generation begins with
/// it. `reason` is the reason of the membership change.
#[track_caller]
fn one_step_is_recomputed(all: &[Value], reason: &str) {
    let resumed: Vec<u64> = of_kind(all, "resumed")
        .map(|event| event["step"].as_u64().unwrap())
        .collect();
    let [0, next] = resumed[..] else {
        panic!("{resumed:?}");
    };
    let of_generation = |generation: u64| {
        of_kind(all, "step_committed")
            .filter(move |event| event["generation"] == generation)
            .map(|event| event["step"].as_u64().unwrap())
    };
    assert_eq!(of_generation(1).last(), Some(next - 1));
    assert_eq!(of_generation(2).next(), Some(next));
    assert_eq!(of_kind(all, "recovered").count(), 1);
    // If a vote arrives while the loss is detected, the reported step is the previous one.
    let is_named = |step: u64| reason.contains(&format!("recomputing step {step} with"));
    assert!(is_named(next) || is_named(next - 1), "{next}: {reason}");
}

#[test]
fn a_replacement_fetches_the_state_and_trains() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "3", &[]);
    let before = running.after_steps(20);
    send(before[&2], Signal::KILL);
    running.wait_stdout("\"healed\":1", 1);
    let after = running.workers();
    assert_eq!(unchanged(&before, &after), [0, 1]);
    assert_eq!(after.len(), 3);
    let ended = running.wait();
    let resumed = events(&ended.stdout);
    let last = of_kind(&resumed, "resumed").last().unwrap();
    assert_eq!(
        (&last["world_size"], &last["healed"]),
        (&3.into(), &1.into())
    );
    let changes = whole(ended);
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(reason(&changes[1]).contains("worker joined"), "{changes:?}");
    gone(after.into_values());
}

#[test]
fn half_of_the_workers_are_killed_at_once() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "4", &["elastic.max_restarts=1"]);
    let before = running.after_steps(20);
    send(before[&0], Signal::KILL);
    send(before[&3], Signal::KILL);
    let changes = whole(running.wait());
    assert!(changes[0]["world_size"].as_u64().unwrap() >= 2);
    assert!(reason(&changes[0]).contains("SIGKILL"), "{changes:?}");
}

#[test]
fn a_stopped_worker_is_excluded_and_rejoins_when_continued() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "3", &["elastic.silence_s=0.5"]);
    let before = running.after_steps(20);
    send(before[&1], Signal::STOP);
    running.wait_stdout("\"event\":\"recovered\"", 1);
    send(before[&1], Signal::CONT);
    running.wait_stdout("\"world_size\":3,\"step\"", 2);
    assert_eq!(unchanged(&before, &running.workers()), [0, 1, 2]);
    let changes = whole(running.wait());
    assert!(reason(&changes[0]).contains("silent for"), "{changes:?}");
    assert_eq!(changes.last().unwrap()["world_size"], 3);
}

#[test]
fn a_worker_that_stays_stopped_does_not_block_the_end() {
    let dir = TestFolder::new();
    let mut running = start(&dir, "3", &["elastic.silence_s=0.5"]);
    let before = running.after_steps(20);
    send(before[&1], Signal::STOP);
    let changes = whole(running.wait());
    assert!(reason(&changes[0]).contains("silent for"), "{changes:?}");
    gone(before.into_values());
}

#[test]
fn too_few_workers_end_the_run_with_the_first_loss() {
    let dir = TestFolder::new();
    let sets = [
        "elastic.min_workers=2",
        "elastic.max_restarts=0",
        "elastic.wait_s=0.2",
    ];
    let mut running = start(&dir, "2", &sets);
    let before = running.after_steps(20);
    send(before[&1], Signal::KILL);
    running.wait().expect(
        3,
        &["killed (SIGKILL)", "waiting for workers: 1 of at least 2"],
    );
    gone(before.into_values());
}

/// Returns the hash that the example `own_loop` prints.
fn weights(text: &str) -> String {
    let line = text.lines().find_map(|line| line.split_once("weights "));
    line.expect("a hash of the weights").1.to_owned()
}

#[test]
fn a_custom_training_loop_continues_as_well() {
    let program = example("own_loop");
    let program = program.to_str().unwrap();
    let dir = TestFolder::new();
    let alone = dir.start(program, &["400"], &[]).wait().expect(0, &[]);
    for killed in [0, 2] {
        let arguments = ["run", "-n", "3", "--elastic", "--", program, "400"];
        let mut running = dir.start(RONDE, &arguments, &[]);
        running.wait_stdout("epoch 3:", 1);
        send(running.workers()[&killed], Signal::KILL);
        let ended = running.wait().expect(0, &["killed (SIGKILL)"]);
        assert_eq!(weights(&ended.stdout), weights(&alone.stdout));
    }
}

#[test]
fn a_worker_that_gets_sigterm_finishes_its_step_and_no_step_is_recomputed() {
    for leaving in [1, 0] {
        let dir = TestFolder::new();
        let mut running = start(&dir, "3", &[]);
        let before = running.after_steps(20);
        send(before[&leaving], Signal::TERM);
        running.wait_stdout("\"event\":\"membership_changed\"", 1);
        gone([before[&leaving]]);
        let ended = running.wait();
        assert_eq!(of_kind(&events(&ended.stdout), "recovered").count(), 0);
        let changes = whole(ended);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0]["world_size"], 2);
        assert!(reason(&changes[0]).contains("worker left"), "{changes:?}");
    }
}

#[test]
fn a_worker_that_is_stopped_at_its_start_is_replaced_soon() {
    let program = example("own_loop");
    let program = program.to_str().unwrap();
    let dir = TestFolder::new();
    let alone = dir.start(program, &["40"], &[]).wait().expect(0, &[]);
    // The first process of rank 1 stops before it can report.
    let script = r#"[ "$RANK" != 1 ] || ! mkdir first || kill -STOP $$; exec "$@""#;
    let elastic = ["run", "-n", "2", "--elastic", "--", "sh", "-c", script];
    let arguments = [&elastic[..], &["sh", program, "40"]].concat();
    let mut running = dir.start(RONDE, &arguments, &[]);
    until("rank 1 has started", || dir.path().join("first").exists());
    let before = running.workers();
    stopped(before[&1]);
    // The other limit of a start is longer than this test may take.
    running.wait_stderr("worker in slot 1 restarted", 1);
    gone([before[&1]]);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(weights(&ended.stdout), weights(&alone.stdout));
}
