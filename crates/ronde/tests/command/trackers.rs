//! Runs with trackers: their files, their endpoint, the drawing of the loss, and mistakes in `[track]`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::support::{RONDE, TestFolder};

const SMALL: [&str; 6] = [
    "--set",
    "model.channels=1",
    "--set",
    "run.output=out",
    "--set",
    "train.steps=30",
];

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train"];
    arguments.extend(SMALL);
    arguments.extend(more);
    arguments
}

#[test]
fn trackers_write_every_step_and_change_no_bits() {
    let dir = TestFolder::new();
    let plain = dir.run(&train(&["--json"])).expect(0, &[]).blake3();
    assert!(!dir.list("out").contains(&"metrics.csv".to_owned()));
    let all = ["--overwrite", "--json", "--plot", "--set", "track.csv=true"];
    let mut arguments = train(&all);
    arguments.extend([
        "--set",
        "track.tensorboard=true",
        "--set",
        "track.every_steps=7",
    ]);
    let tracked = dir.run(&arguments).expect(0, &[]).blake3();
    assert_eq!(tracked, plain);
    let text = std::fs::read_to_string(dir.path().join("out/metrics.csv")).unwrap();
    let steps: Vec<&str> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').next().unwrap())
        .collect();
    assert_eq!(steps, ["7", "14", "21", "28", "30"]);
    let evaluations = std::fs::read_to_string(dir.path().join("out/evaluations.csv")).unwrap();
    assert!(evaluations.contains(",accuracy,0."), "{evaluations}");
    assert_eq!(dir.list("out/tensorboard").len(), 1);
    let svg = std::fs::read_to_string(dir.path().join("out/loss.svg")).unwrap();
    assert!(svg.starts_with("<svg "), "{svg}");
    dir.run(&train(&["--overwrite"])).expect(0, &[]);
    for name in ["metrics.csv", "evaluations.csv", "tensorboard", "loss.svg"] {
        let left = dir.list("out");
        assert!(!left.iter().any(|found| found == name), "{name}: {left:?}");
    }
}

#[test]
fn the_loss_is_drawn_at_the_end() {
    let dir = TestFolder::new();
    let ended = dir
        .run(&train(&["--plot"]))
        .expect(0, &["loss\n", "step 30\n"]);
    assert!(!ended.stderr.contains('\u{1b}'), "{}", ended.stderr);
    let quiet = dir
        .run(&train(&["--plot", "--quiet", "--overwrite"]))
        .expect(0, &[]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn metrics_are_served_while_the_run_lasts() {
    let dir = TestFolder::new();
    let mut arguments = train(&["--json", "--set", "track.prometheus=127.0.0.1:0"]);
    arguments.extend(["--set", "train.steps=100000"]);
    let mut running = dir.start(RONDE, &arguments, &[]);
    running.after_steps(20);
    let text = running.stdout();
    let (_, after) = text.split_once("http://").unwrap();
    let address = after.split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(
        response.contains("\nronde_step{run=\"digits\"} "),
        "{response}"
    );
    assert!(
        response.contains("rank=\"0\",phase=\"compute\""),
        "{response}"
    );
    running.signal(rustix::process::Signal::TERM);
    running.wait();
    assert!(TcpStream::connect(address).is_err(), "the run has ended");
}

#[test]
fn mistakes_are_reported_before_the_start() {
    let dir = TestFolder::new();
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = format!("track.prometheus={}", used.local_addr().unwrap());
    for (setting, problem) in [
        (used.as_str(), "for Prometheus: Address already in use"),
        ("track.prometheus=localhost", "such as 127.0.0.1:9095"),
        ("track.every_steps=0", "must be at least 1"),
        ("track.tensorbord=true", "did you mean `tensorboard`?"),
    ] {
        dir.run(&train(&["--set", setting])).expect(2, &[problem]);
    }
}
