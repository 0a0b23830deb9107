//! Process groups from the outside: results, messages, joining, failures, over all transports.

mod collectives;
mod failures;
mod flight;
mod joining;
mod meshes;
mod messages;
mod operations;
mod reference;
mod security;
mod splits;
