//! Fuzz targets as plain functions; `cargo fuzz run <target>` here and `crates/comm/tests/decoders.rs` call them.

pub mod targets;
