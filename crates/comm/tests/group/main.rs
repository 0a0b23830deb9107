//! Tests of process groups through the public interface: results, messages, joining, failures, on all transports.

mod choice;
mod collectives;
mod failures;
mod flight;
mod foreign;
mod joining;
#[expect(clippy::unwrap_used, reason = "helpers of tests are tests")]
mod kept;
mod matrix;
mod meshes;
mod messages;
mod mismatches;
mod operations;
#[expect(clippy::unwrap_used, reason = "helpers of tests are tests")]
mod processes;
mod reference;
mod security;
mod shared;
mod soak;
mod splits;
