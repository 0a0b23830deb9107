//! Nodes in one process and in several: calls, bounds, faults, hostile peers, references.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod faults;
mod gradients;
mod hostile;
mod references;
mod support;
