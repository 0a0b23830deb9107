//! [`SoakOptions`]: what to soak, for how long, and the run file that this comes to.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::faults::FaultKind;

/// How to say it.
pub(crate) const USAGE: &str = "\
cargo xtask soak [--minutes M] [--workers N] [--every S] [--epochs E] [--faults KIND,KIND..] [--seed S]

  trains again and again for M minutes, on N workers of this machine; about every S seconds something is
  done to them; each training takes E epochs

  kill, stop, two, half    workers are killed or stopped
  coordinator, leaderless  jobs with --listen: their coordinator is killed, alone or a worker after it
  cut, one-way             jobs on two network namespaces: the cable between them is cut, as root";

/// What to do, all of it from the command line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SoakOptions {
    pub(super) minutes: f64,
    pub(super) workers: u32,
    pub(super) every_s: f64,
    pub(super) epochs: u64,
    pub(super) kinds: Vec<FaultKind>,
    pub(super) seed: u64,
}

impl SoakOptions {
    /// A job of each layout, with a few faults, in well under three minutes.
    pub(super) fn short() -> Self {
        Self {
            minutes: 0.0,
            workers: 4,
            every_s: 1.5,
            epochs: 100,
            kinds: FaultKind::ALL.to_vec(),
            seed: 1,
        }
    }

    /// What the arguments ask for.
    pub(super) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            minutes: 10.0,
            every_s: 5.0,
            epochs: 1000,
            ..Self::short()
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{name} needs a value\n\n{USAGE}"))?;
            let bad = || format!("{name} {value} is not a number");
            match name.as_str() {
                "--minutes" => options.minutes = value.parse().with_context(bad)?,
                "--workers" => options.workers = value.parse().with_context(bad)?,
                "--every" => {
                    let number = value.strip_suffix('s').unwrap_or(value);
                    options.every_s = number.parse().with_context(bad)?;
                }
                "--epochs" => options.epochs = value.parse().with_context(bad)?,
                "--faults" => options.kinds = FaultKind::list(value)?,
                "--seed" => options.seed = value.parse().with_context(bad)?,
                _ => bail!("there is no {name}\n\n{USAGE}"),
            }
        }
        options.checked()
    }

    fn checked(self) -> Result<Self> {
        if !(2..=8).contains(&self.workers) {
            bail!("--workers {}: 2 to 8 can be soaked", self.workers);
        }
        if !(self.every_s > 0.0 && self.every_s.is_finite()) || self.epochs == 0 {
            bail!("--every and --epochs are above 0");
        }
        if !(0.0..=10_000.0).contains(&self.minutes) {
            bail!("--minutes {}: 0 to 10,000", self.minutes);
        }
        if self.workers < 3 && self.kinds.contains(&FaultKind::Two) {
            bail!("--faults two: of 2 workers nobody would be left; take --workers 3");
        }
        Ok(self)
    }

    /// After this time no other training begins.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// The command line that does the same.
    pub(super) fn command(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        format!(
            "cargo xtask soak --minutes {} --workers {} --every {}s --epochs {} --faults {} --seed {}",
            self.minutes,
            self.workers,
            self.every_s,
            self.epochs,
            kinds.join(","),
            self.seed
        )
    }

    /// What is trained. Dropout, moments of the optimizer and a last batch of another size are in it.
    /// Workers that were killed are started again at once, as often as it takes.
    pub(super) fn run_file(&self) -> String {
        format!(
            "[run]\nname = \"soak\"\noutput = \"out\"\n\n\
             [workers]\nlogical_shards = 8\n\n\
             [data]\nsource = \"digits\"\n\n\
             [model]\nkind = \"digits_cnn\"\nchannels = 16\n\n\
             [train]\nepochs = {}\n\n\
             [elastic]\nmax_restarts = 1000000\nrestart_window_s = 1.0\n",
            self.epochs
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_command_asks_for_the_same() {
        let arguments = |text: &str| -> Vec<String> {
            text.split_whitespace().skip(3).map(str::to_owned).collect()
        };
        let text =
            "cargo xtask soak --minutes 0.5 --workers 3 --every 2s --faults two,kill --seed 9";
        let options = SoakOptions::parse(&arguments(text)).unwrap();
        assert_eq!((options.workers, options.every_s), (3, 2.0));
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
