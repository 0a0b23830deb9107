//! Process groups from the outside: results, messages, joining, failures, over both transports.

mod collectives;
mod failures;
mod joining;
mod meshes;
mod messages;
mod processes;
mod shared;
