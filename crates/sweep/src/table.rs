//! The trials as a table: for people, and as CSV.

use ronde_core::csv_field::csv_field;
use ronde_report::TextTable;

use crate::state::{RunOutcome, Sweep, Trial};

/// Returns the cells of a trial.
fn cells(sweep: &Sweep, number: usize, trial: &Trial) -> Vec<String> {
    let (score, state) = match (trial.score(), trial.runs.last().map(|run| &run.outcome)) {
        (_, None) => (String::new(), "waiting".to_owned()),
        (None, Some(RunOutcome::Started)) => (String::new(), "running".to_owned()),
        (score, Some(outcome)) => {
            let score = score.map_or_else(String::new, |(_, score)| score.to_string());
            let state = match outcome {
                RunOutcome::Started => "running".to_owned(),
                RunOutcome::Scored { .. } => "finished".to_owned(),
                RunOutcome::Failed { reason } => format!("failed: {reason}"),
            };
            (score, state)
        }
    };
    let budget = sweep.file.halving.is_some().then(|| {
        let budgets = sweep.file.budgets();
        let rung = trial.runs.len().checked_sub(1);
        let budget = rung.and_then(|rung| budgets.get(rung));
        budget.map_or_else(String::new, u64::to_string)
    });
    let values = trial.values.values().map(ToString::to_string);
    let steps = trial.scored_steps().map(|steps| steps.to_string());
    [number.to_string(), score]
        .into_iter()
        .chain(budget)
        .chain(values)
        .chain([steps.unwrap_or_default(), state])
        .collect()
}

/// Returns the names of the columns and the cells of all trials, the best one first, those without a score last.
fn rows(sweep: &Sweep) -> (Vec<String>, Vec<Vec<String>>) {
    let budget = sweep
        .file
        .halving
        .as_ref()
        .map(|halving| halving.key.clone());
    let head = ["trial".to_owned(), sweep.file.metric.clone()]
        .into_iter()
        .chain(budget)
        .chain(sweep.file.keys.keys().cloned())
        .chain(["step".to_owned(), "state".to_owned()])
        .collect();
    let mut order = sweep.ranking();
    let rest: Vec<usize> = (0..sweep.trials.len())
        .filter(|number| !order.contains(number))
        .collect();
    order.extend(rest);
    let row = |number: usize| cells(sweep, number, &sweep.trials[number]);
    (head, order.into_iter().map(row).collect())
}

/// Returns the table with aligned columns, the best trial first.
#[must_use]
pub fn table(sweep: &Sweep) -> String {
    let (head, rows) = rows(sweep);
    let mut table = TextTable::new(head);
    rows.into_iter().for_each(|row| table.row(row));
    format!("{table}\n")
}

/// Returns the table as CSV, the best trial first.
#[must_use]
pub fn csv(sweep: &Sweep) -> String {
    let (head, rows) = rows(sweep);
    let line = |cells: Vec<String>| {
        let fields = cells.iter().map(|cell| csv_field(cell));
        fields.collect::<Vec<_>>().join(",") + "\n"
    };
    std::iter::once(head).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::SweepFile;
    use crate::state::RunScore;

    #[test]
    fn the_best_trial_is_the_first_row() {
        let text = "version = 1\nsearch = \"grid\"\nmetric = \"loss\"\n[keys]\n\"model.hidden\" = [[8], [4, 2], [2], [1]]\n";
        let mut sweep = Sweep::new(
            "s".to_owned(),
            SweepFile::parse(text).unwrap(),
            String::new(),
        );
        let scored = |value, steps| Ok(RunScore { value, steps });
        for outcome in [
            scored(0.5, None),
            scored(0.25, Some(40)),
            Err("exit code 3, \"no\"".to_owned()),
        ] {
            let run = sweep.next().unwrap();
            sweep.start(&run);
            sweep.finish(&run, outcome);
        }
        assert_eq!(
            table(&sweep),
            "trial  loss  model.hidden  step  state\n\
             1      0.25  [4, 2]        40    finished\n\
             0      0.5   [8]                 finished\n\
             2            [2]                 failed: exit code 3, \"no\"\n\
             3            [1]                 waiting\n"
        );
        assert_eq!(
            csv(&sweep),
            "trial,loss,model.hidden,step,state\n1,0.25,\"[4, 2]\",40,finished\n0,0.5,[8],,finished\n\
             2,,[2],,\"failed: exit code 3, \"\"no\"\"\"\n3,,[1],,waiting\n"
        );
    }
}
