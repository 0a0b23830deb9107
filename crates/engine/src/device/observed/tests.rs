//! The observed device reports the computations of the other one.

use std::sync::Mutex;

use super::*;
use crate::context::ForwardContext;
use crate::device::kernel::{MatrixSlice, MultiplyKernel, RectifyKernel};
use crate::device::{DeviceSlice, HostDevice};

/// Counts the kernels that have begun, and keeps those that ended.
#[derive(Default)]
struct Observer(Mutex<(usize, Vec<KernelCall>)>);

impl KernelObserver for Observer {
    fn begin(&self) {
        self.0.lock().unwrap().0 += 1;
    }

    fn end(&self, call: KernelCall) {
        self.0.lock().unwrap().1.push(call);
    }
}

#[test]
fn calls_are_reported_with_their_costs_and_computed_by_the_other_device() {
    let observer = Arc::new(Observer::default());
    let device = ObservedDevice::new(Arc::new(HostDevice::new()), observer.clone());
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 2.0]);
    let mut c = [0.0; 2];
    // The matrix is stored as 3 x 2 and used as 2 x 3.
    let left = MatrixSlice::new(DeviceSlice::Host(&a), 3, 2).transposed();
    let right = MatrixSlice::new(DeviceSlice::Host(&b), 3, 1);
    MultiplyKernel {
        left,
        right,
        to: DeviceSliceMut::Host(&mut c),
        adds: false,
    }
    .run_on(&device);
    assert_eq!(c, [14.0, 18.0]);
    RectifyKernel {
        y: DeviceSliceMut::Host(&mut c),
    }
    .run_on(&device);
    let found = observer.0.lock().unwrap();
    assert_eq!(found.0, 2);
    let product = KernelCall {
        kernel: "multiply",
        work: KernelWork {
            shape: "2x3T 3x1".to_owned(),
            multiply_adds: 6.0,
            floats: 11,
        },
    };
    let rectified = KernelCall {
        kernel: "rectify",
        work: KernelWork {
            shape: "2".to_owned(),
            multiply_adds: 0.0,
            floats: 2,
        },
    };
    assert_eq!(found.1, [product, rectified]);
}

#[test]
fn it_conforms_as_the_other_device_does() {
    let device = ObservedDevice::new(Arc::new(HostDevice::new()), Arc::new(Observer::default()));
    assert_eq!(crate::check_device(&device, 0.0), Vec::<String>::new());
}

#[test]
fn the_first_layer_with_weights_computes_no_gradient_of_its_input() {
    use ronde_core::layout::{Arena, TensorEntry};
    use ronde_core::seed::SeedTree;
    use ronde_core::{Shard, Step};

    use crate::layer::LayerExt;

    let model = crate::ModelConfig::Mlp {
        hidden: vec![6, 5],
        tensor_parts: 1,
    };
    let seeds = SeedTree::new(1);
    let mut chain = model.build(&[1, 2, 2], 3, &seeds).unwrap();
    let observer = Arc::new(Observer::default());
    let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(
        Arc::new(HostDevice::new()),
        observer.clone(),
    ));
    chain.set_device(&device);
    let context = ForwardContext {
        seeds,
        step: Step(0),
        shard: Shard(0),
        layer: 0,
        mode: crate::Mode::Train,
    };
    let input = crate::Activation::from_host(&[2, 1, 2, 2], vec![0.5; 8]);
    chain.forward_shard(input, &context).unwrap();
    let gradient = crate::Activation::from_host(&[2, 3], vec![1.0; 6]);
    let arena = Arena::new(chain.layout().tensors.iter().map(TensorEntry::elements));
    let mut gradients = vec![0.0; arena.len()];
    let found = chain.backward_shard(Shard(0), gradient, &mut gradients, arena.ranges(), false);
    assert!(found.unwrap().is_none());
    let calls = observer.0.lock().unwrap();
    let products = calls.1.iter().filter(|call| call.kernel == "multiply");
    // Three forward, three for weights, and two for the inputs of the later layers.
    assert_eq!(products.count(), 8);
}
