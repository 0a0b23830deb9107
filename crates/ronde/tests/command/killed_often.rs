//! A worker that is killed again and again, as by a kernel that runs out of memory.

use std::collections::BTreeSet;

use rustix::process::Signal;

use crate::support::{RONDE, TestFolder, holds_within, send};

#[test]
fn a_run_that_needs_a_worker_that_is_always_killed_ends_and_can_be_resumed() {
    let dir = TestFolder::new();
    let start = [
        "train",
        "-n",
        "2",
        "--json",
        "--set",
        "run.output=out",
        "--set",
        "train.steps=400",
        "--set",
        "elastic.min_workers=2",
        "--set",
        "elastic.max_restarts=1",
    ];
    let mut run = dir.start(RONDE, &start, &[]);
    run.after_steps(2);
    let mut killed = BTreeSet::new();
    // Each process of the slot once; the second one is the last.
    let both = holds_within(std::time::Duration::from_secs(60), || {
        if let Some(&worker) = run.workers().get(&1)
            && killed.insert(worker)
        {
            send(worker, Signal::KILL);
        }
        killed.len() == 2
    });
    assert!(both, "the worker is restarted");
    let ended = run.wait().expect(
        3,
        &[
            "slot 1 abandoned after 1 restart: the last worker killed (SIGKILL)",
            "help: the kernel kills processes when memory runs out",
            "resume with `ronde train --resume out`",
        ],
    );
    assert!(ended.stdout.contains("memory runs out"), "{ended:#?}");
    let resumed = dir.run(&["train", "--resume", "out", "-n", "2", "--json"]);
    let reference = ["train", "-n", "1", "--json", "--set", "train.steps=400"];
    assert_eq!(
        resumed.expect(0, &[]).blake3(),
        dir.run(&reference).blake3()
    );
}
