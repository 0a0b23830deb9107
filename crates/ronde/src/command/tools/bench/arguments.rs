//! The arguments of `ronde bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ronde_bench::DEFAULT_SIZES;
use ronde_engine::Precision;

/// Arguments of `ronde bench`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ronde bench                                          all_reduce, two workers, shared memory
  ronde bench all -n 2,4 --transports tcp              every operation over TCP, two and four workers
  ronde bench --algorithms driver,ring --transports tcp -n 2,4,8 --sizes 1MiB
  ronde bench all_reduce exact_sum --choice --transports tcp -n 2,4 --sizes 8..64MiB
  ronde bench --against gloo,mpi --json out.json
  mpirun -np 4 ronde bench                             the ranks of mpirun, also on several hosts
  ronde bench all_reduce -n 4,16 --explain             predicted messages and bytes, nothing is run
  ronde bench train --model resnet18 --against pytorch training steps of ronde and PyTorch
  ronde bench kernels --model gpt                      the time of each kernel, compared with the machine's rates
  ronde bench data run.toml                            samples per second of the data loader")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,
    /// Operations: all_reduce, reduce, reduce_scatter, all_gather, gather, scatter, broadcast,
    /// all_to_all, all_to_all_unequal, barrier, send_receive, exact_sum, or all [default: all_reduce]
    #[arg(value_name = "OPERATION", hide_default_value = true)]
    pub(super) operations: Vec<String>,
    /// Numbers of worker processes, measured one after another [default: 2, or the ranks that mpirun, srun or torchrun
    /// has started].
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',')]
    pub(super) workers: Vec<usize>,
    /// Buffer sizes up to 256MiB: sizes, or ranges such as 8..64MiB (factor 8) or 8..64MiBx2.
    #[arg(long, value_name = "SIZE,..", default_value = DEFAULT_SIZES)]
    pub(super) sizes: String,
    /// Algorithms: auto, direct, driver, ring, tree, halving_doubling, hierarchical; ignored over shared memory and
    /// for operations with a single algorithm.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub(super) algorithms: Vec<String>,
    /// Measure all algorithms and report where the group's choice is slower than the best.
    #[arg(long, conflicts_with = "algorithms")]
    pub(super) choice: bool,
    /// Transports: auto, shared_memory, tcp, tls (with certificates for this run).
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub(super) transports: Vec<String>,
    /// Memory of the buffers over shared memory: group (allocated by the group, read in place by peers), any (ordinary
    /// memory, copied in pieces).
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "group,any"
    )]
    pub(super) memory: Vec<String>,
    /// Element type: f64, f32, f16, bf16, i64, i32, u32, u8.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(super) dtype: String,
    /// Reduction operator: sum, mean, min, max, product, and, or, xor.
    #[arg(long, value_name = "OP", default_value = "sum")]
    pub(super) op: String,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) rounds: usize,
    /// Seconds per measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25)]
    pub(super) budget: f64,
    /// Number of hosts to simulate, for the hierarchical algorithm.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) hosts: usize,
    /// Seed of the random data.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(super) seed: u64,
    /// Compare with: gloo, mpi (these need mpirun and a Python with numpy, mpi4py and, for gloo, torch), loop (a lower
    /// bound: reads, adds and writes the same bytes).
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) against: Vec<String>,
    /// Python interpreter for --against.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Write all results to a JSON file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Print why each algorithm was chosen.
    #[arg(long)]
    pub(super) reasons: bool,
    /// Print rounds, messages and bytes of each algorithm, and the choice with its reason, without running anything.
    #[arg(long)]
    pub(super) explain: bool,
}

/// The other measurements of `ronde bench`.
#[derive(Subcommand)]
pub(super) enum BenchCommand {
    /// Measure training steps: samples per second, time by phase, cost of communication.
    Train(BenchTrainArguments),
    /// Measure data loading without training: reading, decoding and batching.
    Data(BenchDataArguments),
    /// Measure the kernels of a model, compared with this machine's product and memory rates.
    Kernels(BenchKernelsArguments),
}

/// Arguments of `ronde bench kernels`.
#[derive(Args)]
#[command(after_help = "\
Each line is one kernel with one shape: calls and time per step, share of the step, floating-point operations and bytes
per second, and the part of the time that a matrix product and memory at full rate would take. Samples are those of one
logical shard. The loss and the optimizer are not measured.")]
pub(crate) struct BenchKernelsArguments {
    /// Run file of another model.
    #[arg(conflicts_with = "model")]
    pub(super) file: Option<PathBuf>,
    /// Model and batch of `ronde bench train`: mlp, resnet18, resnet50, vgg16, gpt, digits_cnn, unet, detector,
    /// inception_v3, bert, transformer.
    #[arg(long, value_name = "NAME", default_value = "resnet18")]
    pub(super) model: String,
    /// Override a value of the run file, such as `--set model.width=512`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// Number of measured steps, after one that is not measured.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) steps: u32,
    /// Measure only the forward pass, in evaluation mode as for inference.
    #[arg(long)]
    pub(super) forward: bool,
    /// Write all results to a JSON file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Arguments of `ronde bench data`.
#[derive(Args)]
#[command(after_help = "\
The loader of one worker reads the data in the order of the first epoch, as in training. After the first round the
data is in the page cache, if it fits.")]
pub(crate) struct BenchDataArguments {
    /// Run file [default: the embedded example].
    pub(super) file: Option<PathBuf>,
    /// Override a value of the run file, such as `--set data.shuffle_window_mib=128`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// Numbers of loader threads, measured in turn.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    pub(super) threads: Vec<usize>,
    /// Steps per measurement [default: one epoch].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Write one JSON object per measurement to standard output instead of the table.
    #[arg(long)]
    pub(super) json: bool,
}

/// Arguments of `ronde bench train`.
#[derive(Args)]
#[command(after_help = "\
Each variant runs once per round, in separate processes; the first two steps of a run are not measured.
Batch size per worker, as in benchmarks/pytorch_ddp.py: mlp 256, resnet18 32, resnet50 4, vgg16 4, gpt 8 texts of
128 tokens. digits_cnn 64, the models of examples/ 32; these have no counterpart in PyTorch.")]
pub(crate) struct BenchTrainArguments {
    /// Model: mlp, resnet18, resnet50, vgg16, gpt, digits_cnn, unet, detector, inception_v3, bert, transformer.
    #[arg(long, value_name = "NAME", default_value = "resnet18")]
    pub(super) model: String,
    /// Train on these TFRecords in the layout of ImageNet, such as `imagenet/train-*`, instead of synthetic images; for
    /// resnet50 and vgg16. Needs a build with `--features full`.
    #[arg(long, value_name = "FILES")]
    pub(super) records: Option<String>,
    /// Number of worker processes.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) workers: u32,
    /// Number of logical shards of a global batch [default: one per worker].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) shards: Option<u32>,
    /// Number of steps per run.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u64).range(3..))]
    pub(super) steps: u64,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Measure forward passes in evaluation mode instead of training steps; needs -n 1. PyTorch runs in inference mode.
    #[arg(long, conflicts_with_all = ["records", "shards", "bucket_bytes"])]
    pub(super) forward: bool,
    /// Precision on both sides: f32, bf16 or f16. PyTorch computes in it by autocast.
    #[arg(long, value_name = "NAME", default_value = "f32", value_parser = precision)]
    pub(super) precision: Precision,
    /// Override a value of the runs of this command, such as `--set train.recompute_activations=true`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// Bucket size in bytes [default: that of a run file].
    #[arg(long, value_name = "BYTES")]
    pub(super) bucket_bytes: Option<u64>,
    /// Compare with: one (a single worker), independent (the same number of workers without communication), pytorch,
    /// pytorch-compiled (by torch.compile); the last two need a Python with torch.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "one,independent"
    )]
    pub(super) against: Vec<String>,
    /// Python interpreter for --against pytorch.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Write all results to a JSON file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

fn precision(name: &str) -> Result<Precision, String> {
    let all = [Precision::F32, Precision::Bf16, Precision::F16];
    let found = all.into_iter().find(|precision| precision.name() == name);
    found.ok_or_else(|| "expected f32, bf16 or f16".to_owned())
}
