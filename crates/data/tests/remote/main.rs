//! Sources and their cache with real services: S3, Azure Blob and web servers that run beside the tests.
//!
//! `crates/store/tests/servers.py` starts S3 and Azure Blob and writes the variables that name them; without those their
//! tests are skipped with a message. Web servers are started here.

#![cfg(feature = "full")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cache;
mod outages;
mod processes;
mod services;
mod sources;
