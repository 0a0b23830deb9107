//! ronde: distributed training whose result does not depend on the cluster.
//!
//! The same run file gives the same bits of trained model on any number of workers. The command is
//! documented by `ronde --help`. As a library, for your own Burn model:
//!
//! ```no_run
//! use ronde::engine::{BurnLayer, Chain, training_device};
//! use ronde::engine::burn::nn::LinearConfig;
//! use ronde::engine::burn::tensor::Tensor;
//!
//! let mut worker = ronde::Worker::start()?; // alone, or as a rank under `ronde run -n 3 -- program`
//! let config = ronde::RunConfig::example();
//! let opening = ronde::environment::opening(".".as_ref(), config.run.seed);
//! let data = ronde::data::open(&config.data, &opening)?;
//! let trained = worker.train(&config, data, || {
//!     let module = LinearConfig::new(64, 10).init(&training_device());
//!     let layer = BurnLayer::new(module, |m, x: Tensor<4>, _: &_| m.forward(x.reshape([-1, 64])));
//!     Chain::new(vec![Box::new(layer)])
//! })?;
//! println!("{}", trained.blake3()?);
//! # Ok::<(), ronde::Error>(())
//! ```
//!
//! [`Worker::group`] provides collectives for other algorithms. [`Session`], the step as a transaction, is the basis
//! of a custom training loop.

mod aws_files;
pub mod environment;
mod error;
pub mod host;
mod sigterm;
mod worker;

pub use error::Error;
pub use ronde_comm as comm;
pub use ronde_core as core;
pub use ronde_core::session::Session;
pub use ronde_core::{
    Assignment, Collectives, CollectivesExt, GroupRank, PointToPoint, Rank, ReduceOp,
};
pub use ronde_data as data;
pub use ronde_engine as engine;
pub use ronde_monitor as monitor;
pub use ronde_parallel as parallel;
pub use ronde_train as train;
pub use ronde_train::RunConfig;
pub use ronde_train::checkpoints::Resume;
pub use worker::{TrainedModel, Worker};
