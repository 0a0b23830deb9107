//! The names of files and folders in the folder of a run.

/// Name of the event file.
pub(crate) const EVENT_FILE: &str = "events.jsonl";
/// Name of the folder of the output of the ranks.
pub(crate) const LOGS_FOLDER: &str = "logs";
/// Name of the folder of an open job.
pub(crate) const JOB_FOLDER: &str = "job";
/// Default parent folder of run outputs.
pub(crate) const RUNS: &str = "runs";
