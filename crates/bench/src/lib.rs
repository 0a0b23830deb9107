//! Measurement of collectives between real processes: `ronde bench`, except starting the workers.
//!
//! [`Settings`] specify the measurements. Each worker runs [`run`]: it connects a group per
//! transport and algorithm and runs all cases of one size in alternating turns over several rounds,
//! so that they are subject to the same noise. Data are random, and the whole result of an
//! operation is checked in every turn against a reference in f64. Rank 0 sends [`MeasurementRow`]s
//! to the command's [`Hub`], which forwards turns to Gloo and Open MPI where they are measured too.
//! [`CollectivesReport`] and [`Columns`] present the results, [`choice_table`] the
//! quality of the choice of algorithms; [`explain`] computes the traffic without running anything.
//!
//! [`measure`] runs whole training runs of the command, for `ronde bench train`. [`KernelReport`] compares the kernels of a
//! model, which the command measures, with the rates of the machine.

#![forbid(unsafe_code)]

mod cases;
mod choice_comparison;
mod competitor;
mod error;
mod explain;
mod groups;
mod hub;
mod kernels;
mod machine;
mod measure;
mod mpi_launcher;
mod operation;
mod output_tail;
mod peak;
mod plain_loop;
mod reference;
mod report;
mod report_json;
mod settings;
mod sizes;
mod statistics;
mod table;
mod training;
mod turns;
mod values;
mod worker;

pub use choice_comparison::{ChoiceComparison, choice_table, chosen, every_algorithm};
pub use competitor::{CompetitorLaunch, CompetitorProcess};
pub use error::BenchError;
pub use explain::explain;
pub use hub::{Hub, HubEvent};
pub use kernels::{KernelReport, KernelRow, MachineRates};
pub use machine::{CpuCache, Machine};
pub use operation::{OperationKind, OperationShape};
pub use peak::matrix_peak_flops;
pub use report::{CollectivesReport, FORMAT, Implementation, MeasurementRow, times_as_fast, write};
pub use settings::{BenchTask, BenchTransport, BufferMemory, Competitor, Preference, Settings};
pub use sizes::{BYTES_MAX, DEFAULT_SIZES, parse_size, parse_sizes, show_bytes};
pub use statistics::Statistics;
pub use table::{Columns, footnotes};
pub use training::{
    Programs, RunTimes, TrainingCase, TrainingReport, TrainingSettings, Variant, VariantReport,
    bytes_without_model, measure,
};
pub use worker::run;
