//! [`RunFile`]: the run file of a suite of tests, trained with real processes, and what its runs have in common.

use serde_json::Value;

use crate::support::{RONDE, Running, TestFolder, of_kind};

/// The run file of a suite.
pub(crate) struct RunFile {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

impl RunFile {
    /// Starts `ronde train` with workers. `sets`: values of the run file, or arguments that start with `--`.
    pub(crate) fn start(&self, dir: &TestFolder, workers: &str, sets: &[&str]) -> Running {
        dir.write(self.name, self.text);
        let mut arguments = vec!["train", self.name, "--json", "-n", workers];
        for set in sets {
            match set.strip_prefix("--") {
                Some(_) => arguments.push(set),
                None => arguments.extend(["--set", set]),
            }
        }
        dir.start(RONDE, &arguments, &[])
    }

    /// Returns the run file without its last section.
    pub(crate) fn without(&self, section: &str) -> &'static str {
        let text = self.text.split(section).next();
        text.unwrap_or_default()
    }
}

/// Checks that each sample of the digits counts once in each of at least two epochs.
pub(crate) fn check_epochs(events: &[Value]) {
    for epoch in of_kind(events, "epoch_finished") {
        assert_eq!(epoch["used_once"], 1437, "{epoch}");
        assert_eq!(
            (&epoch["missing"], &epoch["repeated"]),
            (&0.into(), &0.into())
        );
    }
    assert!(of_kind(events, "epoch_finished").count() >= 2);
}

/// Returns the accuracy of the last evaluation.
pub(crate) fn last_accuracy(events: &[Value]) -> f64 {
    let evaluated = of_kind(events, "evaluated").last();
    let evaluated = evaluated.unwrap_or_else(|| panic!("no evaluation in {events:?}"));
    evaluated["accuracy"].as_f64().unwrap()
}
