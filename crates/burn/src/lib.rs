//! Burn modules as layers: [`BurnLayer`] makes a [`Layer`](ronde_engine::Layer) of any Burn module
//! and a closure that runs it.
//!
//! # Reproducible bits
//!
//! `burn-flex` sums in an order that depends on its number of threads, so **the engine is pinned to
//! one thread**: Burn's `rayon` feature is off, and more cores are used by more ranks. Machines
//! compute equal bits when [`engine_name`] and [`ronde_engine::cpu_features`] are equal.

mod burn_layer;
mod device;
mod dropout;
mod module_state;
#[cfg(test)]
mod testing;
mod values;
mod with_gradient;

pub use burn;

pub use burn_layer::BurnLayer;
pub use device::{engine_name, seed_engine, training_device};
pub use dropout::dropout;
