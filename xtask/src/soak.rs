//! `cargo xtask soak`: trains with the built program while its workers are killed and stopped, all from
//! one seed, and compares every step and the model with those of an undisturbed run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::{cargo, outside};
use account::Account;
use crowd::Crowd;
use faults::{Faults, Kind};
use job::Job;
use options::Options;
use recovery::Strike;
use report::Report;

mod account;
mod clock;
mod crowd;
mod faults;
mod job;
mod options;
mod recovery;
mod report;

/// How long one turn waits.
const TURN: Duration = Duration::from_millis(2);
/// A run in which no step is committed for this long, or no worker may be met, hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// The whole soak, as the command line wants it.
pub(crate) fn soak(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    cargo(&["build", "--release"])?;
    run(&options)
}

/// A short one with every kind of fault: a part of the tests. The program has been built.
pub(crate) fn short() -> Result<()> {
    run(&Options::short())
}

fn run(options: &Options) -> Result<()> {
    println!("$ {}", options.command());
    let target = outside::target()?;
    let folder = target.join("soak");
    std::fs::create_dir_all(&folder)?;
    // A copy: a build meanwhile must not change what is started again.
    let ronde = folder.join("ronde");
    std::fs::copy(target.join("release/ronde"), &ronde).context("copying the built program")?;
    let undisturbed = undisturbed(&ronde, &folder, options)?;
    let begun = clock::now();
    let mut report = Report::default();
    let mut number = 0;
    while number == 0 || clock::now() - begun < options.lasts() {
        let folder = fresh(&folder.join(format!("job-{number}")), options)?;
        let faults = Faults::new(options.seed, number, &options.kinds, options.every_s);
        let disturbed =
            disturb(&ronde, &folder, options, faults).with_context(|| options.command())?;
        report.add(&disturbed, &undisturbed, options.workers, &folder);
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

/// A run that was disturbed: its events, and what was done to it.
pub(crate) struct Disturbed {
    events: Vec<Value>,
    strikes: Vec<Strike>,
    /// Why it did not end as it should.
    failure: Option<String>,
}

/// An empty folder with a run file.
fn fresh(folder: &Path, options: &Options) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("run.toml"), options.run_file())?;
    Ok(folder.to_owned())
}

/// The undisturbed run, by one worker. It is kept, by program and run file.
fn undisturbed(ronde: &Path, folder: &Path, options: &Options) -> Result<Account> {
    let mut hasher = DefaultHasher::new();
    let program = std::fs::read(ronde).with_context(|| format!("reading {}", ronde.display()))?;
    (program, options.run_file()).hash(&mut hasher);
    let kept = folder.join(format!("undisturbed-{:016x}.jsonl", hasher.finish()));
    if let Ok(text) = std::fs::read_to_string(&kept) {
        let events: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        return Ok(Account::of(&events.context("reading the undisturbed run")?));
    }
    println!("soak: the undisturbed run");
    let folder = fresh(&folder.join("undisturbed"), options)?;
    let arguments = ["--workers", "1", "--set", "elastic.enabled=false"];
    let (status, events) = Job::start(ronde, &folder, &arguments)?.wait()?;
    let account = Account::of(&events);
    if !status.success() || account.blake3.is_none() {
        bail!(
            "the undisturbed run failed ({status})\n{}",
            job::last_words(&folder)
        );
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    std::fs::write(kept, lines.join("\n"))?;
    Ok(account)
}

/// Trains once while faults happen.
fn disturb(ronde: &Path, folder: &Path, options: &Options, faults: Faults) -> Result<Disturbed> {
    let workers = options.workers.to_string();
    let mut run = Run {
        job: Job::start(ronde, folder, &["--workers", &workers])?,
        crowd: Crowd::default(),
        events: Vec::new(),
        strikes: Vec::new(),
        later: Vec::new(),
        faults,
        workers: options.workers,
        moved: clock::now(),
    };
    let failure = run.follow()?;
    Ok(Disturbed {
        events: run.events,
        strikes: run.strikes,
        failure,
    })
}

/// A run under way.
struct Run {
    job: Job,
    crowd: Crowd,
    events: Vec<Value>,
    strikes: Vec<Strike>,
    /// Signals that follow a fault.
    later: Vec<(Instant, u32, Signal)>,
    faults: Faults,
    workers: u32,
    /// When a step was committed last.
    moved: Instant,
}

impl Run {
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
                let words = || format!("it ended with {status}:\n{}", self.job.last_words());
                return Ok((!status.success()).then(words));
            }
            let now = clock::now();
            if due.is_none() && self.events.iter().any(|e| e["event"] == "step_committed") {
                due = Some(now + Duration::from_secs_f64(fault.after_s));
            }
            self.send_what_is_due(now);
            if due.is_some_and(|due| now >= due) && !is_over && self.strike(&fault) {
                fault = self.faults.next();
                due = Some(now + Duration::from_secs_f64(fault.after_s));
            }
            let hangs = now > self.moved + PATIENCE;
            let waits = due.is_some_and(|due| !is_over && now > due + PATIENCE);
            if hangs || waits {
                let what = match hangs {
                    true => "no step was committed",
                    false => "the workers were not complete again",
                };
                let words = self.job.last_words();
                return Ok(Some(format!("{what} for {PATIENCE:?}:\n{words}")));
            }
            clock::pause(TURN);
        }
    }

    /// Takes in what the run has told; whether it is over.
    fn listen(&mut self) -> Result<bool> {
        while let Some(event) = self.job.next()? {
            self.crowd.hear(&event);
            if event["event"] == "step_committed" {
                self.moved = clock::now();
            }
            self.events.push(event);
        }
        self.crowd.look();
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

    fn send_what_is_due(&mut self, now: Instant) {
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, u32, Signal)> = due;
        for (_, pid, signal) in due {
            self.crowd.send(pid, signal);
        }
    }

    /// Does a fault; false when somebody who holds the state would not be left.
    fn strike(&mut self, fault: &faults::Fault) -> bool {
        let victims = fault.pick(&self.crowd.present(), self.workers);
        if victims.is_empty() || !self.crowd.survives(&victims) {
            return false;
        }
        let (at, now) = (clock::unix_s(), clock::now());
        let second = now + Duration::from_secs_f64(fault.lasts_s);
        for (index, &pid) in victims.iter().enumerate() {
            match fault.kind {
                Kind::Stop => {
                    self.crowd.send(pid, Signal::STOP);
                    self.later.push((second, pid, Signal::CONT));
                }
                Kind::Two if index == 1 => self.later.push((second, pid, Signal::KILL)),
                _ => drop(self.crowd.send(pid, Signal::KILL)),
            }
        }
        let killed = match fault.kind {
            Kind::Stop => 0,
            _ => victims.len() as u64,
        };
        println!(
            "soak: {} of {} workers: {victims:?}",
            fault.kind.name(),
            victims.len()
        );
        self.strikes.push(Strike {
            kind: fault.kind,
            at,
            killed,
        });
        true
    }
}
