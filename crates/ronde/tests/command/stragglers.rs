//! Workers of different speed in real runs: the straggler report, and shares by measured speed.

use std::cell::Cell;

use rustix::process::Signal;

use crate::support::{RONDE, TestFolder, of_kind, send, until};

/// A process that is stopped half of the time until this is dropped.
struct SlowedProcess {
    pid: u32,
    is_stopped: Cell<bool>,
}

impl SlowedProcess {
    fn toggle(&self) {
        let stops = !self.is_stopped.get();
        self.is_stopped.set(stops);
        send(self.pid, if stops { Signal::STOP } else { Signal::CONT });
    }
}

impl Drop for SlowedProcess {
    fn drop(&mut self) {
        send(self.pid, Signal::CONT);
    }
}

#[test]
fn an_even_run_names_no_rank_and_a_slowed_worker_is_named() {
    let dir = TestFolder::new();
    let arguments = [
        "train",
        "--json",
        "-n",
        "3",
        "--set",
        "run.output=out",
        "--set",
    ];
    let arguments = [&arguments[..], &["train.epochs=100000"]].concat();
    let mut run = dir.start(RONDE, &arguments, &[]);
    let workers = run.after_steps(2_000);
    let begun = run.stdout().matches("straggler_detected").count();
    assert_eq!(begun, 0, "{}", run.stdout());

    let slowed = SlowedProcess {
        pid: workers[&1],
        is_stopped: Cell::new(false),
    };
    // The condition is checked every few milliseconds: each check starts or stops the worker.
    until("the straggler is named", || {
        slowed.toggle();
        let status = dir.run(&["status", "out", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["straggler"]["rank"] == 1
    });
    drop(slowed);
    run.wait_stdout("straggler_recovered", 1);
    run.signal(Signal::TERM);
    let ended = run.wait();
    let events = ended.events();
    let detected: Vec<_> = of_kind(&events, "straggler_detected").collect();
    assert_eq!(detected[0]["rank"], 1, "{detected:?}");
    assert!(detected[0]["delay_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_slowed_worker_gets_fewer_shards_and_the_bits_stay() {
    const SETTINGS: [&str; 7] = [
        "--json",
        "--set",
        "train.steps=4000",
        "--set",
        "workers.logical_shards=16",
        "--set",
        "run.output=out",
    ];
    let one = TestFolder::new();
    let alone = one.run(&[&["train"], &SETTINGS[..]].concat());

    let dir = TestFolder::new();
    let balanced = ["train", "-n", "2", "--set", "workers.balance=\"measured\""];
    let mut run = dir.start(RONDE, &[&balanced[..], &SETTINGS].concat(), &[]);
    let workers = run.after_steps(20);
    let slowed = SlowedProcess {
        pid: workers[&1],
        is_stopped: Cell::new(false),
    };
    until("the shares have changed", || {
        slowed.toggle();
        run.stdout().contains("shares_changed")
    });
    let status = dir.run(&["status", "out", "--json"]).stdout;
    drop(slowed);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let shares = &status["shares"]["shards"];
    assert!(shares[0].as_u64() > shares[1].as_u64(), "{status}");
    let ended = run.wait();
    assert_eq!(ended.blake3(), alone.blake3());
}
