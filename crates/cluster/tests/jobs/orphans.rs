//! A launcher that is killed with SIGKILL leaves nothing behind, not even grandchildren.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::*;

#[test]
fn a_killed_launcher_takes_children_and_grandchildren_along() {
    ends_with_its_launcher("sleep 600 & echo child $!; echo pid $$; wait");
}

#[test]
fn a_killed_launcher_takes_processes_along_that_left_the_session() {
    ends_with_its_launcher(
        "(setsid sh -c 'echo child $$; exec sleep 600' &); echo pid $$; exec sleep 600",
    );
}

/// Runs two ranks with a script that prints two process ids, kills the launcher, and waits for their end.
fn ends_with_its_launcher(script: &str) {
    let mut launcher = Command::new(example())
        .args(["run", "2", "/bin/sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(launcher.stdout.take().unwrap());
    let pids: Vec<i32> = output
        .lines()
        .take(4)
        .map(|line| line.unwrap().rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|&pid| runs(pid)), "{pids:?}");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    for pid in pids {
        wait_for("the end of a process", || (!runs(pid)).then_some(()));
    }
}
