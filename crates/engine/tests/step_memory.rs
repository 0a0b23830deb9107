//! The planned memory of a step is the memory that it takes.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::{
    Activation, Chain, ForwardContext, LayerExt, Mode, ModelConfig, Normalisation, Precision,
    Recomputation, SharedState, StepShape, host_memory,
};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes in use, without the slabs of activations.
struct Counting;

/// The least number of bytes of a slab.
const SLAB: usize = 256 << 20;

// SAFETY: passes all calls on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() < SLAB {
            let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            PEAK.fetch_max(now, Ordering::Relaxed);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= SLAB {
            // SAFETY: guaranteed by the caller.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as above, and the memory has this size.
        unsafe {
            let at = self.alloc(layout);
            if !at.is_null() {
                at.write_bytes(0, layout.size());
            }
            at
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() < SLAB {
            NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a training step of one shard, whose gradients go to `gradients`.
fn run(chain: &mut Chain, shape: &[usize], gradients: &mut [f32], arena: &Arena) {
    let context = ForwardContext {
        seeds: SeedTree::new(1),
        step: Step(0),
        shard: Shard(0),
        layer: 0,
        mode: Mode::Train,
    };
    let input = Activation::from_host(shape, vec![0.5; shape.iter().product()]);
    let mut output = chain
        .forward_shard(input, &context)
        .expect("a forward pass");
    // As a loss that replaces the outputs by their gradient.
    output.host_mut().expect("the only owner").fill(0.01);
    chain
        .backward_shard(Shard(0), output, gradients, arena.ranges(), false)
        .expect("a backward pass");
}

/// The number of samples of a step.
const SAMPLES: usize = 16;

/// Returns the planned bytes of a step, and the bytes that it takes on the host beyond the state.
fn planned_and_taken(
    config: &ModelConfig,
    sample: &[usize],
    classes: u32,
    recomputation: &Recomputation,
    precision: Precision,
) -> [usize; 2] {
    let step = StepShape {
        sample,
        classes,
        samples: SAMPLES,
        shards: 1,
        is_by_layer: false,
        recomputation,
        precision,
    };
    let planned = 4 * config.step_floats(&step).expect("a model") as usize;
    // In a separate thread, which has no free memory yet; kernels have their buffers after a first small step.
    let (config, shape) = (config.clone(), [&[SAMPLES], sample].concat());
    let recomputation = recomputation.clone();
    let taken = std::thread::spawn(move || {
        let mut chain = config
            .build(&shape[1..], classes, &SeedTree::new(1))
            .expect("a model")
            .with_precision(precision)
            .expect("layers of this engine");
        chain = chain
            .recomputing(&recomputation)
            .expect("layers of the model");
        let tensors = chain.layout().tensors.clone();
        let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
        let mut gradients = vec![0.0; arena.len()];
        let mut state = vec![0.0; arena.len()];
        chain.save_state(&mut state, arena.ranges());
        chain.load_shared(&(Arc::new(state) as SharedState), arena.ranges());
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let slabs = host_memory().taken;
        run(&mut chain, &shape, &mut gradients, &arena);
        run(&mut chain, &shape, &mut gradients, &arena);
        let buffers = ronde_kernels::buffer_bytes();
        let slabs = 4 * (host_memory().taken - slabs);
        PEAK.load(Ordering::Relaxed) - before - buffers + slabs
    });
    [planned, taken.join().expect("a step")]
}

#[test]
fn a_step_takes_the_memory_that_was_planned() {
    let gpt = ModelConfig::Gpt {
        layers: 4,
        width: 128,
        heads: 4,
        dropout: 0.1,
        tied: false,
        tensor_parts: 1,
    };
    let in_parts = ModelConfig::Gpt {
        layers: 4,
        width: 128,
        heads: 4,
        dropout: 0.1,
        tied: false,
        tensor_parts: 4,
    };
    let resnet = ModelConfig::ResNet18 {
        small_input: true,
        normalisation: Normalisation::Batch,
    };
    let half = Recomputation::Layers(vec!["block1..block2".to_owned()]);
    let unet = ModelConfig::UNet {
        channels: 16,
        levels: 3,
    };
    let (off, all) = (&Recomputation::Off, &Recomputation::All);
    let cases = [
        (&gpt, &[128][..], 100, off, Precision::F32),
        (&gpt, &[128], 100, off, Precision::Bf16),
        (&gpt, &[128], 100, all, Precision::F32),
        (&gpt, &[128], 100, all, Precision::Bf16),
        (&gpt, &[128], 100, &half, Precision::F32),
        (&in_parts, &[128], 100, off, Precision::F32),
        (&in_parts, &[128], 100, off, Precision::Bf16),
        (&in_parts, &[128], 100, all, Precision::F32),
        (&resnet, &[3, 32, 32], 10, off, Precision::F32),
        (&resnet, &[3, 32, 32], 10, off, Precision::Bf16),
        (&unet, &[3, 64, 64], 1, off, Precision::F32),
    ];
    for (config, sample, classes, recomputation, precision) in cases {
        let [planned, taken] = planned_and_taken(config, sample, classes, recomputation, precision);
        let apart = planned.abs_diff(taken) as f64 / taken as f64;
        let name = config.kind();
        assert!(apart < 0.02, "{name}: planned {planned}, taken {taken}");
    }
}
