//! Whole jobs: real processes, their rendezvous, and the end of all of them.

#![expect(clippy::unwrap_used, reason = "a missing precondition fails the test")]

mod orphans;
mod processes;
mod rendezvous;
mod support;
