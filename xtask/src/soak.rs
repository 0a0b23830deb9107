//! `cargo xtask soak`: trains with the built program while workers are killed and stopped, the coordinator is
//! killed and a network cable is cut, all from one seed, and compares every step and the model with a reference
//! run without faults. Then it simulates clusters, trains small models in every layout of at most eight ranks, runs the
//! tests of Slurm that take minutes, and trains examples to their end. `cargo xtask soak models` does only the last.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use account::RunAccount;
use anyhow::{Context, Result, bail};
use fault_kind::FaultKind;
use faults::{FaultSequence, SoakFault};
use hosts::NamespacePair;
use job::SoakJob;
use layout::JobLayout;
use options::SoakOptions;
use recovery::AppliedFault;
use report::{Reference, SoakReport};
use rustix::process::Signal;
use serde_json::Value;
use workers::WorkerTracker;

use crate::steps::Outcome;
use crate::{FULL, cargo, fuzz, outside};

mod account;
mod chaos;
mod fault_kind;
mod faults;
mod hosts;
mod job;
mod layout;
mod mode;
mod options;
mod recovery;
mod report;
mod workers;

/// The polling interval.
const TURN: Duration = Duration::from_millis(2);
/// The time after which a run without a committed step, or without a worker for the next fault, counts as hanging.
const STALL_LIMIT: Duration = Duration::from_secs(90);

/// The argument that trains only the examples whose quality is known.
const MODELS: &str = "models";

/// The argument that trains shortly in every layout with many faults.
const CHAOS: &str = "chaos";

/// The seed of the reference run, which is the default of run files.
const FIRST_SEED: u64 = 42;
/// The number of trainings with whose mean accuracy that of exchanges without waiting is compared.
const COMPARED_SEEDS: u64 = 8;

/// Runs the soak that the command line specifies.
pub(crate) fn soak(arguments: &[String]) -> Result<()> {
    if matches!(arguments, [only] if only == MODELS) {
        return train_examples();
    }
    if let [first, rest @ ..] = arguments
        && first == CHAOS
    {
        build()?;
        return chaos::run(rest);
    }
    let options = SoakOptions::parse(arguments)?;
    build()?;
    run(&options)?;
    if let Some(seeds) = options.simulated_seeds() {
        cargo(&[
            "run",
            "--release",
            "-p",
            "ronde-sim",
            "--",
            "--seeds",
            &seeds,
        ])?;
    }
    if options.simulated_seeds().is_some() {
        cargo_test("pipelines", &["--ignored", "--nocapture"])?;
        cargo_test(
            "command",
            &[
                "--ignored",
                "jobs_on_slurm",
                "jobs_on_hosts",
                "--test-threads=1",
            ],
        )?;
        train_examples()?;
    }
    if options.fuzz_s > 0
        && let Outcome::Skipped(reason) = fuzz::run(options.fuzz_s, &[])?
    {
        println!("fuzz targets: skipped: {reason}");
    }
    Ok(())
}

/// Builds the command with the features of the tests, and the dependencies of examples, so that nothing is compiled twice.
fn build() -> Result<()> {
    let built = ["test", "--release", "--workspace", "--features", FULL];
    cargo(&[&built[..], &["--no-run"]].concat())
}

/// Runs tests of one suite, with the features of the tests.
fn cargo_test(suite: &str, arguments: &[&str]) -> Result<()> {
    let built = ["test", "--release", "--workspace", "--features", FULL];
    cargo(&[&built[..], &["--test", suite, "--"], arguments].concat())
}

/// Trains examples to their end, one after the other, and checks the quality that their comments state.
fn train_examples() -> Result<()> {
    let all = ["--include-ignored", "--nocapture", "--test-threads=1"];
    cargo_test("command", &[&["model_quality"], &all[..]].concat())
}

/// Runs a short soak with every kind of fault, as a part of the tests. The program must have been built.
pub(crate) fn short() -> Result<()> {
    run(&SoakOptions::short())
}

fn run(options: &SoakOptions) -> Result<()> {
    println!("$ {}", options.command());
    let target = outside::target()?;
    let folder = target.join("soak");
    std::fs::create_dir_all(&folder)?;
    // A copy, so that a concurrent build does not change the program that is restarted.
    let ronde = folder.join("ronde");
    std::fs::copy(target.join("release/ronde"), &ronde).context("copying the built program")?;
    let reference = reference(&ronde, &folder, options)?;
    let begun = ronde_clock::now();
    let mut report = SoakReport::default();
    let layouts = layouts(options)?;
    let mut number = 0;
    while number < layouts.len() || ronde_clock::now() - begun < options.lasts() {
        let job = folder.join(format!("job-{number}"));
        let folder = fresh(&job, &options.run_file())?;
        let layout = layouts[number % layouts.len()];
        let (seed, every_s) = (options.seed, options.every_s);
        let faults = FaultSequence::new(seed, number as u64, layout, &options.kinds, every_s);
        let disturbed = disturb(&ronde, &folder, options, layout, faults, number)
            .with_context(|| options.command())?;
        report.add(&disturbed, &reference, options.workers, &folder);
        number += 1;
    }
    report.conclude(&reference);
    println!(
        "{}",
        report.text(options, &reference, ronde_clock::now() - begun)
    );
    if !report.is_fine() {
        bail!(
            "the soak found a difference; repeat it with: {}",
            options.command()
        );
    }
    Ok(())
}

/// Returns the layouts of the jobs, which are used in rotation. Reports layouts that this machine does not permit.
fn layouts(options: &SoakOptions) -> Result<Vec<JobLayout>> {
    let mut layouts = JobLayout::needed(&options.kinds);
    if layouts.contains(&JobLayout::TwoHosts) {
        let permitted = outside::network_namespaces().and_then(|()| NamespacePair::new().map(drop));
        if let Err(reason) = permitted {
            println!("soak: skipping faults that cut the cable: {reason:#}");
            layouts.retain(|layout| *layout != JobLayout::TwoHosts);
        }
    }
    if layouts.is_empty() {
        bail!("cannot apply any of these faults on this machine");
    }
    Ok(layouts)
}

/// A run with faults: its events and the applied faults.
pub(crate) struct FaultyRun {
    events: Vec<Value>,
    applied: Vec<AppliedFault>,
    /// The reason why the run failed, if it did.
    failure: Option<String>,
}

/// Creates an empty folder with a run file.
fn fresh(folder: &Path, run_file: &str) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("run.toml"), run_file)?;
    Ok(folder.to_owned())
}

/// Returns what the jobs are compared with.
fn reference(ronde: &Path, folder: &Path, options: &SoakOptions) -> Result<Reference> {
    if options.mode.repeats_bits() {
        let account = undisturbed(ronde, folder, &options.run_file(), FIRST_SEED)?;
        return Ok(Reference::SameBits(Box::new(account)));
    }
    let run_file = options.compared_run_file();
    let accuracies = (FIRST_SEED..FIRST_SEED + COMPARED_SEEDS).map(|seed| {
        let account = undisturbed(ronde, folder, &run_file, seed)?;
        account.accuracy.context("a run without an evaluation")
    });
    Ok(Reference::Accuracy(accuracies.collect::<Result<_>>()?))
}

/// Returns a run on one worker without faults. It is cached by program, run file and seed.
fn undisturbed(ronde: &Path, folder: &Path, run_file: &str, seed: u64) -> Result<RunAccount> {
    let mut hasher = DefaultHasher::new();
    let program = std::fs::read(ronde).with_context(|| format!("reading {}", ronde.display()))?;
    (program, run_file, seed).hash(&mut hasher);
    let kept = folder.join(format!("reference-{:016x}.jsonl", hasher.finish()));
    if let Ok(text) = std::fs::read_to_string(&kept) {
        let events: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        return Ok(RunAccount::of(
            &events.context("reading the reference run")?,
        ));
    }
    println!("soak: training the reference run");
    let folder = fresh(&folder.join("reference"), run_file)?;
    let seed = format!("run.seed={seed}");
    let arguments = ["--set", "elastic.enabled=false", "--set", &seed];
    let job = SoakJob::start(ronde, &folder, 1, JobLayout::Here, &arguments)?;
    let (status, events) = job.wait()?;
    let account = RunAccount::of(&events);
    if !status.success() || account.blake3.is_none() {
        bail!(
            "the reference run failed ({status})\n{}",
            job::log_ends(&folder)
        );
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    std::fs::write(kept, lines.join("\n"))?;
    Ok(account)
}

/// Trains once with faults.
fn disturb(
    ronde: &Path,
    folder: &Path,
    options: &SoakOptions,
    layout: JobLayout,
    faults: FaultSequence,
    number: usize,
) -> Result<FaultyRun> {
    // Only trainings with the bits of the reference have its seed.
    let other = match options.mode.repeats_bits() {
        true => 0,
        false => number as u64,
    };
    let seed = format!("run.seed={}", FIRST_SEED + other);
    let settings = options.settings.iter().chain([&seed]);
    let settings: Vec<&str> = settings.flat_map(|set| ["--set", set]).collect();
    let mut run = SoakRun {
        job: SoakJob::start(ronde, folder, options.workers, layout, &settings)?,
        workers_seen: WorkerTracker::default(),
        events: Vec::new(),
        applied: Vec::new(),
        later: Vec::new(),
        faults,
        workers: options.workers,
        moved: ronde_clock::now(),
    };
    let failure = run.follow()?;
    Ok(FaultyRun {
        events: run.events,
        applied: run.applied,
        failure,
    })
}

/// A delayed action of a fault.
enum DelayedAction {
    /// Send a signal to a worker.
    Signal(u32, Signal),
    /// Repair the cable.
    Heal,
}

/// A run in progress.
struct SoakRun {
    job: SoakJob,
    workers_seen: WorkerTracker,
    events: Vec<Value>,
    applied: Vec<AppliedFault>,
    /// The delayed actions.
    later: Vec<(Instant, DelayedAction)>,
    faults: FaultSequence,
    workers: u32,
    /// The time of the last committed step.
    moved: Instant,
}

impl SoakRun {
    /// Applies faults until the run ends. Returns the reason if the run failed.
    fn follow(&mut self) -> Result<Option<String>> {
        let mut fault = self.faults.next();
        let mut due: Option<Instant> = None;
        loop {
            // Checks the end before reading events, so that no event is missed.
            let ended = self.job.ended()?;
            let is_over = self.listen()?;
            if let Some(status) = ended {
                self.drain()?;
                let words = || format!("the run ended with {status}:\n{}", self.job.log_ends());
                return Ok((!status.success()).then(words));
            }
            let now = ronde_clock::now();
            if due.is_none() && self.events.iter().any(|e| e["event"] == "step_committed") {
                due = Some(now + Duration::from_secs_f64(fault.after_s));
            }
            self.run_due_actions(now)?;
            if due.is_some_and(|due| now >= due) && !is_over && self.apply(&fault)? {
                fault = self.faults.next();
                due = Some(now + Duration::from_secs_f64(fault.after_s));
            }
            let hangs = now > self.moved + STALL_LIMIT;
            let waits = due.is_some_and(|due| !is_over && now > due + STALL_LIMIT);
            if hangs || waits {
                let what = match hangs {
                    true => "no step was committed",
                    false => "the workers were not complete again",
                };
                let words = self.job.log_ends();
                return Ok(Some(format!("{what} for {STALL_LIMIT:?}:\n{words}")));
            }
            ronde_clock::pause(TURN);
        }
    }

    /// Reads the events of the run; returns whether the run has finished.
    fn listen(&mut self) -> Result<bool> {
        while let Some(event) = self.job.next()? {
            self.workers_seen.record(&event);
            if event["event"] == "step_committed" {
                self.moved = ronde_clock::now();
            }
            self.events.push(event);
        }
        self.workers_seen.update();
        Ok(self
            .events
            .iter()
            .rev()
            .take(50)
            .any(|e| e["event"] == "model_saved"))
    }

    /// Reads the remaining events after the end.
    fn drain(&mut self) -> Result<()> {
        self.events.extend(self.job.rest()?);
        Ok(())
    }

    fn run_due_actions(&mut self, now: Instant) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, DelayedAction)> = due;
        for (_, what) in due {
            match what {
                DelayedAction::Signal(pid, signal) => drop(self.workers_seen.send(pid, signal)),
                DelayedAction::Heal => {
                    self.job.heal()?;
                    self.workers_seen.cut_off(NamespacePair::OTHER, false);
                }
            }
        }
        Ok(())
    }

    /// Applies a fault. Returns false if it cannot be applied now: no worker with the state would remain, or the
    /// target of the fault does not exist.
    fn apply(&mut self, fault: &SoakFault) -> Result<bool> {
        let victims = match fault.kind.cuts() {
            true => self.workers_seen.on(NamespacePair::OTHER),
            false => fault.pick(&self.workers_seen.present(), self.workers),
        };
        let needs_victims = fault.kind != FaultKind::Coordinator;
        if needs_victims && victims.is_empty() || !self.workers_seen.survives(&victims) {
            return Ok(false);
        }
        let (at, now) = (ronde_clock::unix_s(), ronde_clock::now());
        let is_done = match (fault.kind.kills_coordinator(), fault.kind.cuts()) {
            (true, _) => self.job.kill_coordinator(),
            // Workers that are only rejoining have nothing to lose.
            (_, true) if self.job.is_cut() || !self.workers_seen.take_part(&victims) => false,
            (_, true) => {
                self.workers_seen.cut_off(NamespacePair::OTHER, true);
                self.job.cut(fault.cut()).map(|()| true)?
            }
            _ => true,
        };
        if !is_done {
            return Ok(false);
        }
        let killed = self.signal_victims(
            fault,
            &victims,
            now + Duration::from_secs_f64(fault.lasts_s),
        );
        let (kind, count) = (fault.kind, victims.len());
        println!("soak: {}, {count} workers: {victims:?}", kind.name());
        self.applied.push(AppliedFault { kind, at, killed });
        Ok(true)
    }

    /// Sends the fault's signal to each of its victims, and schedules its delayed actions for the time `second`.
    /// Returns the number of killed workers.
    fn signal_victims(&mut self, fault: &SoakFault, victims: &[u32], second: Instant) -> u64 {
        for (index, &pid) in victims.iter().enumerate() {
            match fault.kind {
                FaultKind::Stop => {
                    self.workers_seen.send(pid, Signal::STOP);
                    self.later
                        .push((second, DelayedAction::Signal(pid, Signal::CONT)));
                }
                FaultKind::Two if index == 1 => {
                    self.later
                        .push((second, DelayedAction::Signal(pid, Signal::KILL)));
                }
                FaultKind::Leaderless => self
                    .later
                    .push((second, DelayedAction::Signal(pid, Signal::KILL))),
                FaultKind::Coordinator | FaultKind::Cut | FaultKind::OneWay => {}
                FaultKind::Kill | FaultKind::Two | FaultKind::Half => {
                    self.workers_seen.send(pid, Signal::KILL);
                }
            }
        }
        match fault.kind {
            FaultKind::Stop | FaultKind::Coordinator => 0,
            FaultKind::Cut | FaultKind::OneWay => {
                self.later.push((second, DelayedAction::Heal));
                0
            }
            _ => victims.len() as u64,
        }
    }
}
