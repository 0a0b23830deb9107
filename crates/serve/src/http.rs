//! The HTTP server of a model: requests wait in queues, and threads compute them together.

mod batch_queue;
mod clock;
mod endpoints;
mod metrics;
mod model_serving;
mod number_array;
mod openapi;
mod prediction_worker;
mod requests;
mod served_model;
mod server;
mod text_worker;

pub use served_model::ServedModel;
pub use server::{HttpSettings, ModelSource, serve};
