//! `ronde image`: writes the Containerfile of the image for a run, or the image itself.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use ronde_submit::{ImageContents, ImageDependencies, SubmitError, check_uploaded_folder};
use ronde_train::RunConfig;
use serde_json::Value;

use crate::command::console::{Printable, info, message};
use crate::command::exit;
use crate::command::failure::submit_failure;
use crate::command::job::{open, submit};

/// The feature with object stores and all data formats.
const FULL: &str = "full";

/// The folders that a container engine gets when it builds an image; `.dockerignore` keeps the others out.
const SOURCE_FOLDERS: [&str; 3] = ["benchmarks", "crates", "xtask"];
/// The programs that build images, in the order of preference. All of them read the Containerfile from standard input.
const ENGINES: [&str; 3] = ["podman", "buildah", "docker"];

/// Arguments of `ronde image`.
#[derive(Args)]
pub(crate) struct ImageArguments {
    /// Run file [default: the embedded example].
    file: Option<PathBuf>,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// File for the Containerfile [default: standard output].
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Write the image itself to this tar file, with this program and without a container engine.
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    oci: Option<PathBuf>,
    /// Build the image with podman, buildah or docker, from the folder with the source of ronde [default: the current folder].
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = ".", conflicts_with_all = ["to", "oci"])]
    build: Option<PathBuf>,
}

/// Writes a Containerfile or an image. The name of the image is printed.
pub(crate) fn image(arguments: &ImageArguments) -> i32 {
    let read = submit::read_run(arguments.file.as_deref(), None, &arguments.sets);
    let config = match read {
        Ok(read) => read.config,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    match write(arguments, &dependencies(&config)) {
        Ok(()) => exit::DONE,
        Err(error) => submit_failure(&error),
    }
}

/// Returns what the image of a run depends on: data that is built in needs no feature, everything else needs all formats and
/// object stores.
fn dependencies(config: &RunConfig) -> ImageDependencies {
    let described = serde_json::to_value(config).unwrap_or_default();
    let source = described["data"]["source"].as_str().unwrap_or_default();
    let is_built_in = source == "digits" || source.starts_with("synthetic");
    let has_onednn = described["train"]["engine"] == "onednn";
    let needs_full = has_onednn || !is_built_in || has_address(&described);
    ImageDependencies {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        rust: env!("CARGO_PKG_RUST_VERSION").to_owned(),
        features: needs_full.then(|| FULL.to_owned()).into_iter().collect(),
        has_onednn,
    }
}

/// Returns whether a text of a run file is an address of a store or a server.
fn has_address(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("://"),
        Value::Array(items) => items.iter().any(has_address),
        Value::Object(map) => map.values().any(has_address),
        _ => false,
    }
}

fn write(arguments: &ImageArguments, image: &ImageDependencies) -> Result<(), SubmitError> {
    let name = image.name();
    if let Some(oci) = &arguments.oci {
        check(image)?;
        let program = PathBuf::from(open::this_program());
        // The path of this process in `/proc` cannot be copied after its end, but it can be read now.
        let program = program.canonicalize().unwrap_or(program);
        let digest = ImageContents::of_this_process(&program)?.write(&name, oci)?;
        info!(
            "wrote {name} to {}: `podman load -i FILE` or `skopeo copy oci-archive:FILE`",
            oci.display()
        );
        return print(&format!("{digest}\n"));
    }
    let text = image.containerfile();
    if let Some(source) = &arguments.build {
        build(source, &name, &text)?;
        return print(&format!("{name}\n"));
    }
    match &arguments.to {
        None => print(&text),
        Some(path) => {
            let written = ronde_saved_model::publish(path, text.as_bytes());
            written.map_err(|error| SubmitError::File {
                action: "write",
                path: path.clone(),
                cause: std::io::Error::other(error.to_string()),
            })?;
            info!(
                "wrote {}; build it in the folder with the source of ronde: podman build -t {name} -f {} .",
                path.display(),
                path.display()
            );
            Ok(())
        }
    }
}

/// Builds an image from its Containerfile with the first container engine of this machine, whose output is shown.
fn build(source: &Path, name: &str, text: &str) -> Result<(), SubmitError> {
    if !source.join("crates/ronde/Cargo.toml").exists() {
        return Err(SubmitError::Invalid {
            problem: format!("{} is not the folder with the source of ronde", source.display()),
            help: "name it: `--build FOLDER`; `ronde image --oci FILE` makes an image without the source".to_owned(),
        });
    }
    for folder in SOURCE_FOLDERS {
        check_uploaded_folder(&source.join(folder))?;
    }
    let failed = |program: &str, problem: String| SubmitError::Program {
        program: program.to_owned(),
        problem,
    };
    for engine in ENGINES {
        let mut command = Command::new(engine);
        command.args(["build", "-t", name, "-f", "-"]).arg(source);
        let started = command
            .stdin(Stdio::piped())
            .stdout(std::io::stderr())
            .spawn();
        let mut child = match started {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            started => started.map_err(|error| failed(engine, error.to_string()))?,
        };
        if let Some(mut input) = child.stdin.take() {
            // An engine that fails at once reports why itself.
            let _ = input.write_all(text.as_bytes());
        }
        let ended = child
            .wait()
            .map_err(|error| failed(engine, error.to_string()))?;
        return match ended.success() {
            true => Ok(()),
            false => Err(failed(engine, format!("it cannot build {name} ({ended})"))),
        };
    }
    Err(SubmitError::Invalid {
        problem: format!(
            "there is no container engine: none of {}",
            ENGINES.join(", ")
        ),
        help: "install one of them, or make the image without one: `ronde image --oci FILE`"
            .to_owned(),
    })
}

/// Checks that this program has what an image needs.
fn check(image: &ImageDependencies) -> Result<(), SubmitError> {
    let problem = match image.features.contains(FULL) {
        true if !cfg!(feature = "full") => {
            "the run needs a build with `--features full`, and this program is none"
        }
        _ if image.has_onednn => "the run needs oneDNN, which is not part of this program",
        _ => return Ok(()),
    };
    Err(SubmitError::Invalid {
        problem: format!("cannot make the image of this program: {problem}"),
        help: "build the image from its Containerfile, which `ronde image` prints".to_owned(),
    })
}

fn print(text: &str) -> Result<(), SubmitError> {
    let written = write!(Printable(std::io::stdout()), "{text}");
    written.map_err(|cause| SubmitError::File {
        action: "write",
        path: PathBuf::from("standard output"),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use ronde_train::config::{DEFAULT_RUN_FILE, Document, Override};

    use super::*;

    #[test]
    fn features_follow_from_the_data_and_the_engine() {
        let of = |sets: &[&str]| {
            let sets: Vec<Override> = sets
                .iter()
                .map(|set| Override::Set((*set).to_owned()))
                .collect();
            let loaded = Document::load(DEFAULT_RUN_FILE, "run.toml", &[], &sets);
            let (config, _) = loaded.unwrap_or_else(|error| panic!("{}", error.render(false)));
            let found = dependencies(&config);
            (found.features.len(), found.has_onednn)
        };
        assert_eq!(of(&[]), (0, false));
        assert_eq!(of(&["checkpoint.to=s3://bucket/run"]), (1, false));
        assert_eq!(of(&["train.engine=onednn"]), (1, true));
    }
}
