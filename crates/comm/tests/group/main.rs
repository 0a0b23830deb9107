//! Process groups from the outside: results, messages, joining, failures, over both transports.

mod collectives;
mod failures;
mod joining;
mod meshes;
mod messages;
#[expect(clippy::unwrap_used, reason = "helpers of tests are tests")]
mod processes;
mod shared;
