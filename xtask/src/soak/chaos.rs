//! `cargo xtask soak chaos`: short trainings in every layout, each with several faults from its first millisecond on: workers are
//! killed, stopped for a while, and asked to end, some at once. Every training must end with the model and the losses of one worker
//! without faults, and leave no process and no shared memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::faults::SoakRandom;
use super::{fresh, job};
use crate::outside;

/// The usage text.
pub(super) const USAGE: &str = "\
cargo xtask soak chaos [--runs N] [--seed S]

  trains N times (default 300) with 2 to 5 workers, in all layouts in turn, with faults that the seed determines";

/// The time after which a training counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(180);
/// The time that processes and shared memory may take to vanish.
const VANISH_MAX: Duration = Duration::from_secs(10);
/// The most workers of a training.
const WORKERS_MAX: u32 = 5;
/// The largest number of faults of a training.
const FAULTS_MAX: usize = 6;
/// The seconds from the start of a training within which faults begin.
const FAULTS_WITHIN_S: f64 = 2.0;
/// The seconds for which a worker is stopped: it may count as lost or not.
const STOP_S_MAX: f64 = 4.0;
/// How often a training that was stopped is resumed.
const RESUMES_MAX: u32 = 3;

/// A kind of training.
struct ChaosPlan {
    name: &'static str,
    /// The settings that determine the bits.
    bits: &'static [&'static str],
    /// The layout, which does not, and its fewest workers.
    layout: &'static [&'static str],
    fewest: u32,
}

const TENSOR_PARTS: &[&str] = &["model.tensor_parts=2"];
const LOCAL_SGD: &[&str] = &[
    "sync.kind=local_sgd",
    "sync.inner_steps=8",
    "sync.replicas=8",
    "sync.inner_state=keep",
];
const TOP_K: &[&str] = &[
    "compression.codec=top_k",
    "compression.senders=8",
    "compression.ratio=0.02",
];

const PLANS: [ChaosPlan; 12] = [
    plan("data parallel", &[], &[], 2),
    plan("zero 1", &[], &["parallel.zero=1"], 2),
    plan(
        "zero 2, each slice once",
        &[],
        &["parallel.zero=2", "parallel.copies=1"],
        2,
    ),
    plan("zero 3", &[], &["parallel.zero=3"], 2),
    plan("pipeline", &[], &["parallel.pipeline=2"], 2),
    plan("tensor", TENSOR_PARTS, &["parallel.tensor=2"], 2),
    plan(
        "pipeline x tensor",
        TENSOR_PARTS,
        &["parallel.tensor=2", "parallel.pipeline=2"],
        4,
    ),
    plan(
        "zero x tensor",
        TENSOR_PARTS,
        &["parallel.tensor=2", "parallel.zero=3"],
        4,
    ),
    plan(
        "zero x pipeline",
        &[],
        &["parallel.pipeline=2", "parallel.zero=3"],
        4,
    ),
    plan("local SGD", LOCAL_SGD, &[], 2),
    plan("top-k", TOP_K, &[], 2),
    plan("top-k with copies", TOP_K, &["elastic.copy_steps=10"], 2),
];

const fn plan(
    name: &'static str,
    bits: &'static [&'static str],
    layout: &'static [&'static str],
    fewest: u32,
) -> ChaosPlan {
    ChaosPlan {
        name,
        bits,
        layout,
        fewest,
    }
}

/// The run file: about 920 steps, which take some seconds, with dropout and moments of the optimizer.
const RUN_FILE: &str = "\
[run]
name = \"chaos\"
output = \"out\"

[workers]
logical_shards = 8

[data]
source = \"digits\"

[model]
kind = \"mlp\"
hidden = [300, 64]

[train]
epochs = 40

[optimizer]
kind = \"adam\"

[elastic]
max_restarts = 1000000
restart_window_s = 1.0
";

/// What a fault does to each of its victims.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Kill,
    Stop { seconds: f64 },
    Terminate,
}

/// One fault.
#[derive(Debug, Clone, Copy)]
struct ChaosFault {
    at_s: f64,
    blow: Blow,
    victims: usize,
    draw: SoakRandom,
}

/// The hash of the model, and the loss and the gradient norm of each step as last recorded.
#[derive(Debug, Default, PartialEq)]
struct TrainedRun {
    model: Option<String>,
    steps: BTreeMap<u64, String>,
}

/// Runs the mode.
pub(super) fn run(arguments: &[String]) -> Result<()> {
    let (mut runs, mut seed) = (300_u64, 1_u64);
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value = value.with_context(|| format!("{name} needs a number\n\n{USAGE}"))?;
        match name.as_str() {
            "--runs" => runs = value,
            "--seed" => seed = value,
            _ => bail!("unknown option `{name}`\n\n{USAGE}"),
        }
    }
    println!("$ cargo xtask soak chaos --runs {runs} --seed {seed}");
    let target = outside::target()?;
    let folder = target.join("soak/chaos");
    std::fs::create_dir_all(&folder)?;
    // A copy, so that a concurrent build does not change the program that is restarted.
    let ronde = folder.join("ronde");
    std::fs::copy(target.join("release/ronde"), &ronde).context("copying the built program")?;
    let mut references: BTreeMap<&str, TrainedRun> = BTreeMap::new();
    let (mut faults, mut failed) = (0, Vec::new());
    for number in 0..runs {
        let plan = &PLANS[(number % PLANS.len() as u64) as usize];
        if !references.contains_key(plan.name) {
            references.insert(plan.name, undisturbed(&ronde, &folder, plan)?);
        }
        let mut random = SoakRandom::new(seed ^ (number + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        let training = disturbed(&ronde, &folder, plan, number, &mut random)?;
        faults += training.hits;
        let problems = training.problems(&references[plan.name]);
        let verdict = if problems.is_empty() { "ok" } else { "FAILED" };
        println!(
            "{number}: {}, {} workers, {} signals: {verdict}",
            plan.name, training.workers, training.hits
        );
        for problem in &problems {
            println!("    {problem}");
        }
        if !problems.is_empty() {
            failed.push(number);
        }
    }
    println!(
        "{runs} trainings, {faults} signals, {} failed: {failed:?}",
        failed.len()
    );
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("chaos found a difference; the folders of the trainings have their logs"),
    }
}

/// Trains a plan on one worker without faults.
fn undisturbed(ronde: &Path, folder: &Path, plan: &ChaosPlan) -> Result<TrainedRun> {
    let folder = fresh(&folder.join("reference"), RUN_FILE)?;
    let mut child = start(ronde, &folder, &[plan.bits], 1, false)?;
    let status = child.wait().context("waiting for the reference run")?;
    let trained = TrainedRun::read(&folder)?;
    if !status.success() || trained.model.is_none() {
        bail!(
            "the reference of {} failed ({status})\n{}",
            plan.name,
            job::log_ends(&folder)
        );
    }
    Ok(trained)
}

/// A training with faults.
struct Disturbed {
    folder: PathBuf,
    workers: u32,
    /// The number of signals that reached workers.
    hits: usize,
    /// Why it did not end as it should.
    failure: Option<String>,
    shared_memory: BTreeSet<String>,
}

fn disturbed(
    ronde: &Path,
    folder: &Path,
    plan: &ChaosPlan,
    number: u64,
    random: &mut SoakRandom,
) -> Result<Disturbed> {
    let more = (WORKERS_MAX - plan.fewest + 1) as usize;
    let workers = plan.fewest + random.below(more) as u32;
    let saves = random.below(2) == 0;
    let folder = fresh(&folder.join(format!("run-{number}")), &run_file(saves))?;
    let mut training = Disturbed {
        folder,
        workers,
        hits: 0,
        failure: None,
        shared_memory: shared_memory(),
    };
    let mut faults = faults(random);
    let sets = [plan.bits, plan.layout];
    for attempt in 0..=RESUMES_MAX {
        let mut child = start(ronde, &training.folder, &sets, workers, attempt > 0)?;
        let code = training.follow(&mut child, &mut faults)?;
        match code {
            Some(0) => break,
            // All workers were asked to end, and have saved the state.
            Some(STOPPED) if attempt < RESUMES_MAX => faults.clear(),
            _ => {
                let ends = job::log_ends(&training.folder);
                training.failure = Some(format!("ended with {code:?}:\n{ends}"));
                break;
            }
        }
    }
    Ok(training)
}

/// The exit code of a run that was asked to end.
const STOPPED: i32 = 143;

fn run_file(saves: bool) -> String {
    match saves {
        true => format!("{RUN_FILE}\n[checkpoint]\nevery_steps = 50\n"),
        false => RUN_FILE.to_owned(),
    }
}

/// Draws the faults of a training, the earliest first.
fn faults(random: &mut SoakRandom) -> Vec<ChaosFault> {
    let count = 1 + random.below(FAULTS_MAX);
    let mut faults: Vec<ChaosFault> = (0..count)
        .map(|_| {
            let blow = match random.below(10) {
                0..=4 => Blow::Kill,
                5..=8 => Blow::Stop {
                    seconds: 0.1 + STOP_S_MAX * random.unit(),
                },
                _ => Blow::Terminate,
            };
            ChaosFault {
                at_s: FAULTS_WITHIN_S * random.unit(),
                blow,
                victims: 1 + random.below(3) / 2 * (1 + random.below(3)),
                draw: random.split(),
            }
        })
        .collect();
    faults.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    faults
}

fn start(
    ronde: &Path,
    folder: &Path,
    sets: &[&[&str]],
    workers: u32,
    resumes: bool,
) -> Result<Child> {
    let mut command = Command::new(ronde);
    command.args(["train", "run.toml", "--workers", &workers.to_string()]);
    for set in sets.iter().copied().flatten() {
        command.args(["--set", set]);
    }
    if resumes {
        command.arg("--resume");
    }
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("stderr.log"))?;
    command.current_dir(folder).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    command.spawn().context("starting a training")
}

impl Disturbed {
    /// Applies faults until the training ends; returns its exit code, `None` after a signal.
    fn follow(&mut self, child: &mut Child, faults: &mut Vec<ChaosFault>) -> Result<Option<i32>> {
        let begun = ronde_clock::now();
        let mut stopped: Vec<(Instant, Pid)> = Vec::new();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.code());
            }
            let now = ronde_clock::now();
            stopped.retain(|(until, pid)| {
                let is_over = now >= *until;
                if is_over {
                    let _ = kill_process(*pid, Signal::CONT);
                }
                !is_over
            });
            let is_due = |fault: &ChaosFault| (now - begun).as_secs_f64() >= fault.at_s;
            if faults.first().is_some_and(is_due) {
                self.apply(faults.remove(0), child.id(), &mut stopped);
            }
            if now - begun > HANGS_AFTER {
                self.failure = Some("the training hangs".to_owned());
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            ronde_clock::pause(Duration::from_millis(1));
        }
    }

    fn apply(&mut self, fault: ChaosFault, launcher: u32, stopped: &mut Vec<(Instant, Pid)>) {
        let (mut left, mut draw) = (children(launcher), fault.draw);
        for _ in 0..fault.victims.min(left.len()) {
            let pid = left.remove(draw.below(left.len()));
            let signal = match fault.blow {
                Blow::Kill => Signal::KILL,
                Blow::Terminate => Signal::TERM,
                Blow::Stop { seconds } => {
                    stopped.push((ronde_clock::now() + Duration::from_secs_f64(seconds), pid));
                    Signal::STOP
                }
            };
            self.hits += usize::from(kill_process(pid, signal).is_ok());
        }
    }

    /// Returns everything that is wrong.
    fn problems(&self, reference: &TrainedRun) -> Vec<String> {
        let mut found: Vec<String> = self.failure.iter().cloned().collect();
        match TrainedRun::read(&self.folder) {
            Err(error) => found.push(format!("{error:#}")),
            Ok(trained) if self.failure.is_none() => found.extend(trained.differences(reference)),
            Ok(_) => {}
        }
        let begun = ronde_clock::now();
        let is_late = || ronde_clock::now() - begun > VANISH_MAX;
        while !processes_in(&self.folder).is_empty() && !is_late() {
            ronde_clock::pause(Duration::from_millis(20));
        }
        let left = processes_in(&self.folder);
        if !left.is_empty() {
            found.push(format!("processes are left: {left:?}"));
        }
        let left: Vec<String> = shared_memory()
            .difference(&self.shared_memory)
            .cloned()
            .collect();
        if !left.is_empty() {
            found.push(format!("shared memory is left: {left:?}"));
        }
        found
    }
}

impl TrainedRun {
    /// Reads the events of the run in a folder.
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("out/events.jsonl");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path:?}"))?;
        let mut trained = Self::default();
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            match event["event"].as_str() {
                Some("step_committed") => {
                    let values = format!("{} {}", event["loss"], event["gradient_norm"]);
                    let step = event["step"].as_u64().unwrap_or_default();
                    trained.steps.insert(step, values);
                }
                Some("model_saved") => trained.model = event["blake3"].as_str().map(str::to_owned),
                _ => {}
            }
        }
        Ok(trained)
    }

    fn differences(&self, reference: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.model != reference.model {
            found.push(format!(
                "the model is {:?}, expected {:?}",
                self.model, reference.model
            ));
        }
        let mut missing = reference
            .steps
            .keys()
            .filter(|step| !self.steps.contains_key(step));
        if let Some(first) = missing.next() {
            let count = 1 + missing.count();
            found.push(format!(
                "the events lack {count} steps from step {first} on"
            ));
        }
        let differs = |(step, values): &(&u64, &String)| {
            reference
                .steps
                .get(step)
                .is_none_or(|expected| expected != *values)
        };
        if let Some((step, values)) = self.steps.iter().find(differs) {
            found.push(format!("step {step} has loss and gradient norm {values}"));
        }
        found
    }
}

/// Returns the worker processes of a launcher.
fn children(launcher: u32) -> Vec<Pid> {
    let is_worker = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let parent = after_name.split_whitespace().nth(1);
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&line).into_owned();
        parent == Some(&launcher.to_string()) && words.split('\0').any(|word| word == "__worker")
    };
    let mut all: Vec<u32> = process_ids().filter(is_worker).collect();
    all.sort_unstable();
    all.into_iter()
        .filter_map(|pid| Pid::from_raw(pid as i32))
        .collect()
}

/// Returns the processes whose working directory is a folder.
fn processes_in(folder: &Path) -> Vec<u32> {
    let is_there = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|found| found.starts_with(folder))
    };
    process_ids().filter(is_there).collect()
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the names of the files in shared memory.
fn shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_faults() {
        let drawn = |seed| format!("{:?}", faults(&mut SoakRandom::new(seed)));
        assert_eq!(drawn(3), drawn(3));
        assert_ne!(drawn(3), drawn(4));
    }

    #[test]
    fn every_difference_from_the_reference_is_reported() {
        let trained = |model: &str, steps: &[(u64, &str)]| TrainedRun {
            model: Some(model.to_owned()),
            steps: steps
                .iter()
                .map(|(step, values)| (*step, (*values).to_owned()))
                .collect(),
        };
        let reference = trained("aa", &[(0, "1 2"), (1, "1 3")]);
        assert_eq!(reference.differences(&reference), [""; 0]);
        for (other, expected) in [
            (trained("bb", &[(0, "1 2"), (1, "1 3")]), "the model is"),
            (trained("aa", &[(0, "1 2")]), "lack 1 steps from step 1 on"),
            (trained("aa", &[(0, "1 2"), (1, "1 4")]), "step 1 has"),
        ] {
            let found = other.differences(&reference).join("\n");
            assert!(found.contains(expected), "{found}");
        }
    }
}
