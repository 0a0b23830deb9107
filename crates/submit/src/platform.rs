//! [`PlatformRun`]: a run as the job document of another platform, which starts the workers itself. `ronde train` then finds
//! its rank in the variables of that platform. Pure: documents are values and texts.

use serde_json::Value;

use crate::error::SubmitError;
use crate::shell_words;

mod azureml;
mod kubeflow;
mod sagemaker;
pub(crate) mod yaml;

/// Allows unencrypted connections between hosts.
const ALLOW_PLAIN: &str = "RONDE_ALLOW_PLAIN";

/// A run that another platform starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformRun {
    /// The name of the run.
    pub name: String,
    /// The file name of the run file.
    pub file: String,
    /// The contents of the run file.
    pub text: String,
    /// The container image with `ronde`.
    pub image: String,
    /// The number of hosts.
    pub nodes: u32,
    /// The number of workers on all hosts.
    pub workers: u32,
    /// Overrides of the run file, as after `--set`.
    pub sets: Vec<String>,
    /// Whether workers on several hosts may connect without encryption.
    pub allow_plain: bool,
}

/// A platform with what its documents need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platform {
    /// Azure Machine Learning: a command job, for `az ml job create`.
    AzureMl {
        /// The name of the compute target.
        compute: String,
    },
    /// Amazon SageMaker: a training job, for `aws sagemaker create-training-job`.
    SageMaker {
        /// The role of the job.
        role: String,
        /// The type of the instances.
        instance: String,
        /// The S3 address of a folder with the run file and its data.
        input: String,
        /// The S3 address for the results.
        output: String,
        /// The time limit in seconds.
        limit_s: u32,
    },
    /// Kubeflow: a TrainJob with its run file, for `kubectl apply`.
    Kubeflow {
        /// The namespace; `None`: that of the command.
        namespace: Option<String>,
        /// The training runtime.
        runtime: String,
        /// The volume claim for the results.
        claim: String,
    },
}

impl Platform {
    /// Returns the name for messages.
    fn title(&self) -> &'static str {
        match self {
            Self::AzureMl { .. } => "Azure ML",
            Self::SageMaker { .. } => "SageMaker",
            Self::Kubeflow { .. } => "Kubeflow",
        }
    }

    /// Returns the documents of a run: YAML, and JSON for SageMaker.
    ///
    /// # Errors
    /// The run does not fit the platform.
    pub fn documents(&self, run: &PlatformRun) -> Result<String, SubmitError> {
        run.check(self)?;
        match self {
            Self::AzureMl { compute } => Ok(yaml::text(&azureml::document(run, compute))),
            Self::SageMaker { .. } => Ok(format!("{:#}\n", sagemaker::document(run, self))),
            Self::Kubeflow {
                namespace,
                runtime,
                claim,
            } => {
                let documents = kubeflow::documents(run, namespace.as_deref(), runtime, claim);
                Ok(yaml::stream(&documents))
            }
        }
    }
}

impl PlatformRun {
    fn check(&self, platform: &Platform) -> Result<(), SubmitError> {
        let (nodes, workers, title) = (self.nodes, self.workers, platform.title());
        if nodes == 0 || workers % nodes != 0 {
            return Err(SubmitError::invalid(
                format!("cannot divide {workers} workers among {nodes} hosts"),
                "pass `-n` with a multiple of `--nodes`",
            ));
        }
        let starts_one = !matches!(platform, Platform::AzureMl { .. });
        if nodes > 1 && workers > nodes && starts_one {
            return Err(SubmitError::invalid(
                format!(
                    "{title} starts one process on each of the {nodes} hosts, not {workers} in total"
                ),
                "pass `-n` with the same number as `--nodes`; `workers.threads` uses the processors of a host",
            ));
        }
        let is_encrypted = matches!(platform, Platform::SageMaker { .. });
        if nodes > 1 && !self.allow_plain && !is_encrypted {
            return Err(SubmitError::invalid(
                format!("workers on {nodes} hosts that {title} starts connect without encryption"),
                "pass `--allow-plain` for a trusted network, or use one host with more workers",
            ));
        }
        Ok(())
    }

    /// Returns the words of the command in the container; the run file is at `path`, and its results go to `output`. On
    /// several hosts, the platform decides about the number of workers.
    fn words(&self, path: &str, output: &str) -> Vec<String> {
        let mut words = vec!["ronde".to_owned(), "train".to_owned(), path.to_owned()];
        if self.nodes == 1 {
            words.extend(["-n".to_owned(), self.workers.to_string()]);
        }
        let output = toml::Value::String(output.to_owned());
        for set in self.sets.iter().chain([&format!("run.output={output}")]) {
            words.extend(["--set".to_owned(), set.clone()]);
        }
        words
    }

    /// Returns the command as a line for a shell.
    fn line(&self, path: &str, output: &str) -> String {
        let words = self.words(path, output);
        shell_words::join(words.iter().map(String::as_str))
    }

    /// Returns the variables of the processes by name.
    fn variables(&self) -> Vec<(&'static str, &'static str)> {
        match self.nodes > 1 {
            true => vec![(ALLOW_PLAIN, "1")],
            false => Vec::new(),
        }
    }

    /// Returns the name with letters, digits and `-` only.
    fn label(&self) -> String {
        kubernetes_label(&self.name)
    }
}

/// Returns a name with letters, digits and `-` only that begins with a letter, for objects of Kubernetes. The names of Services
/// are those of RFC 1035.
pub(crate) fn kubernetes_label(name: &str) -> String {
    let letter = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_lowercase(),
        false => '-',
    };
    let label: String = name.chars().map(letter).take(50).collect();
    match label.trim_matches('-') {
        "" => "ronde".to_owned(),
        label if label.starts_with(|letter: char| letter.is_ascii_digit()) => format!("r-{label}"),
        label => label.to_owned(),
    }
}

/// Adds a value to a JSON object.
pub(crate) fn insert(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests;
