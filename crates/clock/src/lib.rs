//! Reads the clocks of the machine, and sleeps.
//!
//! Other crates use it instead of the standard library: `clippy.toml` forbids `Instant::now` and `thread::sleep`. A crate that must
//! not know the time does not depend on this one, and `cargo xtask tidy` checks that. State machines receive the time as an argument.

#![forbid(unsafe_code)]

mod date;
mod monotonic;
mod stopwatch;
mod wait;

pub use date::{date, since_1970, unix_ms, unix_s};
pub use monotonic::{deadline, host_ns, left, now, seconds};
pub use stopwatch::Stopwatch;
pub use wait::{pause, wait_until, wait_until_every};
