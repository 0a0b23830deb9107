//! The HTTP server of a model: requests wait in queues, and threads compute them together.

mod batch_queue;
pub(crate) mod encoded_image;
mod endpoints;
mod image_decoding;
mod metrics;
mod model_serving;
mod named_row;
mod number_array;
mod openapi;
mod prediction_worker;
mod request_error;
pub(crate) mod requests;
mod served_model;
mod server;
mod serving_state;
mod text_worker;

pub use served_model::ServedModel;
pub use server::serve;
pub use serving_state::{HttpSettings, ModelSource};
