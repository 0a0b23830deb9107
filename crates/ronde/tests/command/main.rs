//! Tests of the command with real processes, files and signals.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

mod attempts;
mod bad_input;
mod bench;
mod changed_data;
mod checking;
mod checkpoints;
mod compression;
mod data;
mod data_files;
mod dying;
mod elastic;
mod evaluate;
mod examples;
mod extending;
mod few_files;
mod first_contact;
mod fixed_members;
mod folders;
mod full_disks;
mod gossip;
mod help;
mod hosts;
mod images;
mod job_output;
mod jobs;
mod jobs_on_hosts;
#[cfg(feature = "full")]
mod jobs_on_kubernetes;
#[cfg(feature = "full")]
mod jobs_on_ray;
mod jobs_on_slurm;
mod killed_often;
#[cfg(feature = "full")]
mod kubernetes_limits;
#[cfg(feature = "full")]
mod kubernetes_proxies;
mod ledger;
mod local_sgd;
#[cfg(feature = "full")]
mod lost_terminals;
mod model_quality;
mod names;
mod open_jobs;
mod output;
mod own_models;
mod parameter_servers;
mod paths;
mod plan;
mod predict;
mod recorded_bits;
#[cfg(feature = "full")]
mod remote_data;
mod run;
mod run_files;
mod same_bits;
mod scaled_layouts;
#[cfg(feature = "full")]
mod serve;
mod slurm_cluster;
mod ssh_hosts;
mod started_by_others;
mod stopping;
#[cfg(feature = "full")]
mod stores;
mod stragglers;
mod support;
mod sweeps;
mod synthetic_gradients;
mod terminals;
mod test_network;
mod traces;
mod trackers;
mod unreachable;
