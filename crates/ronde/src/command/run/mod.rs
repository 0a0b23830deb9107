//! Commands that train, plan and show runs.

pub(crate) mod capacity;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod dashboard;
pub(crate) mod flight;
pub(crate) mod init;
pub(crate) mod layout_arguments;
pub(crate) mod layouts;
pub(crate) mod loss_plot;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod progress_output;
pub(crate) mod rank_logs;
pub(crate) mod rank_output;
pub(crate) mod resume;
pub(crate) mod run_base;
pub(crate) mod run_folder;
pub(crate) mod run_position;
pub(crate) mod run_status;
pub(crate) mod start_error;
pub(crate) mod sweep;
pub(crate) mod trace;
pub(crate) mod track;
pub(crate) mod train;
pub(crate) mod worker;
