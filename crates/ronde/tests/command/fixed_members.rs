//! Workers that another launcher starts: their ranks come from environment variables, and nothing supervises them.

use std::net::TcpListener;

use ronde::{CollectivesExt, Worker};
use ronde_core::ReduceOp;
use rustix::process::Signal;

use crate::support::{RONDE, Running, TestFolder, events};

/// Returns an address of this host with a free port.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Starts a program as every rank of a job, the last rank first.
fn start(
    dir: &TestFolder,
    size: u32,
    program: impl AsRef<std::path::Path>,
    arguments: &[&str],
) -> Vec<Running> {
    let (address, size_text) = (free_address(), size.to_string());
    let mut ranks: Vec<Running> = (0..size)
        .rev()
        .map(|rank| {
            let rank = rank.to_string();
            let variables = [
                ("RONDE_RENDEZVOUS", address.as_str()),
                ("RONDE_WORLD_SIZE", size_text.as_str()),
                ("RONDE_RANK", rank.as_str()),
                ("RONDE_TOKEN", "a secret of this job"),
            ];
            dir.start(program.as_ref(), arguments, &variables)
        })
        .collect();
    ranks.reverse();
    ranks
}

const SHORT: [&str; 4] = ["train", "--json", "--set", "train.epochs=2"];

#[test]
fn ranks_that_are_started_by_hand_train_to_the_bits_of_a_supervised_run() {
    let supervised = TestFolder::new();
    let expected = supervised.run(&SHORT).expect(0, &[]).blake3();
    for size in [1, 3] {
        let dir = TestFolder::new();
        let mut ranks = start(&dir, size, RONDE, &SHORT).into_iter();
        let first = ranks.next().unwrap().wait().expect(0, &[]);
        assert_eq!(first.blake3(), expected, "{size} ranks");
        for rank in ranks {
            let ended = rank.wait().expect(0, &[]);
            assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
        }
        let written = std::fs::read_to_string(dir.path().join("runs/digits/events.jsonl"));
        assert!(events(&written.unwrap()).len() > 40);
    }
}

#[test]
fn the_loss_of_a_rank_ends_the_run_of_the_others() {
    let dir = TestFolder::new();
    let long = ["train", "--json", "--set", "train.epochs=100000"];
    let mut ranks = start(&dir, 3, RONDE, &long);
    ranks[0].after_steps(20);
    ranks[2].signal(Signal::KILL);
    let mut ranks = ranks.into_iter();
    ranks.next().unwrap().wait().expect(3, &["rank 2"]);
    ranks.next().unwrap().wait().expect(3, &["error: rank 1: "]);
}

#[test]
fn sigterm_to_a_rank_saves_a_checkpoint_from_which_any_launcher_resumes() {
    let dir = TestFolder::new();
    let mut ranks = start(&dir, 2, RONDE, &["train", "--json"]);
    ranks[0].after_steps(20);
    // Launchers send it to all ranks, some of them twice.
    for rank in [&ranks, &ranks].into_iter().flatten() {
        rank.signal(Signal::TERM);
    }
    for rank in ranks {
        rank.wait().expect(128 + 15, &[]);
    }
    let one = TestFolder::new();
    let mut ranks = start(&one, 2, RONDE, &["train", "--json"]);
    ranks[0].after_steps(20);
    ranks[1].signal(Signal::TERM);
    let mut ended = ranks.into_iter().map(Running::wait);
    ended
        .next()
        .unwrap()
        .expect(128 + 15, &["; checkpoint saved; "]);
    ended.next().unwrap().expect(128 + 15, &[]);
    let resumed = dir.run(&["train", "--json", "-n", "3", "--resume", "runs/digits"]);
    let whole = TestFolder::new().run(&["train", "--json"]);
    assert_eq!(resumed.expect(0, &[]).blake3(), whole.blake3());
}

#[test]
fn arguments_that_contradict_the_launcher_are_refused() {
    let dir = TestFolder::new();
    let refused = |arguments: &[&str], words: &str| {
        for rank in start(&dir, 2, RONDE, arguments) {
            rank.wait().expect(2, &[words]);
        }
    };
    refused(
        &["train", "-n", "3"],
        "expected 2, the value of RONDE_WORLD_SIZE",
    );
    refused(
        &["train", "--listen", "127.0.0.1:0"],
        "RONDE_WORLD_SIZE is set",
    );
}

/// The program: a test that is not run with the others.
const PROGRAM: &str = "fixed_members::adds_the_ranks";

#[test]
#[ignore = "a program that another test starts"]
fn adds_the_ranks() {
    let mut worker = Worker::start().unwrap();
    let group = worker.group("own").unwrap();
    let mut sum = [f32::from(worker.rank().0 as u16)];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    println!("sum {}", sum[0]);
}

#[test]
fn a_program_of_ones_own_connects_without_a_supervisor() {
    let dir = TestFolder::new();
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", PROGRAM, "--ignored", "--nocapture"];
    for rank in start(&dir, 3, program, &arguments) {
        let ended = rank.wait().expect(0, &[]);
        assert!(ended.stdout.contains("sum 3\n"), "{ended:#?}");
    }
}
