//! Asynchronous successive halving (ASHA; Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
//! algorithm 2): whenever a run can start, the best of the trials that have ended with a budget continue with the next one.
//! No trial waits for others, so the order in which runs end has an influence.

use crate::state::{RunOutcome, Sweep};

/// Returns the trial that continues, and the number of its next budget; the largest budget first.
pub(crate) fn promotion(sweep: &Sweep) -> Option<(usize, usize)> {
    let factor = sweep.file.halving.as_ref()?.factor as usize;
    let budgets = sweep.file.budgets().len();
    (0..budgets.saturating_sub(1)).rev().find_map(|rung| {
        let scored = scored(sweep, rung);
        let continuing = scored.iter().take(scored.len() / factor);
        let mut waiting = continuing.filter(|trial| sweep.trials[**trial].runs.len() == rung + 1);
        waiting.next().map(|trial| (*trial, rung + 1))
    })
}

/// Returns the trials with a score for a budget, the best one first.
fn scored(sweep: &Sweep, rung: usize) -> Vec<usize> {
    let score = |(number, trial): (usize, &crate::state::Trial)| match trial.runs.get(rung)?.outcome
    {
        RunOutcome::Scored { score, .. } => Some((number, score)),
        _ => None,
    };
    let mut scored: Vec<(usize, f64)> = sweep.trials.iter().enumerate().filter_map(score).collect();
    // A stable sort: of equal scores, the lower number is first.
    scored.sort_by(|a, b| match () {
        () if sweep.is_better(a.1, b.1) => std::cmp::Ordering::Less,
        () if sweep.is_better(b.1, a.1) => std::cmp::Ordering::Greater,
        () => std::cmp::Ordering::Equal,
    });
    scored.into_iter().map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use crate::file::SweepFile;
    use crate::state::Sweep;

    /// Runs nine trials, whose score is their number, with up to `slots` side by side, and returns how many runs each
    /// budget had.
    fn runs(slots: usize) -> (Vec<usize>, usize) {
        let file = SweepFile::parse(
            "version = 1\nsearch = \"halving\"\nmetric = \"m\"\ntrials = 9\n[keys]\n\"a.b\" = { from = 0.0, to = 1.0 }\n\
             [halving]\nfrom = 1\nto = 9\n",
        );
        let mut sweep = Sweep::new("s".to_owned(), file.unwrap(), String::new());
        let mut counts = vec![0; 3];
        loop {
            while sweep.under_way() < slots {
                let Some(run) = sweep.next() else { break };
                let budget =
                    ["a", "train.epochs=1", "train.epochs=3", "train.epochs=9"][run.rung + 1];
                assert!(sweep.sets(run.trial, run.rung).contains(&budget.to_owned()));
                counts[run.rung] += 1;
                sweep.start(&run);
            }
            let Some(run) = sweep.started().pop() else {
                break;
            };
            sweep.finish(&run, Ok((run.trial as f64).into()));
        }
        assert!(sweep.is_over());
        (counts, sweep.ranking()[0])
    }

    #[test]
    fn a_third_of_the_trials_continues_and_the_best_reaches_the_largest_budget() {
        // One after the other: the first three decide before better ones exist, and these continue, too.
        assert_eq!(runs(1).0[0], 9);
        assert!(runs(1).0[2] >= 1);
        assert_eq!(runs(1).1, 8);
        assert_eq!(runs(9), (vec![9, 3, 1], 8));
    }
}
