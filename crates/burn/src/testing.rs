//! Test support: arenas, contexts and made-up samples.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Shard, Step};
use ronde_engine::{Activation, ForwardContext, Layer, LayerExt, Mode};

/// Keeps the tests that use Burn's generator of random numbers apart: a process has only one.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static USED: Mutex<()> = Mutex::new(());
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns numbers in `[-1, 1)`, the same for the same seed.
pub(crate) fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    let stream = SeedTree::new(seed).stream(Purpose::Synthetic, &[]);
    stream.fill_uniform(&mut values);
    values.into_iter().map(|x| 2.0 * x - 1.0).collect()
}

pub(crate) fn samples(shape: &[usize], seed: u64) -> Activation {
    Activation::from_host(shape, uniform(shape.iter().product(), seed))
}

pub(crate) fn training(step: u64, shard: u32) -> ForwardContext {
    ForwardContext {
        seeds: SeedTree::new(42),
        step: Step(step),
        shard: Shard(shard),
        layer: 0,
        mode: Mode::Train,
    }
}

pub(crate) fn arena<S: Layer + ?Sized>(layer: &S) -> Arena {
    let tensors = &layer.layout().tensors;
    Arena::new(tensors.iter().map(TensorEntry::elements))
}

/// Returns the state of a layer as a flat arena.
pub(crate) fn state<S: Layer + ?Sized>(layer: &S) -> (Vec<f32>, Arena) {
    let arena = arena(layer);
    let mut state = vec![0.0; arena.len()];
    layer.save_state(&mut state, arena.ranges());
    (state, arena)
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
