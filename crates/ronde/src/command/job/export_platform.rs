//! `ronde export azureml|sagemaker|kubeflow`: writes the job document of a platform that trains a run.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ronde_submit::{Platform, PlatformRun, SubmitError, SubmitRequest, check_uploaded_folder};

use crate::command::console::{Printable, info, message};
use crate::command::exit;
use crate::command::failure::submit_failure;
use crate::command::job::submit;
use crate::command::run::train::read_run_file;

/// A platform and what its document needs.
#[derive(Subcommand)]
pub(crate) enum PlatformCommand {
    /// Write a command job of Azure ML that trains a run, for `az ml job create`.
    Azureml {
        #[command(flatten)]
        run: PlatformRunArguments,
        /// Name of the compute target.
        #[arg(long, value_name = "NAME")]
        compute: String,
    },
    /// Write a training job of SageMaker that trains a run, for `aws sagemaker create-training-job`.
    #[command(
        override_usage = "ronde export sagemaker [OPTIONS] --image <IMAGE> --role <ARN> --instance-type <TYPE>\n       \
                          --input <ADDRESS> --output <ADDRESS> <FILE>"
    )]
    Sagemaker {
        #[command(flatten)]
        run: PlatformRunArguments,
        /// Role of the job.
        #[arg(long, value_name = "ARN")]
        role: String,
        /// Type of the instances, such as `ml.c7i.4xlarge`.
        #[arg(long, value_name = "TYPE")]
        instance_type: String,
        /// Folder on S3 with the run file and its data.
        #[arg(long, value_name = "ADDRESS")]
        input: String,
        /// Folder on S3 for the results.
        #[arg(long, value_name = "ADDRESS")]
        output: String,
        /// Time limit of the job.
        #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=672))]
        max_hours: u32,
    },
    /// Write a TrainJob of Kubeflow that trains a run, for `kubectl apply`.
    Kubeflow {
        #[command(flatten)]
        run: PlatformRunArguments,
        /// Volume claim for the results.
        #[arg(long, value_name = "NAME")]
        claim: String,
        /// Namespace of the job.
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// Training runtime; it must set the variables of torchrun.
        #[arg(long, value_name = "NAME", default_value = "torch-distributed")]
        runtime: String,
    },
}

/// The run of a platform's job.
#[derive(Args)]
pub(crate) struct PlatformRunArguments {
    /// Run file.
    file: PathBuf,
    /// Container image with `ronde`.
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Number of hosts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// Number of worker processes on all hosts; the trained bits do not depend on it.
    #[arg(short = 'n', long, value_name = "N")]
    workers: Option<u32>,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Let the workers of several hosts connect without encryption, on a trusted network.
    #[arg(long)]
    allow_plain: bool,
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// Writes the document.
pub(crate) fn export(command: &PlatformCommand) -> i32 {
    let (platform, run) = platform(command);
    let read = read_run_file(Some(&run.file)).and_then(|(text, ..)| {
        let read = submit::read_run(Some(&run.file), run.workers, &run.sets)?;
        Ok((text, read))
    });
    let (text, read) = match read {
        Ok(read) => read,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    if let Err(error) = check_uploads(&platform, run, &read.request) {
        return submit_failure(&error);
    }
    let file = run.file.file_name().unwrap_or_default();
    let described = PlatformRun {
        name: read.config.run.name.clone(),
        file: file.to_string_lossy().into_owned(),
        text,
        image: run.image.clone(),
        nodes: run.nodes,
        workers: read.config.workers.count,
        sets: read.request.sets.clone(),
        allow_plain: run.allow_plain,
    };
    let written = platform
        .documents(&described)
        .and_then(|document| write(run, &document));
    match written {
        Ok(()) => exit::DONE,
        Err(error) => submit_failure(&error),
    }
}

/// Refuses secrets in what the platform gets: the run file, and for Azure ML all files of the folder of the document.
fn check_uploads(
    platform: &Platform,
    run: &PlatformRunArguments,
    request: &SubmitRequest,
) -> Result<(), SubmitError> {
    request.check_secrets()?;
    if !matches!(platform, Platform::AzureMl { .. }) {
        return Ok(());
    }
    let beside = run.to.as_ref().unwrap_or(&run.file);
    let folder = beside
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    check_uploaded_folder(folder.unwrap_or(Path::new(".")))
}

/// Returns the platform and the arguments about the run.
fn platform(command: &PlatformCommand) -> (Platform, &PlatformRunArguments) {
    match command {
        PlatformCommand::Azureml { run, compute } => {
            let compute = compute.clone();
            (Platform::AzureMl { compute }, run)
        }
        PlatformCommand::Sagemaker {
            run,
            role,
            instance_type,
            input,
            output,
            max_hours,
        } => (
            Platform::SageMaker {
                role: role.clone(),
                instance: instance_type.clone(),
                input: input.clone(),
                output: output.clone(),
                limit_s: max_hours.saturating_mul(3_600),
            },
            run,
        ),
        PlatformCommand::Kubeflow {
            run,
            claim,
            namespace,
            runtime,
        } => (
            Platform::Kubeflow {
                namespace: namespace.clone(),
                runtime: runtime.clone(),
                claim: claim.clone(),
            },
            run,
        ),
    }
}

fn write(run: &PlatformRunArguments, document: &str) -> Result<(), SubmitError> {
    let failed = |path: PathBuf| {
        |cause| SubmitError::File {
            action: "write",
            path,
            cause,
        }
    };
    match &run.to {
        None => {
            let written = write!(Printable(std::io::stdout()), "{document}");
            written.map_err(failed(PathBuf::from("standard output")))
        }
        Some(path) => {
            let written = ronde_saved_model::publish(path, document.as_bytes());
            let written = written.map_err(|error| std::io::Error::other(error.to_string()));
            written.map_err(failed(path.clone()))?;
            info!("wrote {}", path.display());
            Ok(())
        }
    }
}
