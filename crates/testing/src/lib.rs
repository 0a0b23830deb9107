//! The shared functions of the tests of all crates.

mod skip;

pub use skip::skip;
