//! `ronde export`: writes a saved model for other programs, or a run as the job of another platform.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ronde_saved_model::{ExportFormat, ModelError, Naming, ONNX_OPSET, SavedModel, export};

use crate::command::console::{message, print};
use crate::command::exit;
use crate::command::job::export_platform;
use crate::command::job::export_platform::PlatformCommand;

/// Arguments of `ronde export`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ExportArguments {
    #[command(subcommand)]
    platform: Option<PlatformCommand>,
    /// Folder of a finished run, or its model.safetensors.
    #[arg(required = true)]
    model: Option<PathBuf>,
    /// Format of the file.
    #[arg(long, required = true)]
    format: Option<FormatArgument>,
    /// File to write; default: model.onnx, model.pt or model-NAMES.safetensors in the model's folder.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Names and layouts of the tensors; default: for torch those of the library that has such a model, otherwise ronde.
    #[arg(long)]
    names: Option<NamesArgument>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArgument {
    /// The model with its operations, for onnxruntime and others.
    Onnx,
    /// The weights.
    Safetensors,
    /// The weights, for torch.load and load_state_dict.
    Torch,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NamesArgument {
    /// Those of ronde.
    Ronde,
    /// Those of torchvision's resnet18, resnet50 and vgg16.
    Torchvision,
    /// Those of Hugging Face's GPT2LMHeadModel.
    Huggingface,
}

impl FormatArgument {
    fn format(self) -> ExportFormat {
        match self {
            Self::Onnx => ExportFormat::Onnx,
            Self::Safetensors => ExportFormat::Safetensors,
            Self::Torch => ExportFormat::Torch,
        }
    }
}

impl NamesArgument {
    fn naming(self) -> Naming {
        match self {
            Self::Ronde => Naming::Ronde,
            Self::Torchvision => Naming::Torchvision,
            Self::Huggingface => Naming::HuggingFace,
        }
    }
}

/// Exports a model, and prints the file and how to load it.
pub(crate) fn run(arguments: &ExportArguments) -> i32 {
    let (model, format) = match (&arguments.platform, &arguments.model, arguments.format) {
        (Some(platform), ..) => return export_platform::export(platform),
        (None, Some(model), Some(format)) => (model, format.format()),
        // The parser requires both.
        _ => return exit::BUG,
    };
    match write(arguments, model, format) {
        Ok(report) => print(report),
        Err(error) => {
            message!("error: {error}");
            match error {
                ModelError::File {
                    action: "write", ..
                } => exit::GAVE_UP,
                _ => exit::USER_ERROR,
            }
        }
    }
}

fn write(
    arguments: &ExportArguments,
    model: &Path,
    format: ExportFormat,
) -> Result<String, ModelError> {
    let saved = SavedModel::open(model)?;
    let counterpart = saved.manifest().model.as_ref();
    let naming = match (arguments.names, format, counterpart) {
        (Some(names), ..) => names.naming(),
        (None, ExportFormat::Torch, Some(model)) => Naming::counterpart(model),
        _ => Naming::Ronde,
    };
    let path = arguments.to.clone().unwrap_or_else(|| {
        let extension = format.extension();
        saved.weights().path().with_file_name(match format {
            ExportFormat::Safetensors => format!("model-{}.{extension}", naming.name()),
            _ => format!("model.{extension}"),
        })
    });
    if is_same_file(&path, saved.weights().path()) {
        return Err(ModelError::NotExportable {
            format: format.name(),
            problem: format!(
                "{} is the model itself\n  help: choose another file with --to",
                path.display()
            ),
        });
    }
    export(&saved, format, naming, &path)?;
    let units = units(&saved, format).unwrap_or_default();
    Ok(report(&path, format, naming) + &units)
}

/// Returns what a program does with the outputs of exported weights to get the units of the data.
fn units(saved: &SavedModel, format: ExportFormat) -> Option<String> {
    let scale = saved.manifest().output_scale()?;
    (format != ExportFormat::Onnx).then(|| {
        format!("  multiply the outputs by {scale}: the target values were divided by it (data.label.scale)\n")
    })
}

/// Returns whether two paths lead to one existing file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn report(path: &Path, format: ExportFormat, naming: Naming) -> String {
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    let path = path.display();
    let (contents, load) = match format {
        ExportFormat::Onnx => (
            format!("ONNX, operator set {ONNX_OPSET}"),
            format!("onnxruntime.InferenceSession(\"{path}\").run(None, {{\"input\": samples}})"),
        ),
        ExportFormat::Torch if naming == Naming::Ronde => (
            "weights with the names of ronde".to_owned(),
            format!("torch.load(\"{path}\", weights_only=True)"),
        ),
        ExportFormat::Torch => (
            format!("weights with the names of {}", naming.name()),
            format!("module.load_state_dict(torch.load(\"{path}\", weights_only=True))"),
        ),
        _ => (
            format!("weights with the names of {}", naming.name()),
            format!("safetensors.torch.load_file(\"{path}\")"),
        ),
    };
    format!("{path}: {contents}, {bytes} bytes\n  load it in Python with {load}\n")
}
