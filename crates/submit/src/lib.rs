//! Jobs on a target: this machine, hosts over SSH, a cluster of Slurm or Kubernetes.
//!
//! A [`SubmittedJob`] is the submitting machine's record of a job; [`JobRegistry`] is the folder of all records. A
//! [`Target`] runs jobs and answers for them with the same operations everywhere: submit, state, logs, command,
//! cancel, fetch. What runs on the target is the ordinary `ronde train` and `ronde join`, each in a [`ProcessFolder`]
//! that has its output, its process and its exit code. Start reading at [`Target`].

mod autoscale;
mod copying;
mod discovery;
mod disk;
mod drain_sources;
mod error;
mod fetching;
mod hosts;
mod image;
mod input_folder;
mod interruptions;
mod job;
mod job_folder;
mod job_paths;
mod kubernetes;
mod launcher_arguments;
mod limited;
mod local;
mod log_frames;
mod log_reader;
mod names;
mod platform;
mod preview;
mod process_folder;
mod process_identity;
mod ray;
mod registry;
mod run_inputs;
mod secrets;
mod session;
mod shell_words;
mod skipping_writer;
mod slurm;
mod ssh;
mod state;
mod target;
mod target_file;

pub use autoscale::{AutoscaleObservation, AutoscalePolicy, ScaleDecision};
pub use discovery::{HostChange, HostDiscovery};
pub use error::SubmitError;
pub use fetching::{send_results, send_results_as_text};
pub use hosts::{HostSlots, parse_host_file, parse_hosts};
pub use image::{ImageContents, ImageDependencies, ImageDigest};
pub use job::{JobPlacement, PlacedHost, SubmittedJob};
pub use job_paths::JobPaths;
pub use kubernetes::{
    ENDS_AFTER, KubernetesAccess, KubernetesPod, KubernetesSettings, KubernetesTarget,
    LeaderRecord, LeaderState, LeaderWatch, PodFolders, PodRole, RENEW_EVERY, TAKEN_AFTER,
};
pub use local::{LocalSettings, LocalTarget};
pub use log_reader::{LogPosition, LogReader};
pub use platform::{Platform, PlatformRun};
pub use preview::{DocumentForm, JobPreview};
pub use process_folder::{ProcessCommand, ProcessFolder, ProcessGuard, ProcessState};
pub use process_identity::ProcessIdentity;
pub use ray::{RayAccess, RayAllocation, RaySettings, RayTarget, keep_package, remove_package};
pub use registry::{JobListing, JobRegistry, NewJob};
pub use run_inputs::{JobResources, RunInputs};
pub use secrets::{check_no_secret, check_uploaded_folder};
pub use shell_words::shell_word;
pub use slurm::{AgentHeartbeat, SlurmAllocation, SlurmSettings, SlurmTarget, slurm_node_address};
pub use ssh::{HostFacts, SshSettings, SshTarget, StartOrder, StartReport};
pub use state::JobState;
pub use target::{JobProgram, LogRequest, SubmitRequest, Target, TargetContext};
pub use target_file::{TargetFile, TargetSettings};
