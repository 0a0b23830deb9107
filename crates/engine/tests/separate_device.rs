//! A device with memory of its own, written against the public interface: it trains to the bits of the host.

use std::any::Any;
use std::sync::Arc;

use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::*;

/// Values that only [`SeparateDevice`] can address, stored with all bits inverted, so that a reader who goes around the
/// device finds nonsense.
struct SeparateMemory(Vec<u32>);

impl SeparateMemory {
    fn of(values: &[f32]) -> Self {
        Self(values.iter().map(|value| !value.to_bits()).collect())
    }

    fn values(&self) -> Vec<f32> {
        self.0.iter().map(|bits| f32::from_bits(!bits)).collect()
    }
}

impl ForeignMemory for SeparateMemory {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn read(&self, to: &mut [f32]) {
        to.copy_from_slice(&self.values());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Computes with the kernels of the host on copies.
#[derive(Default)]
struct SeparateDevice(HostDevice);

/// Returns the values of a buffer of the device.
fn read(from: DeviceSlice<'_>) -> Vec<f32> {
    match from {
        DeviceSlice::Host(_) => panic!("memory of the host reached a kernel of the device"),
        DeviceSlice::Foreign {
            memory,
            start,
            length,
        } => {
            let memory = memory.as_any().downcast_ref::<SeparateMemory>();
            let values = memory.expect("memory of this device").values();
            values[start..start + length].to_vec()
        }
    }
}

/// An argument of a kernel, which becomes one on the host.
trait Argument {
    type Held: Held;
    fn hold(self) -> Self::Held;
}

/// What an argument refers to while the host computes.
trait Held {
    type OnHost<'a>
    where
        Self: 'a;
    fn on_host(&mut self) -> Self::OnHost<'_>;
}

impl Argument for DeviceSlice<'_> {
    type Held = Vec<f32>;

    fn hold(self) -> Vec<f32> {
        read(self)
    }
}

impl Held for Vec<f32> {
    type OnHost<'a> = DeviceSlice<'a>;

    fn on_host(&mut self) -> DeviceSlice<'_> {
        DeviceSlice::Host(self)
    }
}

/// A buffer of the device while a kernel writes a copy of it.
struct Written<'a> {
    copy: Vec<f32>,
    to: &'a mut [u32],
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.to.copy_from_slice(&SeparateMemory::of(&self.copy).0);
    }
}

impl<'a> Argument for DeviceSliceMut<'a> {
    type Held = Written<'a>;

    fn hold(self) -> Written<'a> {
        let DeviceSliceMut::Foreign {
            memory,
            start,
            length,
        } = self
        else {
            panic!("memory of the host reached a kernel of the device");
        };
        let to = memory.as_any_mut().downcast_mut::<SeparateMemory>();
        let to = to.expect("memory of this device");
        let range = start..start + length;
        Written {
            copy: to.values()[range.clone()].to_vec(),
            to: &mut to.0[range],
        }
    }
}

impl<'w> Held for Written<'w> {
    type OnHost<'a>
        = DeviceSliceMut<'a>
    where
        'w: 'a;

    fn on_host(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut::Host(&mut self.copy)
    }
}

impl<T: Argument, const N: usize> Argument for [T; N] {
    type Held = [T::Held; N];

    fn hold(self) -> Self::Held {
        self.map(T::hold)
    }
}

impl<H: Held, const N: usize> Held for [H; N] {
    type OnHost<'a>
        = [H::OnHost<'a>; N]
    where
        H: 'a;

    fn on_host(&mut self) -> Self::OnHost<'_> {
        self.each_mut().map(H::on_host)
    }
}

impl<T: Argument> Argument for Option<T> {
    type Held = Option<T::Held>;

    fn hold(self) -> Self::Held {
        self.map(T::hold)
    }
}

impl<H: Held> Held for Option<H> {
    type OnHost<'a>
        = Option<H::OnHost<'a>>
    where
        H: 'a;

    fn on_host(&mut self) -> Self::OnHost<'_> {
        self.as_mut().map(H::on_host)
    }
}

struct HeldAffine([Vec<f32>; 2]);

impl Argument for AffineSlices<'_> {
    type Held = HeldAffine;

    fn hold(self) -> HeldAffine {
        HeldAffine([self.gamma, self.beta].map(read))
    }
}

impl Held for HeldAffine {
    type OnHost<'a> = AffineSlices<'a>;

    fn on_host(&mut self) -> AffineSlices<'_> {
        let [gamma, beta] = self.0.each_ref().map(|values| DeviceSlice::Host(values));
        AffineSlices { gamma, beta }
    }
}

struct HeldMatrix {
    values: Vec<f32>,
    size: [usize; 2],
    is_transposed: bool,
    format: Option<ShortFormat>,
}

impl Argument for MatrixSlice<'_> {
    type Held = HeldMatrix;

    fn hold(self) -> HeldMatrix {
        HeldMatrix {
            values: read(self.values),
            size: [self.rows, self.columns],
            is_transposed: self.is_transposed,
            format: self.format,
        }
    }
}

impl Held for HeldMatrix {
    type OnHost<'a> = MatrixSlice<'a>;

    fn on_host(&mut self) -> MatrixSlice<'_> {
        MatrixSlice {
            values: DeviceSlice::Host(&self.values),
            rows: self.size[0],
            columns: self.size[1],
            is_transposed: self.is_transposed,
            format: self.format,
        }
    }
}

/// An argument that is the same everywhere.
struct Plain<T>(T);

impl<T: Copy> Held for Plain<T> {
    type OnHost<'a>
        = T
    where
        T: 'a;

    fn on_host(&mut self) -> T {
        self.0
    }
}

macro_rules! plain {
    ($($kind:ty),*) => {
        $(impl Argument for $kind {
            type Held = Plain<Self>;

            fn hold(self) -> Plain<Self> {
                Plain(self)
            }
        })*
    };
}

plain!(
    bool,
    usize,
    f32,
    f64,
    &[usize],
    &[f64],
    &[f32],
    SlidingWindow,
    PlaneMap,
    RowCopy,
    DrawnRows,
    TableRows,
    ActivationFunction,
    ShortFormat
);
plain!(u64, &ForwardContext);
plain!(&GroupedConvolution, &BatchNorm, &GroupNorm, &Attention);

impl Device for SeparateDevice {
    fn name(&self) -> String {
        "separate".to_owned()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        DeviceBuffer::Foreign(Box::new(SeparateMemory::of(&vec![f32::NAN; length])))
    }

    fn is_host(&self) -> bool {
        false
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        to.hold().copy.copy_from_slice(from);
    }

    fn copy(&self, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>) {
        to.hold().copy.copy_from_slice(&read(from));
    }

    fn fill(&self, to: DeviceSliceMut<'_>, value: f32) {
        to.hold().copy.fill(value);
    }
}

/// Implements kernels by those of the host.
macro_rules! kernels {
    ($kernels:ident { $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        impl $kernels for SeparateDevice {
            $(fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                $(let mut $argument = $argument.hold();)*
                self.0.$name($($argument.on_host()),*)
            })*
        }
    };
}

kernels!(MatrixKernels {
    fn multiply(left: MatrixSlice<'_>, right: MatrixSlice<'_>, to: DeviceSliceMut<'_>, adds: bool);
    fn repeat_row(row: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
    fn sum_rows(rows: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
});

kernels!(ImageKernels {
    fn convolve(shape: &GroupedConvolution, format: Option<ShortFormat>, samples: usize, x: DeviceSlice<'_>, w: DeviceSlice<'_>, y: DeviceSliceMut<'_>);
    fn convolve_input_gradient(shape: &GroupedConvolution, format: Option<ShortFormat>, samples: usize, w: DeviceSlice<'_>, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);
    fn convolve_weight_gradient(shape: &GroupedConvolution, format: Option<ShortFormat>, samples: usize, x: DeviceSlice<'_>, dy: DeviceSlice<'_>, dw: DeviceSliceMut<'_>);
    fn add_to_channels(y: DeviceSliceMut<'_>, places: usize, added: DeviceSlice<'_>);
    fn sum_channels(x: DeviceSlice<'_>, places: usize, to: DeviceSliceMut<'_>);
    fn max_pool(size: [usize; 2], window: SlidingWindow, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>, from: DeviceSliceMut<'_>);
    fn max_pool_gradient(size: [usize; 2], window: SlidingWindow, dy: DeviceSlice<'_>, from: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);
    fn map_planes(map: PlaneMap, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>);
    fn map_planes_gradient(map: PlaneMap, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);
});

kernels!(NormKernels {
    fn batch_norm(shape: &BatchNorm, x: DeviceSlice<'_>, affine: AffineSlices<'_>, added: Option<DeviceSlice<'_>>, y: DeviceSliceMut<'_>, statistics: DeviceSliceMut<'_>);
    fn batch_norm_by(shape: &BatchNorm, x: DeviceSlice<'_>, affine: AffineSlices<'_>, added: Option<DeviceSlice<'_>>, y: DeviceSliceMut<'_>, statistics: DeviceSlice<'_>);
    fn batch_norm_gradient(shape: &BatchNorm, inputs: [DeviceSlice<'_>; 4], statistics: DeviceSlice<'_>, gradients: [DeviceSliceMut<'_>; 3], of_added: Option<DeviceSliceMut<'_>>);
    fn known_statistics(running: [DeviceSlice<'_>; 2], epsilon: f64, statistics: DeviceSliceMut<'_>);
    fn move_statistics(running: [DeviceSlice<'_>; 2], statistics: DeviceSlice<'_>, momentum: f64, to: [DeviceSliceMut<'_>; 2]);
    fn batch_moments(shape: &BatchNorm, x: DeviceSlice<'_>) -> Vec<f64>;
    fn batch_gradient_sums(shape: &BatchNorm, x: DeviceSlice<'_>, dy: DeviceSlice<'_>, statistics: DeviceSlice<'_>) -> Vec<f64>;
    fn batch_input_gradient(shape: &BatchNorm, x: DeviceSlice<'_>, gamma: DeviceSlice<'_>, statistics: DeviceSlice<'_>, summed: &[f64], dy: DeviceSliceMut<'_>);
    fn batch_affine_gradients(shape: &BatchNorm, own: &[f64], statistics: DeviceSlice<'_>, to: [DeviceSliceMut<'_>; 2]);
    fn group_norm(shape: &GroupNorm, x: DeviceSlice<'_>, affine: AffineSlices<'_>, y: DeviceSliceMut<'_>, statistics: DeviceSliceMut<'_>);
    fn group_norm_gradient(shape: &GroupNorm, inputs: [DeviceSlice<'_>; 3], statistics: DeviceSlice<'_>, gradients: [DeviceSliceMut<'_>; 3]);
    fn layer_norm(x: DeviceSlice<'_>, affine: AffineSlices<'_>, epsilon: f64, y: DeviceSliceMut<'_>, statistics: DeviceSliceMut<'_>);
    fn layer_norm_gradient(inputs: [DeviceSlice<'_>; 3], statistics: DeviceSlice<'_>, gradients: [DeviceSliceMut<'_>; 3]);
});

kernels!(SequenceKernels {
    fn attend(shape: &Attention, inputs: [DeviceSlice<'_>; 2], lengths: &[usize], y: DeviceSliceMut<'_>, statistics: DeviceSliceMut<'_>);
    fn attend_gradient(shape: &Attention, format: Option<ShortFormat>, inputs: [DeviceSlice<'_>; 4], lengths: &[usize], gradients: [DeviceSliceMut<'_>; 2]);
    fn embed(width: usize, tokens: DeviceSlice<'_>, tables: [DeviceSlice<'_>; 2], y: DeviceSliceMut<'_>);
    fn embed_rows(rows: TableRows, tokens: DeviceSlice<'_>, table: DeviceSlice<'_>, y: DeviceSliceMut<'_>);
    fn embed_rows_gradient(rows: TableRows, tokens: DeviceSlice<'_>, dy: DeviceSlice<'_>, gradient: DeviceSliceMut<'_>);
    fn embed_gradient(width: usize, tokens: DeviceSlice<'_>, dy: DeviceSlice<'_>, gradients: [DeviceSliceMut<'_>; 2]);
});

kernels!(TableKernels {
    fn squared_distances(width: usize, inputs: [DeviceSlice<'_>; 2], to: DeviceSliceMut<'_>);
    fn point_gradients(width: usize, inputs: [DeviceSlice<'_>; 2], dy: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
    fn centre_gradients(width: usize, inputs: [DeviceSlice<'_>; 2], dy: DeviceSlice<'_>, scales: &[f32], to: DeviceSliceMut<'_>);
    fn factor_scores(factors: usize, pairs: DeviceSlice<'_>, tables: [DeviceSlice<'_>; 5], y: DeviceSliceMut<'_>);
    fn factor_gradients(factors: usize, pairs: DeviceSlice<'_>, rows: [DeviceSlice<'_>; 2], dy: DeviceSlice<'_>, gradients: [DeviceSliceMut<'_>; 5]);
});

kernels!(ElementKernels {
    fn draw_dropout(context: &ForwardContext, probability: f64, index: u64, drawn: DrawnRows, to: DeviceSliceMut<'_>);
    fn add(y: DeviceSliceMut<'_>, x: DeviceSlice<'_>);
    fn multiply_by(y: DeviceSliceMut<'_>, factors: DeviceSlice<'_>);
    fn rectify(y: DeviceSliceMut<'_>);
    fn rectify_gradient(y: DeviceSlice<'_>, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);
    fn activate(function: ActivationFunction, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>, slope: Option<DeviceSliceMut<'_>>);
    fn copy_rows(copy: RowCopy, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
});

kernels!(PrecisionKernels {
    fn round(format: ShortFormat, values: DeviceSliceMut<'_>);
    fn pack(format: ShortFormat, values: DeviceSlice<'_>, packed: DeviceSliceMut<'_>);
    fn unpack(format: ShortFormat, packed: DeviceSlice<'_>, values: DeviceSliceMut<'_>);
});

#[test]
fn the_separate_device_conforms_and_a_wrong_one_is_found_out() {
    assert_eq!(
        check_device(&SeparateDevice::default(), 0.0),
        Vec::<String>::new()
    );
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
    chain.save(&mut state, arena.ranges());
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
                .forward(input, &context)
                .expect("a forward pass")
                .on_host();
            let gradient = output.as_slice().iter().map(|y| 0.01 * y.sin()).collect();
            let gradient = Activation::from_host(output.shape(), gradient);
            let mut found = vec![f32::NAN; arena.len()];
            chain
                .backward(Shard(shard), gradient, &mut found, arena.ranges(), false)
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
            let separate: Arc<dyn Device> = Arc::new(SeparateDevice::default());
            let is_same = on(None) == on(Some(separate));
            assert!(is_same, "{} in {}", config.kind(), precision.name());
        }
    }
}
