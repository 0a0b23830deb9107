//! [`SoakReport`]: the differences and the measurements of a soak.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::FaultyRun;
use super::account::RunAccount;
use super::fault_kind::FaultKind;
use super::options::SoakOptions;
use super::recovery::{FaultRecovery, recoveries, replacements};

/// How far the mean accuracy may be below that of training in every step.
const ACCURACY_GAP_MAX: f64 = 0.005;

/// What the jobs of a soak are compared with.
pub(super) enum Reference {
    /// A run without faults on one worker, with the same bits.
    SameBits(Box<RunAccount>),
    /// The accuracies of trainings in every step on one worker, with different seeds.
    Accuracy(Vec<f64>),
}

/// The results of all jobs of a soak.
#[derive(Default)]
pub(super) struct SoakReport {
    jobs: u64,
    committed: u64,
    lost: u64,
    repeated: u64,
    killed: u64,
    recoveries: Vec<FaultRecovery>,
    replacements: Vec<f64>,
    blake3: String,
    /// The accuracies of jobs whose bits are not those of the reference.
    accuracies: Vec<f64>,
    problems: Vec<String>,
}

impl SoakReport {
    /// Adds a job, which ran in a folder.
    pub(super) fn add(
        &mut self,
        run: &FaultyRun,
        reference: &Reference,
        workers: u32,
        folder: &Path,
    ) {
        let account = RunAccount::of(&run.events);
        let killed = run.applied.iter().map(|strike| strike.killed).sum();
        let mut problems: Vec<String> = run.failure.iter().cloned().collect();
        problems.extend(account.problems(workers, killed));
        match reference {
            Reference::SameBits(reference) => problems.extend(account.differences(reference)),
            Reference::Accuracy(_) => self.accuracies.extend(account.accuracy),
        }
        let told = problems
            .into_iter()
            .map(|problem| format!("{}: {problem}", folder.display()));
        self.problems.extend(told);
        let [lost, repeated] = account.lost_and_repeated();
        self.jobs += 1;
        self.committed += account.committed();
        self.lost += lost;
        self.repeated += repeated;
        self.killed += killed;
        let found = recoveries(&run.events, &run.applied, workers);
        self.recoveries.extend(found);
        self.replacements.extend(replacements(&run.events));
        self.blake3 = account.blake3.unwrap_or_else(|| "none".to_owned());
    }

    /// Compares the accuracy with that of the reference, after the last job.
    pub(super) fn conclude(&mut self, reference: &Reference) {
        let Reference::Accuracy(expected) = reference else {
            return;
        };
        let (own, expected) = (mean(&self.accuracies), mean(expected));
        // Without a job that ended, the mean is NaN.
        let is_near = own >= expected - ACCURACY_GAP_MAX;
        if !is_near {
            self.problems.push(format!(
                "the mean accuracy is {:.2} %, that of training in every step {:.2} %",
                100.0 * own,
                100.0 * expected
            ));
        }
    }

    /// Returns whether no job differs from the reference run.
    pub(super) fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }

    /// Formats the report.
    pub(super) fn text(
        &self,
        options: &SoakOptions,
        reference: &Reference,
        took: Duration,
    ) -> String {
        let mut text = format!(
            "soak: {} trainings on {} workers in {:.1} min, seed {}\n\
             steps committed  {}\n\
             samples          {} lost, {} repeated\n\
             faults           {} ({} workers killed)\n",
            self.jobs,
            options.workers,
            took.as_secs_f64() / 60.0,
            options.seed,
            self.committed,
            self.lost,
            self.repeated,
            self.recoveries.len(),
            self.killed,
        );
        let head =
            "seconds after it, median (max)   detected        continued       all workers again";
        let _ = writeln!(text, "{head}");
        for kind in FaultKind::ALL {
            let of_kind: Vec<&FaultRecovery> =
                self.recoveries.iter().filter(|r| r.kind == kind).collect();
            if of_kind.is_empty() {
                continue;
            }
            let column = |value: fn(&FaultRecovery) -> Option<f64>| {
                MedianAndMax::of(of_kind.iter().filter_map(|r| value(r)).collect()).text()
            };
            let _ = writeln!(
                text,
                "  {:<11} {:>4} times          {:<15} {:<15} {}",
                kind.name(),
                of_kind.len(),
                column(|r| r.noticed_s),
                column(|r| r.on_s),
                column(|r| r.complete_s)
            );
        }
        let replaced = MedianAndMax::of(self.replacements.clone());
        let count = self.replacements.len();
        let _ = writeln!(
            text,
            "  {count} replacements, from their start to their first step: {}",
            replaced.text()
        );
        let hash = &self.blake3;
        let _ = match reference {
            _ if !self.is_fine() => write!(text, "DIFFERENT:\n{}", self.problems.join("\n")),
            Reference::SameBits(_) => {
                write!(text, "model            {hash}, equal to the reference")
            }
            Reference::Accuracy(expected) => {
                let lowest = self.accuracies.iter().copied().fold(1.0, f64::min);
                let [own, lowest, expected] =
                    [mean(&self.accuracies), lowest, mean(expected)].map(|share| 100.0 * share);
                write!(
                    text,
                    "accuracy         {own:.2} % on average, {lowest:.2} % at least; in every step {expected:.2} %"
                )
            }
        };
        text
    }
}

/// Returns the mean; NaN without values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The median and the maximum of some durations in seconds.
struct MedianAndMax(Option<(f64, f64)>);

impl MedianAndMax {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied();
        Self(median.zip(values.last().copied()))
    }

    fn text(&self) -> String {
        match self.0 {
            Some((median, max)) => format!("{median:.3} ({max:.3})"),
            None => "none".to_owned(),
        }
    }
}
