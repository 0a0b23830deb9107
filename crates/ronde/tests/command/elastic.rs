//! Workers that are killed, stopped and started again: the others go on, nothing is lost or repeated,
//! and the model has the bits of an undisturbed run.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, Place, RONDE, Running, events, example, gone, of_kind, send};

const STEPS: u64 = 460;

fn start(place: &Place, workers: &str, sets: &[&str]) -> Running {
    let mut arguments = vec!["train", "--json", "-n", workers];
    for set in ["train.epochs=20", "model.channels=4", "run.output=out"]
        .iter()
        .chain(sets)
    {
        arguments.extend(["--set", set]);
    }
    place.start(RONDE, &arguments, &[])
}

/// The hash of the model of an undisturbed run.
fn undisturbed() -> &'static str {
    static BLAKE3: OnceLock<String> = OnceLock::new();
    BLAKE3.get_or_init(|| {
        let place = Place::new();
        start(&place, "1", &[]).wait().expect(0, &[]).blake3()
    })
}

/// Checks the end of a run that was disturbed, and gives its changes of membership.
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

/// The places whose process is the same as before.
fn unchanged(before: &BTreeMap<u32, u32>, after: &BTreeMap<u32, u32>) -> Vec<u32> {
    let same = |place: &&u32| before.get(place) == after.get(place);
    before.keys().filter(same).copied().collect()
}

#[test]
fn a_killed_worker_is_left_behind_and_one_step_is_redone() {
    // Rank 0 speaks for all and writes the model: it is no exception.
    for killed in [1, 0] {
        let place = Place::new();
        let mut running = start(&place, "3", &["elastic.max_restarts=0"]);
        let before = running.after_steps(20);
        send(before[&killed], Signal::KILL);
        running.says("\"event\":\"recovered\"", 1);
        let survivors: Vec<u32> = before.keys().copied().filter(|p| *p != killed).collect();
        assert_eq!(unchanged(&before, &running.workers()), survivors);
        let ended = running.wait();
        let all = events(&ended.stdout);
        let changes = whole(ended);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0]["world_size"], 2);
        let told = reason(&changes[0]);
        for words in [
            &format!("rank {killed} on "),
            "lost: connection closed by signal 9",
            "generation 2; 2 workers; step ",
        ] {
            assert!(told.contains(words), "{told}");
        }
        one_step_is_redone(&all, told);
        // No process was started again, and there was no checkpoint to go on from.
        assert_eq!(of_kind(&all, "worker_started").count(), 3);
        let files = [
            "events.jsonl",
            "model.json",
            "model.safetensors",
            "run.toml",
        ];
        assert_eq!(place.list("out"), files);
    }
}

/// The step in flight was computed again and no other: all before it stand, and the new generation
/// begins with it. `told` is why the membership changed.
#[track_caller]
fn one_step_is_redone(all: &[Value], told: &str) {
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
    // A vote that came in while the loss was noticed makes the step in flight the one before.
    let is_told = |step: u64| told.ends_with(&format!("step {step} redone"));
    assert!(is_told(next) || is_told(next - 1), "{next}: {told}");
}

#[test]
fn a_replacement_fetches_the_state_and_trains() {
    let place = Place::new();
    let mut running = start(&place, "3", &[]);
    let before = running.after_steps(20);
    send(before[&2], Signal::KILL);
    running.says("\"healed\":1", 1);
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
    assert!(reason(&changes[1]).contains("1 joined"), "{changes:?}");
    gone(after.into_values());
}

#[test]
fn half_of_the_workers_are_killed_at_once() {
    let place = Place::new();
    let mut running = start(&place, "4", &["elastic.max_restarts=1"]);
    let before = running.after_steps(20);
    send(before[&0], Signal::KILL);
    send(before[&3], Signal::KILL);
    let changes = whole(running.wait());
    assert!(changes[0]["world_size"].as_u64().unwrap() >= 2);
    assert!(reason(&changes[0]).contains("signal 9"), "{changes:?}");
}

#[test]
fn a_stopped_worker_is_left_out_and_comes_back_when_it_wakes() {
    let place = Place::new();
    let mut running = start(&place, "3", &["elastic.silence_s=0.5"]);
    let before = running.after_steps(20);
    send(before[&1], Signal::STOP);
    running.says("\"event\":\"recovered\"", 1);
    send(before[&1], Signal::CONT);
    running.says("\"world_size\":3,\"step\"", 2);
    assert_eq!(unchanged(&before, &running.workers()), [0, 1, 2]);
    let changes = whole(running.wait());
    assert!(reason(&changes[0]).contains("silent for"), "{changes:?}");
    assert_eq!(changes.last().unwrap()["world_size"], 3);
}

#[test]
fn a_worker_that_is_stopped_to_the_end_does_not_keep_the_others_from_it() {
    let place = Place::new();
    let mut running = start(&place, "3", &["elastic.silence_s=0.5"]);
    let before = running.after_steps(20);
    send(before[&1], Signal::STOP);
    let changes = whole(running.wait());
    assert!(reason(&changes[0]).contains("silent for"), "{changes:?}");
    gone(before.into_values());
}

#[test]
fn too_few_workers_end_the_run_with_the_first_loss() {
    let place = Place::new();
    let sets = [
        "elastic.min_workers=2",
        "elastic.max_restarts=0",
        "elastic.wait_s=0.2",
    ];
    let mut running = start(&place, "2", &sets);
    let before = running.after_steps(20);
    send(before[&1], Signal::KILL);
    running.wait().expect(
        3,
        &["connection closed by signal 9", "1 worker of at least 2"],
    );
    gone(before.into_values());
}

#[test]
fn a_users_own_loop_goes_on_as_well() {
    let program = example("own_loop");
    let program = program.to_str().unwrap();
    let place = Place::new();
    let weights = |text: &str| {
        let line = text.lines().find_map(|line| line.split_once("weights "));
        line.expect("a hash of the weights").1.to_owned()
    };
    let alone = place.start(program, &["200"], &[]).wait().expect(0, &[]);
    for killed in [0, 2] {
        let arguments = ["run", "-n", "3", "--elastic", "--", program, "200"];
        let mut running = place.start(RONDE, &arguments, &[]);
        running.says("epoch 3:", 1);
        send(running.workers()[&killed], Signal::KILL);
        let ended = running
            .wait()
            .expect(0, &["lost: connection closed by signal 9"]);
        assert_eq!(weights(&ended.stdout), weights(&alone.stdout));
    }
}

#[test]
fn a_worker_that_is_asked_to_leave_finishes_its_step_and_nothing_is_redone() {
    for leaving in [1, 0] {
        let place = Place::new();
        let mut running = start(&place, "3", &[]);
        let before = running.after_steps(20);
        send(before[&leaving], Signal::TERM);
        running.says("\"event\":\"membership_changed\"", 1);
        gone([before[&leaving]]);
        let ended = running.wait();
        assert_eq!(of_kind(&events(&ended.stdout), "recovered").count(), 0);
        let changes = whole(ended);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0]["world_size"], 2);
        assert!(reason(&changes[0]).contains("1 left"), "{changes:?}");
    }
}
