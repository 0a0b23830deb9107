//! [`SoakOptions`]: the options of a soak, and the resulting run file.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::fault_kind::FaultKind;
use super::mode::SoakMode;

/// The usage text.
pub(crate) const USAGE: &str = "\
cargo xtask soak [--mode MODE] [--minutes M] [--workers N] [--every S] [--epochs E] [--faults KIND,KIND..]
                 [--seed S] [--set KEY=VALUE]... [--simulate C] [--fuzz F]
cargo xtask soak models
cargo xtask soak chaos [--runs N] [--seed S]

  trains repeatedly for M minutes with N workers on this machine; a fault occurs about every S seconds; each
  training has E epochs; then C clusters are simulated (default 20,000; 0: none), and each fuzz target runs for F
  seconds (default 60; 0: none); --set changes the run file, such as --set parallel.zero=2

  models                   only trains examples to their end, without faults, and compares the quality of the last
                           evaluation with the stated one; a part of every soak with simulated clusters

  chaos                    trains N times (default 300) for some seconds with 2 to 5 workers in every layout, with up to six
                           faults each from the first millisecond on

  every_step (default)     exchange gradients in every step, with any --set of a layout
  compression, local_sgd, synthetic_gradients    other exchanges with the same bits as one worker
  parameter_server, gossip    exchanges without waiting: the mean accuracy is compared with that of 8 trainings in
                              every step

  kill, stop, two, half    kill or stop workers
  coordinator, leaderless  jobs with --listen: kill the coordinator, alone or followed by a worker
  cut, one-way             jobs on two network namespaces (needs root): cut the cable between them";

/// The options of the command line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SoakOptions {
    pub(super) mode: SoakMode,
    pub(super) minutes: f64,
    pub(super) workers: u32,
    pub(super) every_s: f64,
    pub(super) epochs: u64,
    pub(super) kinds: Vec<FaultKind>,
    pub(super) seed: u64,
    /// Changed settings of the run file.
    pub(super) settings: Vec<String>,
    /// The number of clusters to simulate after the trainings.
    pub(super) simulate: u64,
    /// Seconds for each fuzz target after the trainings.
    pub(super) fuzz_s: u32,
}

impl SoakOptions {
    /// Returns the options of a short soak: a job of each layout with a few faults, in less than three minutes.
    pub(super) fn short() -> Self {
        Self {
            mode: SoakMode::EveryStep,
            minutes: 0.0,
            workers: 4,
            every_s: 1.5,
            epochs: 100,
            kinds: FaultKind::ALL.to_vec(),
            seed: 1,
            settings: Vec::new(),
            simulate: 0,
            fuzz_s: 0,
        }
    }

    /// Parses the arguments.
    pub(super) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            minutes: 10.0,
            every_s: 5.0,
            simulate: 20_000,
            fuzz_s: 60,
            ..Self::short()
        };
        let (mut workers, mut epochs, mut kinds) = (None, None, None);
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value\n\n{USAGE}"))?;
            let bad = || format!("invalid value `{value}` for {name}: expected a number");
            match name.as_str() {
                "--mode" => options.mode = SoakMode::parse(value)?,
                "--minutes" => options.minutes = value.parse().with_context(bad)?,
                "--workers" => workers = Some(value.parse().with_context(bad)?),
                "--every" => {
                    let number = value.strip_suffix('s').unwrap_or(value);
                    options.every_s = number.parse().with_context(bad)?;
                }
                "--epochs" => epochs = Some(value.parse().with_context(bad)?),
                "--faults" => kinds = Some(FaultKind::list(value)?),
                "--seed" => options.seed = value.parse().with_context(bad)?,
                "--set" => options.settings.push(value.clone()),
                "--simulate" => options.simulate = value.parse().with_context(bad)?,
                "--fuzz" => options.fuzz_s = value.parse().with_context(bad)?,
                _ => bail!("unknown option `{name}`\n\n{USAGE}"),
            }
        }
        options.workers = workers.unwrap_or(options.mode.workers());
        options.epochs = epochs.unwrap_or(options.mode.epochs());
        options.kinds = kinds.unwrap_or_else(|| FaultKind::ALL.to_vec());
        options.checked()
    }

    fn checked(self) -> Result<Self> {
        if !(2..=8).contains(&self.workers) {
            bail!(
                "invalid value `{}` for --workers: expected 2 to 8",
                self.workers
            );
        }
        if !(self.every_s > 0.0 && self.every_s.is_finite()) || self.epochs == 0 {
            bail!("invalid value for --every or --epochs: expected a number above 0");
        }
        if !(0.0..=10_000.0).contains(&self.minutes) {
            bail!(
                "invalid value `{}` for --minutes: expected 0 to 10,000",
                self.minutes
            );
        }
        if self.workers < 3 && self.kinds.contains(&FaultKind::Two) {
            bail!("invalid fault `two` for 2 workers: no worker would remain; use --workers 3");
        }
        Ok(self)
    }

    /// Returns the time after which no further training begins.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// Returns the seeds of the simulated clusters, which differ for each seed of a soak; `None` if there are none.
    pub(super) fn simulated_seeds(&self) -> Option<String> {
        let first = self.seed.saturating_sub(1).checked_mul(self.simulate)?;
        let end = first.checked_add(self.simulate)?;
        (first < end).then(|| format!("{first}..{end}"))
    }

    /// Returns the command line with the same options.
    pub(super) fn command(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        let settings = self.settings.iter().map(|set| format!(" --set {set}"));
        format!(
            "cargo xtask soak --mode {} --minutes {} --workers {} --every {}s --epochs {} --faults {} --seed {}{} --simulate {} --fuzz {}",
            self.mode.name(),
            self.minutes,
            self.workers,
            self.every_s,
            self.epochs,
            kinds.join(","),
            self.seed,
            settings.collect::<String>(),
            self.simulate,
            self.fuzz_s
        )
    }

    /// Returns the run file. It includes dropout, optimizer moments and a smaller last batch. Killed workers are
    /// restarted immediately without a limit.
    pub(super) fn run_file(&self) -> String {
        self.run_file_with(&self.mode.settings())
    }

    /// Returns the run file of the training in every step with which the accuracy is compared.
    pub(super) fn compared_run_file(&self) -> String {
        self.run_file_with(&SoakMode::compared_settings())
    }

    fn run_file_with(&self, settings: &str) -> String {
        let elastic = "max_restarts = 1000000\nrestart_window_s = 1.0\n";
        // The settings may end with a part of the same table.
        let settings = match settings.contains("[elastic]") {
            true => format!("{settings}{elastic}"),
            false => format!("{settings}\n[elastic]\n{elastic}"),
        };
        format!(
            "[run]\nname = \"soak\"\noutput = \"out\"\n\n\
             [workers]\nlogical_shards = {}\n\n\
             [data]\nsource = \"digits\"\n\n\
             [model]\nkind = \"digits_cnn\"\nchannels = 16\n\n\
             [train]\nepochs = {}\n{settings}",
            self.mode.logical_shards(),
            self.epochs
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_command_has_the_same_options() {
        let arguments = |text: &str| -> Vec<String> {
            text.split_whitespace().skip(3).map(str::to_owned).collect()
        };
        let text = "cargo xtask soak --mode gossip --minutes 0.5 --workers 3 --every 2s --faults two,kill --seed 9 --set parallel.zero=2 --set parallel.copies=1 --simulate 7 --fuzz 0";
        let options = SoakOptions::parse(&arguments(text)).unwrap();
        assert_eq!((options.workers, options.every_s), (3, 2.0));
        assert_eq!(options.simulated_seeds(), Some("56..63".to_owned()));
        assert_eq!(
            SoakOptions::parse(&arguments(&options.command())).unwrap(),
            options
        );
        for bad in [
            "--workers 1",
            "--every 0",
            "--faults none",
            "--often 3",
            "--seed",
        ] {
            let text = format!("cargo xtask soak {bad}");
            assert!(SoakOptions::parse(&arguments(&text)).is_err(), "{bad}");
        }
    }
}
