//! Tests of saving, loading, damage, kills, concurrent writers and retention, with real folders and processes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests panic on failures, report to other tests, and time their kills"
)]

mod child;
mod concurrent_retention;
mod damage;
mod disk;
mod kill;
mod layouts;
mod retention;
mod state;
mod terms;
