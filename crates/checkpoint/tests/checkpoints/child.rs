//! This test program, started again as a process that saves until it is killed, or publishes once.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;

use ronde_checkpoint::{Fence, Lineage, Proof, Retention, last_good, retain};
use ronde_core::{Generation, Step};
use ronde_store::{Encrypted, MasterKey, Store};

use crate::state::{State, local, plan};

const TASK: &str = "RONDE_TEST_CHILD";
/// The same key for all children, so that each can open the files of the others.
const KEY: [u8; 32] = [7; 32];

pub(crate) struct Child {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
    /// The last step that it reported as published in the output read so far.
    published: Option<u64>,
}

impl Child {
    /// Saves step after step as `world_size` ranks, starting after the last good checkpoint.
    pub(crate) fn save_on(folder: &Path, world_size: u32, is_encrypted: bool) -> Self {
        Self::start(folder, &format!("save {world_size} {is_encrypted}"))
    }

    /// Saves and publishes one step, under the given term or one that it claims.
    pub(crate) fn publish(folder: &Path, step: u64, term: Option<u64>) -> Self {
        Self::start(folder, &format!("publish {step} {}", term.unwrap_or(0)))
    }

    fn start(folder: &Path, task: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child::as_a_process", "--exact", "--ignored", "--nocapture"])
            .env(TASK, format!("{task} {}", folder.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            output,
            published: None,
        }
    }

    /// Waits until its output contains a word; returns false when it ended before.
    pub(crate) fn wait_for(&mut self, word: &str) -> bool {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            self.published = published(&line).or(self.published);
            if line.contains(word) {
                return true;
            }
            line.clear();
        }
        false
    }

    /// Kills it and returns the last step that it reported as published.
    pub(crate) fn kill(mut self) -> Option<u64> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let lines: Vec<String> = self.output.lines().map(Result::unwrap).collect();
        // A line that was truncated within its number can only give too low a step, never too high a one.
        let later = lines.iter().filter_map(|line| published(line)).next_back();
        later.or(self.published)
    }

    /// Waits for its end and returns its output.
    pub(crate) fn finish(mut self) -> String {
        let mut output = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut output).unwrap();
        self.process.wait().unwrap();
        output
    }
}

fn published(line: &str) -> Option<u64> {
    line.trim_end().strip_prefix("published ")?.parse().ok()
}

pub(crate) fn store(folder: &Path, is_encrypted: bool) -> Arc<dyn Store> {
    let store = local(folder);
    if is_encrypted {
        return Arc::new(Encrypted::new(store, MasterKey::parse(&KEY).unwrap()));
    }
    store
}

#[test]
#[ignore = "started by other tests as a separate process"]
fn as_a_process() {
    let Some(task) = std::env::var_os(TASK) else {
        return;
    };
    let task = task.into_string().unwrap();
    let words: Vec<&str> = task.splitn(4, ' ').collect();
    let folder = Path::new(words[3]);
    match words[0] {
        "save" => save_on(folder, words[1].parse().unwrap(), words[2] == "true"),
        _ => publish(folder, words[1].parse().unwrap(), words[2].parse().unwrap()),
    }
}

fn save_on(folder: &Path, world_size: u32, is_encrypted: bool) {
    let store = store(folder, is_encrypted);
    let found = last_good(&store, &plan(), 1).unwrap();
    let from = found.map_or(0, |found| found.checkpoint.step().0);
    // The first random number of a process takes longer than the save that the test kills.
    MasterKey::generate().unwrap();
    println!("\nstarts");
    let fence = Lineage::claim_next(&*store, Generation(0), Step(from), "run `test`").unwrap();
    for step in from + 1.. {
        State::small(step).save(&store, fence, world_size).unwrap();
        println!("published {step}");
        let retention = Retention {
            keep_last: 2,
            keep_every: 50,
            proof: Proof::Lengths,
        };
        retain(&store, &retention).unwrap();
    }
}

fn publish(folder: &Path, step: u64, term: u64) {
    let store = local(folder);
    let fence = match term {
        0 => Lineage::claim_next(&*store, Generation(0), Step(step - 1), "run `test`").unwrap(),
        term => Fence {
            term,
            generation: Generation(0),
        },
    };
    match State::small(step).save(&store, fence, 2) {
        Ok(_) => println!("published {step}"),
        Err(error) => println!("refused: {error}"),
    }
}
