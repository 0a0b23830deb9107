//! A device with separate memory and an asynchronous queue, written against the public interface: it conforms, it trains to the
//! bits of the host, and [`check_kernel`] finds its faults.

mod device;

use std::sync::Arc;

use device::{KernelFault, QueueDevice};
use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::device::Kernel;
use ronde_engine::device::kernel::OnHost;
use ronde_engine::*;

#[test]
fn it_conforms_and_a_device_that_computes_nothing_is_found_out() {
    assert_eq!(check_device(&QueueDevice::new(), 0.0), Vec::<String>::new());
    let found = check_device(&PlanningDevice::new(), 0.01);
    let has = |kernel: &str| found.iter().any(|found| found.starts_with(kernel));
    for kernel in [
        "copy,",
        "multiply 5",
        "convolution",
        "max_pool",
        "batch_norm",
        "embed",
        "squared_distances",
        "factor_scores",
        "Bf16",
    ] {
        assert!(has(kernel), "{kernel} in {found:#?}");
    }
}

#[test]
fn it_conforms_with_all_buffers_in_one_memory() {
    let device = QueueDevice::in_one_memory(1 << 24);
    assert_eq!(check_device(&device, 0.0), Vec::<String>::new());
}

#[test]
fn every_kernel_is_checked_without_elements_and_with_nan() {
    let device = QueueDevice::new();
    assert_eq!(check_device(&device, 0.0), Vec::<String>::new());
    let seen = device.seen();
    let is_missed = |name: &&str| {
        let seen = seen.get(name).copied().unwrap_or_default();
        // These read nothing.
        let is_generated = ["fill", "draw_dropout"].contains(name);
        !(seen.has_been_empty && (seen.has_read_nan || is_generated))
    };
    let all = Kernel::<OnHost<'_>>::names().into_iter();
    let missed: Vec<&str> = all.filter(is_missed).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// Faults that change nothing that a kernel promises.
fn is_allowed(name: &str, fault: KernelFault) -> bool {
    match fault {
        // Nothing is read; or pairs and tokens are numbers, which are never NaN.
        KernelFault::HidesNan => ["fill", "draw_dropout"].contains(&name),
        _ => false,
    }
}

#[test]
fn every_fault_of_every_kernel_is_found() {
    let mut missed = Vec::new();
    let mut count = 0;
    for name in Kernel::<OnHost<'_>>::names() {
        for fault in KernelFault::ALL {
            let device = QueueDevice::with_fault(name, fault);
            let found = check_kernel(&device, name, 1e-6);
            // A fault that cannot happen in this kernel does not count.
            if device.has_failed() && !is_allowed(name, fault) {
                count += 1;
                if found.is_empty() {
                    missed.push(format!("{name}: {fault:?}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    assert!(count >= 200, "{count} faults");
}

/// Trains for some steps of two shards by plain descent, and returns the bits of all weights, with running statistics.
fn trained(
    config: &ModelConfig,
    shape: &[usize],
    classes: u32,
    precision: Precision,
    device: Option<Arc<dyn Device>>,
) -> Vec<u32> {
    let seeds = SeedTree::new(3);
    let chain = config.build(shape, classes, &seeds).expect("a model");
    let mut chain = chain.with_precision(precision).expect("short formats");
    let name = device.as_ref().map(|device| device.name());
    if let Some(device) = device {
        chain.set_device(&device);
    }
    assert!(name.is_none_or(|name| chain.engine().contains(&name)));
    let layout = chain.layout().clone();
    let arena = Arena::new(layout.tensors.iter().map(TensorEntry::elements));
    let mut state = vec![0.0; arena.len()];
    chain.save_state(&mut state, arena.ranges());
    let samples = 2;
    for step in 0..3 {
        let mut sum = vec![0.0; arena.len()];
        chain.load_shared(&(Arc::new(state.clone()) as SharedState), arena.ranges());
        for shard in 0..2 {
            let context = ForwardContext {
                seeds,
                step: Step(step),
                shard: Shard(shard),
                layer: 0,
                mode: Mode::Train,
            };
            let elements = samples * shape.iter().product::<usize>();
            let value = |index: usize| match shape.len() {
                1 => ((index * 7 + step as usize + shard as usize) % classes as usize) as f32,
                _ => ((index * 37 + 11 * shard as usize + step as usize) % 101) as f32 / 50.0 - 1.0,
            };
            let input = Activation::from_host(
                &[&[samples], shape].concat(),
                (0..elements).map(value).collect(),
            );
            let output = chain
                .forward_shard(input, &context)
                .expect("a forward pass")
                .on_host();
            let gradient = output.as_slice().iter().map(|y| 0.01 * y.sin()).collect();
            let gradient = Activation::from_host(output.shape(), gradient);
            let mut found = vec![f32::NAN; arena.len()];
            chain
                .backward_shard(Shard(shard), gradient, &mut found, arena.ranges(), false)
                .expect("a backward pass");
            sum.iter_mut()
                .zip(&found)
                .for_each(|(sum, found)| *sum += found);
        }
        for (tensor, range) in layout.tensors.iter().zip(arena.ranges()) {
            for index in range.clone() {
                match tensor.role {
                    Role::Buffer => state[index] = sum[index] / 2.0,
                    _ => state[index] -= 0.1 * sum[index],
                }
            }
        }
    }
    assert!(state.iter().all(|value| value.is_finite()));
    state.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn models_train_to_the_bits_of_the_host() {
    let gpt = ModelConfig::Gpt {
        layers: 2,
        width: 16,
        heads: 2,
        dropout: 0.1,
        tied: true,
        tensor_parts: 1,
    };
    let resnet = |normalisation| ModelConfig::ResNet18 {
        small_input: true,
        normalisation,
    };
    let factorisation = ModelConfig::MatrixFactorisation {
        users: 4,
        items: 4,
        factors: 3,
    };
    let cases: [(ModelConfig, &[usize], u32); 7] = [
        (ModelConfig::KMeans { clusters: 3 }, &[6], 4),
        (factorisation, &[2], 4),
        (gpt, &[12], 20),
        (resnet(Normalisation::Batch), &[3, 16, 16], 5),
        (resnet(Normalisation::Group), &[3, 16, 16], 5),
        (resnet(Normalisation::SynchronisedBatch), &[3, 16, 16], 5),
        (
            ModelConfig::UNet {
                channels: 4,
                levels: 2,
            },
            &[3, 16, 16],
            1,
        ),
    ];
    for (config, shape, classes) in cases {
        for precision in [Precision::F32, Precision::Bf16] {
            let on = |device| trained(&config, shape, classes, precision, device);
            let queued: Arc<dyn Device> = Arc::new(QueueDevice::new());
            let is_same = on(None) == on(Some(queued));
            assert!(is_same, "{} in {}", config.kind(), precision.name());
        }
    }
}
