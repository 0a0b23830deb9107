//! The arguments of `ronde bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ronde_bench::DEFAULT_SIZES;

/// Arguments of `ronde bench`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ronde bench                                          all_reduce, two workers, shared memory
  ronde bench all -n 2,4 --transports tcp              every operation over TCP, two and four workers
  ronde bench --algorithms driver,ring --transports tcp -n 2,4,8 --sizes 1MiB
  ronde bench all_reduce exact_sum --choice --transports tcp -n 2,4 --sizes 8..64MiB
  ronde bench --against gloo,mpi --json out.json --plot out.svg
  ronde bench all_reduce -n 4,16 --explain             what would be sent, without running anything
  ronde bench train --model resnet18 --against pytorch training steps, PyTorch in the same run
  ronde bench data run.toml                            how quickly samples can be had")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(super) training: Option<TrainingCommand>,
    /// What to measure: all_reduce, reduce, reduce_scatter, all_gather, gather, scatter, broadcast,
    /// all_to_all, all_to_all_unequal, barrier, send_receive, exact_sum, or all [default: all_reduce]
    #[arg(value_name = "OPERATION", hide_default_value = true)]
    pub(super) operations: Vec<String>,
    /// Counts of worker processes; one job after the other.
    #[arg(
        short = 'n',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "2"
    )]
    pub(super) workers: Vec<usize>,
    /// Bytes of the buffer, up to 256MiB: sizes, and ranges such as 8..64MiB (steps of 8) or
    /// 8..64MiBx2.
    #[arg(long, value_name = "SIZE,..", default_value = DEFAULT_SIZES)]
    pub(super) sizes: String,
    /// auto, direct, driver, ring, tree, halving_doubling, hierarchical; of no account over shared
    /// memory and for operations that have one way.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub(super) algorithms: Vec<String>,
    /// Measure every algorithm beside the one that the group chooses, and tell where that is slower
    /// than the best.
    #[arg(long, conflicts_with = "algorithms")]
    pub(super) choice: bool,
    /// auto, shared_memory, tcp, tls (with certificates that are made for this run).
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub(super) transports: Vec<String>,
    /// Where the buffers are, over shared memory: group (from the group, read in place by the
    /// others), any (ordinary memory, copied in pieces).
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "group,any"
    )]
    pub(super) memory: Vec<String>,
    /// Type of the elements: f64, f32, f16, bf16, i64, i32, u32, u8.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(super) dtype: String,
    /// Operator of reductions: sum, mean, min, max, product, and, or, xor.
    #[arg(long, value_name = "OP", default_value = "sum")]
    pub(super) op: String,
    /// How often each case has its turn.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) rounds: usize,
    /// Seconds of a turn.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25)]
    pub(super) budget: f64,
    /// Tell the workers that they are on so many hosts, for the hierarchical algorithm.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) hosts: usize,
    /// Seed of the random data.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(super) seed: u64,
    /// Measure others in the same run, in turns: gloo, mpi (these need mpirun, and a Python with
    /// numpy, mpi4py and, for gloo, torch), loop (reads, adds and writes the same bytes: the bound).
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(super) against: Vec<String>,
    /// The Python of --against.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Write all results to a file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Draw time and bus bandwidth into a file (SVG).
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Tell why each algorithm was chosen.
    #[arg(long)]
    pub(super) reasons: bool,
    /// Run nothing: print rounds, messages and bytes of each algorithm, and the choice with its
    /// reason.
    #[arg(long)]
    pub(super) explain: bool,
}

/// What `ronde bench` measures besides collectives.
#[derive(Subcommand)]
pub(super) enum TrainingCommand {
    /// Measure training steps: samples a second, where the time goes, what communication costs.
    Train(TrainingArguments),
    /// Measure how quickly samples can be had: read, decoded and put into batches, without training.
    Data(DataArguments),
}

/// Arguments of `ronde bench data`.
#[derive(Args)]
#[command(after_help = "\
One worker's loader goes through the data as training would, in the order of the first epoch. What it reads is in
the memory of the system after the first round, where it fits.")]
pub(crate) struct DataArguments {
    /// Run file; without one the embedded example.
    pub(super) file: Option<PathBuf>,
    /// Change a value of the run file, as in `--set data.shuffle_window_mib=128`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// Threads that fetch and decode; several counts take turns.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    pub(super) threads: Vec<usize>,
    /// Steps of a turn [default: an epoch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// How often each has its turn.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Write one JSON object for each turn to standard output in place of the table.
    #[arg(long)]
    pub(super) json: bool,
}

/// Arguments of `ronde bench train`.
#[derive(Args)]
#[command(after_help = "\
Each variant runs once a round, as processes of its own; the first two steps of a run are left out. A worker
has the batch of benchmarks/pytorch_ddp.py: mlp 256, resnet18 32,
resnet50 and vgg16 4, gpt 8 texts of 128 tokens.")]
pub(crate) struct TrainingArguments {
    /// mlp, resnet18, resnet50, vgg16, gpt, digits_cnn.
    #[arg(long, value_name = "NAME", default_value = "resnet18")]
    pub(super) model: String,
    /// Worker processes.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) workers: u32,
    /// Logical shards of the global batch [default: one a worker]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) shards: Option<u32>,
    /// Steps of a run.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u64).range(3..))]
    pub(super) steps: u64,
    /// How often each variant has its turn.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Bytes up to which layers share a bucket [default: that of a run file]
    #[arg(long, value_name = "BYTES")]
    pub(super) bucket_bytes: Option<u64>,
    /// Measure others as well: one (one worker by itself), independent (as many workers that do not
    /// talk), pytorch (needs a Python with torch).
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "one,independent"
    )]
    pub(super) against: Vec<String>,
    /// The Python of --against pytorch.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(super) python: PathBuf,
    /// Write all results to a file.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
