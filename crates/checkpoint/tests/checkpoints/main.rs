//! Saving, loading, damage, kills, rival writers, retention: on real folders, with real processes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may stop at what should not be, says what it skips, and times its kills"
)]

mod child;
mod damage;
mod disk;
mod kill;
mod layouts;
mod retention;
mod state;
mod terms;
