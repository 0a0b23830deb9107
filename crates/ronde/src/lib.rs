//! ronde: distributed training whose result does not depend on the cluster.
//!
//! The same run file gives the same bits of trained model on any number of workers. The command is
//! documented by `ronde --help`. As a library, for your own model:
//!
//! ```no_run
//! use ronde::core::seed::SeedTree;
//! use ronde::engine::{Chain, GraphBuilder};
//!
//! let mut worker = ronde::Worker::start()?; // alone, or as a rank under `ronde run -n 3 -- program`
//! let config = ronde::RunConfig::example();
//! let opening = ronde::environment::opening(".".as_ref(), config.run.seed);
//! let data = ronde::data::open(&config.data, &opening)?;
//! let trained = worker.trainer(&config, data).train(|| {
//!     let mut layer = GraphBuilder::new("output", &[1, 8, 8]);
//!     let x = layer.flatten(layer.input());
//!     layer.linear("", x, 10, true);
//!     Chain::new(vec![layer.build(&SeedTree::new(config.run.seed))?])
//! })?;
//! println!("{}", trained.blake3()?);
//! # Ok::<(), ronde::Error>(())
//! ```
//!
//! With the feature `burn`, any Burn module is a layer: see `ronde::burn::BurnLayer`.
//!
//! [`Trainer`] takes a loss, metrics, a learning rate and callbacks of your own, and writes a run folder. With
//! [`Worker::step_loop`] you write the loop yourself. [`Worker::group`] provides collectives for other algorithms.
//! [`Session`], the step as a transaction, is the basis of both.

mod aws_files;
pub mod created_folders;
pub mod environment;
mod error;
mod finished_run;
pub mod host;
pub mod mlflow;
pub mod output_folder;
pub mod results_address;
#[cfg(feature = "rpc")]
mod rpc_members;
mod run_output;
mod sigterm;
pub mod trackers;
mod trained_model;
mod trainer;
mod worker;

pub use error::Error;
pub use finished_run::FinishedRun;
#[cfg(feature = "burn")]
pub use ronde_burn as burn;
pub use ronde_cluster::{FixedRank, WaitSettings};
pub use ronde_comm as comm;
pub use ronde_core as core;
pub use ronde_core::{Collectives, CollectivesExt, GroupRank, PointToPoint, Rank, ReduceOp};
pub use ronde_data as data;
pub use ronde_engine as engine;
pub use ronde_parallel as parallel;
pub use ronde_protocol as protocol;
pub use ronde_protocol::Assignment;
#[cfg(feature = "rpc")]
pub use ronde_rpc as rpc;
pub use ronde_saved_model as saved_model;
pub use ronde_tracking as tracking;
pub use ronde_train as train;
pub use ronde_train::RunConfig;
pub use ronde_train::checkpoints::Resume;
pub use ronde_train::session::Session;
pub use trained_model::TrainedModel;
pub use trainer::Trainer;
pub use worker::Worker;
