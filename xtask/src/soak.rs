//! `cargo xtask soak`: trains with the built program while its workers are killed and stopped, its coordinator
//! dies and a cable is cut, all from one seed, and compares every step and the model with those of an
//! undisturbed run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::{cargo, outside};
use account::Account;
use crowd::Crowd;
use faults::{Fault, Faults, Kind};
use hosts::Hosts;
use job::Job;
use layout::Layout;
use options::Options;
use recovery::Strike;
use report::Report;

mod account;
mod clock;
mod crowd;
mod faults;
mod hosts;
mod job;
mod layout;
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
    let layouts = layouts(options)?;
    let mut number = 0;
    while number < layouts.len() || clock::now() - begun < options.lasts() {
        let folder = fresh(&folder.join(format!("job-{number}")), options)?;
        let layout = layouts[number % layouts.len()];
        let (seed, every_s) = (options.seed, options.every_s);
        let faults = Faults::new(seed, number as u64, layout, &options.kinds, every_s);
        let disturbed =
            disturb(&ronde, &folder, options, layout, faults).with_context(|| options.command())?;
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

/// How the jobs are laid out, in turns. What this machine does not permit is left out with a word.
fn layouts(options: &Options) -> Result<Vec<Layout>> {
    let mut layouts = Layout::needed(&options.kinds);
    if layouts.contains(&Layout::Hosts) {
        let permitted = outside::network_namespaces().and_then(|()| Hosts::new().map(drop));
        if let Err(reason) = permitted {
            println!("soak: no cable is cut: {reason:#}");
            layouts.retain(|layout| *layout != Layout::Hosts);
        }
    }
    if layouts.is_empty() {
        bail!("none of these faults can be done on this machine");
    }
    Ok(layouts)
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
    let arguments = ["--set", "elastic.enabled=false"];
    let job = Job::start(ronde, &folder, 1, Layout::Here, &arguments)?;
    let (status, events) = job.wait()?;
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
fn disturb(
    ronde: &Path,
    folder: &Path,
    options: &Options,
    layout: Layout,
    faults: Faults,
) -> Result<Disturbed> {
    let mut run = Run {
        job: Job::start(ronde, folder, options.workers, layout, &[])?,
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

/// What follows a fault after a while.
enum Later {
    /// A signal to a worker.
    Signal(u32, Signal),
    /// The cable is mended.
    Heal,
}

/// A run under way.
struct Run {
    job: Job,
    crowd: Crowd,
    events: Vec<Value>,
    strikes: Vec<Strike>,
    /// What follows a fault.
    later: Vec<(Instant, Later)>,
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
            self.do_what_is_due(now)?;
            if due.is_some_and(|due| now >= due) && !is_over && self.strike(&fault)? {
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

    fn do_what_is_due(&mut self, now: Instant) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, Later)> = due;
        for (_, what) in due {
            match what {
                Later::Signal(pid, signal) => drop(self.crowd.send(pid, signal)),
                Later::Heal => {
                    self.job.heal()?;
                    self.crowd.cut_off(Hosts::OTHER, false);
                }
            }
        }
        Ok(())
    }

    /// Does a fault; false when it cannot be done just now: nobody who holds the state would be left, or
    /// what it is about is not there.
    fn strike(&mut self, fault: &Fault) -> Result<bool> {
        let victims = match fault.kind.cuts() {
            true => self.crowd.on(Hosts::OTHER),
            false => fault.pick(&self.crowd.present(), self.workers),
        };
        let needs_victims = fault.kind != Kind::Coordinator;
        if needs_victims && victims.is_empty() || !self.crowd.survives(&victims) {
            return Ok(false);
        }
        let (at, now) = (clock::unix_s(), clock::now());
        let is_done = match (fault.kind.kills_coordinator(), fault.kind.cuts()) {
            (true, _) => self.job.kill_coordinator(),
            // Where they are only coming back nothing would be lost.
            (_, true) if self.job.is_cut() || !self.crowd.take_part(&victims) => false,
            (_, true) => {
                self.crowd.cut_off(Hosts::OTHER, true);
                self.job.cut(fault.cut()).map(|()| true)?
            }
            _ => true,
        };
        if !is_done {
            return Ok(false);
        }
        let killed = self.meet(
            fault,
            &victims,
            now + Duration::from_secs_f64(fault.lasts_s),
        );
        let (kind, count) = (fault.kind, victims.len());
        println!("soak: {}, {count} workers: {victims:?}", kind.name());
        self.strikes.push(Strike { kind, at, killed });
        Ok(true)
    }

    /// Signals what a fault is for each of its victims, and notes what follows it at the moment `second`.
    /// How many are killed.
    fn meet(&mut self, fault: &Fault, victims: &[u32], second: Instant) -> u64 {
        for (index, &pid) in victims.iter().enumerate() {
            match fault.kind {
                Kind::Stop => {
                    self.crowd.send(pid, Signal::STOP);
                    self.later.push((second, Later::Signal(pid, Signal::CONT)));
                }
                Kind::Two if index == 1 => {
                    self.later.push((second, Later::Signal(pid, Signal::KILL)));
                }
                Kind::Leaderless => self.later.push((second, Later::Signal(pid, Signal::KILL))),
                Kind::Coordinator | Kind::Cut | Kind::OneWay => {}
                Kind::Kill | Kind::Two | Kind::Half => {
                    self.crowd.send(pid, Signal::KILL);
                }
            }
        }
        match fault.kind {
            Kind::Stop | Kind::Coordinator => 0,
            Kind::Cut | Kind::OneWay => {
                self.later.push((second, Later::Heal));
                0
            }
            _ => victims.len() as u64,
        }
    }
}
