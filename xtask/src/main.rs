//! The tools of those who change ronde.
fn main() {}
