//! `cargo xtask soak`: trains with the built program while its workers are killed and stopped, its coordinator
//! dies and a cable is cut, all from one seed, and compares every step and the model with those of an
//! reference run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::{cargo, clock, outside};
use account::RunAccount;
use faults::{FaultKind, FaultSequence, SoakFault};
use hosts::NamespacePair;
use job::SoakJob;
use layout::JobLayout;
use options::SoakOptions;
use recovery::AppliedFault;
use report::SoakReport;
use workers::WorkerTracker;

mod account;
mod faults;
mod hosts;
mod job;
mod layout;
mod options;
mod recovery;
mod report;
mod workers;

/// How long one turn waits.
const TURN: Duration = Duration::from_millis(2);
/// A run in which no step is committed for this long, or no worker may be met, hangs.
const STALL_LIMIT: Duration = Duration::from_secs(90);

/// The whole soak, as the command line wants it.
pub(crate) fn soak(arguments: &[String]) -> Result<()> {
    let options = SoakOptions::parse(arguments)?;
    cargo(&["build", "--release"])?;
    run(&options)
}

/// A short one with every kind of fault: a part of the tests. The program has been built.
pub(crate) fn short() -> Result<()> {
    run(&SoakOptions::short())
}

fn run(options: &SoakOptions) -> Result<()> {
    println!("$ {}", options.command());
    let target = outside::target()?;
    let folder = target.join("soak");
    std::fs::create_dir_all(&folder)?;
    // A copy: a build meanwhile must not change what is started again.
    let ronde = folder.join("ronde");
    std::fs::copy(target.join("release/ronde"), &ronde).context("copying the built program")?;
    let reference = reference(&ronde, &folder, options)?;
    let begun = clock::now();
    let mut report = SoakReport::default();
    let layouts = layouts(options)?;
    let mut number = 0;
    while number < layouts.len() || clock::now() - begun < options.lasts() {
        let folder = fresh(&folder.join(format!("job-{number}")), options)?;
        let layout = layouts[number % layouts.len()];
        let (seed, every_s) = (options.seed, options.every_s);
        let faults = FaultSequence::new(seed, number as u64, layout, &options.kinds, every_s);
        let disturbed =
            disturb(&ronde, &folder, options, layout, faults).with_context(|| options.command())?;
        report.add(&disturbed, &reference, options.workers, &folder);
        number += 1;
    }
    println!("{}", report.text(options, clock::now() - begun));
    if !report.is_fine() {
        bail!(
            "the soak has found a difference; again with: {}",
            options.command()
        );
    }
    Ok(())
}

/// How the jobs are laid out, in turns. What this machine does not permit is left out with a word.
fn layouts(options: &SoakOptions) -> Result<Vec<JobLayout>> {
    let mut layouts = JobLayout::needed(&options.kinds);
    if layouts.contains(&JobLayout::TwoHosts) {
        let permitted = outside::network_namespaces().and_then(|()| NamespacePair::new().map(drop));
        if let Err(reason) = permitted {
            println!("soak: no cable is cut: {reason:#}");
            layouts.retain(|layout| *layout != JobLayout::TwoHosts);
        }
    }
    if layouts.is_empty() {
        bail!("none of these faults can be done on this machine");
    }
    Ok(layouts)
}

/// A run that was disturbed: its events, and what was done to it.
pub(crate) struct FaultyRun {
    events: Vec<Value>,
    applied: Vec<AppliedFault>,
    /// Why it did not end as it should.
    failure: Option<String>,
}

/// An empty folder with a run file.
fn fresh(folder: &Path, options: &SoakOptions) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("run.toml"), options.run_file())?;
    Ok(folder.to_owned())
}

/// The reference run, by one worker. It is kept, by program and run file.
fn reference(ronde: &Path, folder: &Path, options: &SoakOptions) -> Result<RunAccount> {
    let mut hasher = DefaultHasher::new();
    let program = std::fs::read(ronde).with_context(|| format!("reading {}", ronde.display()))?;
    (program, options.run_file()).hash(&mut hasher);
    let kept = folder.join(format!("reference-{:016x}.jsonl", hasher.finish()));
    if let Ok(text) = std::fs::read_to_string(&kept) {
        let events: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        return Ok(RunAccount::of(
            &events.context("reading the reference run")?,
        ));
    }
    println!("soak: the reference run");
    let folder = fresh(&folder.join("reference"), options)?;
    let arguments = ["--set", "elastic.enabled=false"];
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

/// Trains once while faults happen.
fn disturb(
    ronde: &Path,
    folder: &Path,
    options: &SoakOptions,
    layout: JobLayout,
    faults: FaultSequence,
) -> Result<FaultyRun> {
    let mut run = SoakRun {
        job: SoakJob::start(ronde, folder, options.workers, layout, &[])?,
        workers_seen: WorkerTracker::default(),
        events: Vec::new(),
        applied: Vec::new(),
        later: Vec::new(),
        faults,
        workers: options.workers,
        moved: clock::now(),
    };
    let failure = run.follow()?;
    Ok(FaultyRun {
        events: run.events,
        applied: run.applied,
        failure,
    })
}

/// What follows a fault after a while.
enum DelayedAction {
    /// A signal to a worker.
    Signal(u32, Signal),
    /// The cable is mended.
    Heal,
}

/// A run under way.
struct SoakRun {
    job: SoakJob,
    workers_seen: WorkerTracker,
    events: Vec<Value>,
    applied: Vec<AppliedFault>,
    /// What follows a fault.
    later: Vec<(Instant, DelayedAction)>,
    faults: FaultSequence,
    workers: u32,
    /// When a step was committed last.
    moved: Instant,
}

impl SoakRun {
    /// Lets faults happen until the run ends. Gives the reason when it does not end as it should.
    fn follow(&mut self) -> Result<Option<String>> {
        let mut fault = self.faults.next();
        let mut due: Option<Instant> = None;
        loop {
            // First the end, then the events, so that none is missed.
            let ended = self.job.ended()?;
            let is_over = self.listen()?;
            if let Some(status) = ended {
                self.drain()?;
                let words = || format!("it ended with {status}:\n{}", self.job.log_ends());
                return Ok((!status.success()).then(words));
            }
            let now = clock::now();
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
            clock::pause(TURN);
        }
    }

    /// Takes in what the run has told; whether it is over.
    fn listen(&mut self) -> Result<bool> {
        while let Some(event) = self.job.next()? {
            self.workers_seen.record(&event);
            if event["event"] == "step_committed" {
                self.moved = clock::now();
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

    /// Takes in what was written before the end.
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

    /// Does a fault; false when it cannot be done just now: nobody who holds the state would be left, or
    /// what it is about is not there.
    fn apply(&mut self, fault: &SoakFault) -> Result<bool> {
        let victims = match fault.kind.cuts() {
            true => self.workers_seen.on(NamespacePair::OTHER),
            false => fault.pick(&self.workers_seen.present(), self.workers),
        };
        let needs_victims = fault.kind != FaultKind::Coordinator;
        if needs_victims && victims.is_empty() || !self.workers_seen.survives(&victims) {
            return Ok(false);
        }
        let (at, now) = (clock::unix_s(), clock::now());
        let is_done = match (fault.kind.kills_coordinator(), fault.kind.cuts()) {
            (true, _) => self.job.kill_coordinator(),
            // Where they are only coming back nothing would be lost.
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

    /// Signals what a fault is for each of its victims, and notes what follows it at the moment `second`.
    /// How many are killed.
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
