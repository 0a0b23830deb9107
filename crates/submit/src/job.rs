//! [`SubmittedJob`]: the submitting machine's record of a job.

use std::path::PathBuf;

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

use crate::process_identity::ProcessIdentity;
use crate::target_file::TargetSettings;

/// The format of a record.
pub(crate) const FORMAT: (&str, u32) = ("ronde.submitted_job", 1);

/// Where a job was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum JobPlacement {
    /// On this machine.
    Local {
        /// The job's folder.
        folder: PathBuf,
    },
    /// On hosts over SSH; the launcher runs on the first one.
    Ssh {
        /// The hosts.
        hosts: Vec<PlacedHost>,
        /// The job's folder, with the same path on all hosts.
        folder: PathBuf,
        /// The path of `ronde` on the hosts.
        program: String,
    },
    /// In an allocation of Slurm.
    Slurm {
        /// The number of the Slurm job.
        id: u64,
        /// The number of its task, if the Slurm job is an array.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<u32>,
        /// The job's folder, on a file system that all nodes share.
        folder: PathBuf,
    },
    /// As a job of Ray.
    Ray {
        /// The name of the job in the cluster.
        id: String,
        /// The job's folder on its nodes.
        folder: PathBuf,
        /// The package with the program and the run file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        package: Option<String>,
    },
    /// As an indexed Job of Kubernetes.
    Kubernetes {
        /// The namespace.
        namespace: String,
        /// The name of the Job.
        name: String,
        /// The job's folder in its pods.
        folder: PathBuf,
    },
}

/// A host of a job over SSH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedHost {
    /// The host as `ssh` knows it.
    pub host: String,
    /// The maximum number of workers on it.
    pub slots: u32,
}

/// The record of a job. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJob {
    #[serde(flatten)]
    pub(crate) header: FormatHeader,
    /// The job's name, unique on the submitting machine.
    pub name: String,
    /// The name of its target.
    pub target: String,
    /// The target as it was described when the job was submitted.
    pub settings: TargetSettings,
    /// The run file as it was named; `None`: the embedded example.
    pub run_file: Option<PathBuf>,
    /// The number of workers at the start.
    pub workers: u32,
    /// When it was submitted, in milliseconds since 1970.
    pub submitted_ms: u64,
    /// The address to which its results are sent; `None`: they stay in its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The identity of the sweep that it is a run of; `None` for other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<String>,
    /// The process that submits it.
    pub submitter: ProcessIdentity,
    /// Where it was placed; `None` while it is being placed.
    pub placement: Option<JobPlacement>,
}
