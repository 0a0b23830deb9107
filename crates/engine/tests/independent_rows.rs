//! The bits that the host computes for a sample depend neither on the number nor on the values of the samples beside it, for every
//! kernel whose samples need nothing of each other, at every level of instructions. So several shards can go through one call.

use ronde_engine::device::kernel::*;
use ronde_engine::*;
use ronde_kernels::{
    ActivationFunction, Attention, AverageAreas, BatchNorm, Convolution, GroupNorm,
    GroupedConvolution, Level, ShortFormat, SlidingWindow, with_level,
};

/// The numbers of samples that are computed together.
const COUNTS: [usize; 5] = [1, 2, 7, 33, 64];

/// Returns values between -1 and 1 that look random.
fn values(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..length).map(|_| next()).collect()
}

/// Returns all outputs of a kernel.
fn array<const N: usize>(outputs: Vec<DeviceSliceMut<'_>>) -> [DeviceSliceMut<'_>; N] {
    let mut outputs = outputs.into_iter();
    std::array::from_fn(|_| outputs.next().expect("a kernel has all outputs"))
}

/// A kernel whose inputs and outputs have as many floats for each sample.
struct SampleKernel<'a> {
    name: String,
    /// The numbers of floats of each input and output for a sample.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The format of the inputs.
    format: Option<ShortFormat>,
    /// Whether inputs are numbers that select rows.
    has_numbers: bool,
    run: RunSamples<'a>,
}

type RunSamples<'a> =
    Box<dyn Fn(&dyn Device, usize, &[DeviceSlice<'_>], Vec<DeviceSliceMut<'_>>) + 'a>;

impl SampleKernel<'_> {
    /// Returns the outputs for some samples.
    fn outputs(&self, device: &dyn Device, samples: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
        let joined = |input: usize| -> Vec<f32> {
            let parts = samples.iter().map(|sample| sample[input].clone());
            parts.collect::<Vec<_>>().concat()
        };
        let inputs: Vec<Vec<f32>> = (0..self.inputs.len()).map(joined).collect();
        let slices: Vec<DeviceSlice<'_>> = inputs.iter().map(|x| DeviceSlice::Host(x)).collect();
        let lengths = self.outputs.iter().map(|each| each * samples.len());
        let mut outputs: Vec<Vec<f32>> = lengths.map(|length| vec![-3.25; length]).collect();
        let to = outputs.iter_mut().map(|y| DeviceSliceMut::Host(y));
        (self.run)(device, samples.len(), &slices, to.collect());
        outputs
    }

    /// Compares each of some samples, computed together, with the same one alone.
    fn check(&self, device: &dyn Device, count: usize) {
        let mut samples: Vec<Vec<Vec<f32>>> = (0..count as u32)
            .map(|sample| {
                let seeds = (0..).map(|input| 1 + 97 * sample + input);
                let inputs = self.inputs.iter().zip(seeds);
                inputs.map(|(length, seed)| values(*length, seed)).collect()
            })
            .collect();
        for (index, sample) in samples.iter_mut().enumerate() {
            for input in sample.iter_mut() {
                if self.has_numbers {
                    input.iter_mut().for_each(|x| *x = (x.abs() * 4.0).floor());
                } else if index % 3 == 1 {
                    // A neighbour that is not finite, and one of the smallest values.
                    input.iter_mut().step_by(5).for_each(|x| *x = f32::NAN);
                    input
                        .iter_mut()
                        .skip(1)
                        .step_by(7)
                        .for_each(|x| *x = f32::INFINITY);
                } else if index % 3 == 2 {
                    input.iter_mut().for_each(|x| *x *= 1e-39);
                }
                if let Some(format) = self.format {
                    ronde_kernels::round_short(format, input);
                }
            }
        }
        let together = self.outputs(device, &samples);
        for (index, sample) in samples.iter().enumerate() {
            let alone = self.outputs(device, std::slice::from_ref(sample));
            for ((output, alone), each) in alone.iter().enumerate().zip(&self.outputs) {
                let found = &together[output][index * each..(index + 1) * each];
                let differs = |(one, two): (&f32, &f32)| {
                    one.to_bits() != two.to_bits() && !(one.is_nan() && two.is_nan())
                };
                let at = alone.iter().zip(found).position(differs);
                assert!(
                    at.is_none(),
                    "{}, output {output}: element {at:?} of sample {index} of {count} differs from the sample alone",
                    self.name
                );
            }
        }
    }
}

fn products(all: &mut Vec<SampleKernel<'_>>, format: Option<ShortFormat>) {
    for [inner, columns] in [[16, 10], [70, 49], [784, 128], [600, 17], [128, 512]] {
        for is_transposed in [false, true] {
            for adds in [false, true] {
                let mut right = values(inner * columns, 5);
                if let Some(format) = format {
                    ronde_kernels::round_short(format, &mut right);
                }
                all.push(SampleKernel {
                    name: format!("{inner} x {columns} of {format:?}, {is_transposed}, {adds}"),
                    inputs: vec![inner],
                    outputs: vec![columns],
                    format,
                    has_numbers: false,
                    run: Box::new(move |device, rows, x, to| {
                        let [to] = array(to);
                        let values = DeviceSlice::Host(&right);
                        let right = match is_transposed {
                            true => MatrixSlice::new(values, columns, inner).transposed(),
                            false => MatrixSlice::new(values, inner, columns),
                        };
                        MultiplyKernel {
                            left: MatrixSlice::new(x[0], rows, inner).rounded_to(format),
                            right: right.rounded_to(format),
                            to,
                            adds,
                        }
                        .run_on(device);
                    }),
                });
            }
        }
    }
}

fn convolutions(all: &mut Vec<SampleKernel<'_>>, format: Option<ShortFormat>) {
    let shapes = [
        (3, 5, [9, 8], [3, 3], 1, [1, 1], 1),
        (8, 16, [32, 32], [3, 3], 2, [1, 1], 1),
        (200, 24, [7, 7], [3, 3], 2, [1, 1], 1),
        (64, 128, [16, 16], [3, 3], 1, [1, 1], 1),
        (64, 80, [8, 8], [3, 3], 1, [1, 1], 1),
        (80, 96, [4, 4], [3, 3], 1, [1, 1], 1),
        (16, 24, [12, 12], [1, 1], 1, [0, 0], 1),
        (16, 24, [12, 12], [1, 1], 2, [0, 0], 1),
        (3, 16, [16, 16], [7, 7], 2, [3, 3], 1),
        (2, 3, [9, 8], [3, 3], 2, [1, 1], 2),
        (1, 1, [9, 8], [3, 3], 1, [1, 1], 6),
    ];
    for (channels, outputs, size, kernel, stride, padding, groups) in shapes {
        let each = Convolution {
            channels,
            size,
            outputs,
            kernel,
            stride: [stride; 2],
            padding,
        };
        let shape = GroupedConvolution { each, groups };
        let [image, result, weights] = shape.elements();
        let mut w = values(weights, 6);
        if let Some(format) = format {
            ronde_kernels::round_short(format, &mut w);
        }
        all.push(SampleKernel {
            name: format!("{shape:?} of {format:?}"),
            inputs: vec![image, result],
            outputs: vec![result, image],
            format,
            has_numbers: false,
            run: Box::new(move |device, samples, x, to| {
                let [y, dx] = array(to);
                let w = DeviceSlice::Host(&w);
                let (dy, x) = (x[1], x[0]);
                ConvolveKernel {
                    x,
                    w,
                    y,
                    shape,
                    format,
                    samples,
                }
                .run_on(device);
                ConvolveInputGradientKernel {
                    w,
                    dy,
                    dx,
                    shape,
                    format,
                    samples,
                }
                .run_on(device);
            }),
        });
    }
}

fn planes(all: &mut Vec<SampleKernel<'_>>) {
    let (size, window) = ([7, 6], SlidingWindow::new(3, 2, 1));
    all.push(SampleKernel {
        name: "max_pool".to_owned(),
        inputs: vec![2 * 42, 2 * 12],
        outputs: vec![2 * 12, 2 * 12, 2 * 42],
        format: None,
        has_numbers: false,
        run: Box::new(move |device, _, x, to| {
            let [y, mut from, dx] = array(to);
            MaxPoolKernel {
                x: x[0],
                y,
                from: from.reborrow(),
                size,
                window,
            }
            .run_on(device);
            MaxPoolGradientKernel {
                dy: x[1],
                from: DeviceSlice::Host(from.host()),
                dx,
                size,
                window,
            }
            .run_on(device);
        }),
    });
    let areas = AverageAreas {
        size,
        areas: [3, 2],
    };
    for (map, results) in [
        (PlaneMap::Average { size, window }, 12),
        (PlaneMap::Areas(areas), 6),
        (PlaneMap::Enlarge { size, factor: 2 }, 168),
    ] {
        all.push(SampleKernel {
            name: format!("{map:?}"),
            inputs: vec![2 * 42, 2 * results],
            outputs: vec![2 * results, 2 * 42],
            format: None,
            has_numbers: false,
            run: Box::new(move |device, _, x, to| {
                let [y, dx] = array(to);
                MapPlanesKernel { x: x[0], y, map }.run_on(device);
                MapPlanesGradientKernel { dy: x[1], dx, map }.run_on(device);
            }),
        });
    }
}

fn attentions(all: &mut Vec<SampleKernel<'_>>) {
    for (queries, keys, width, causal) in [(5, 5, 4, true), (4, 7, 16, false), (33, 33, 32, true)] {
        let shape = move |batch| Attention {
            batch,
            queries,
            keys,
            heads: 2,
            width,
            causal,
        };
        let [asking, looked_at, kept] = shape(1).elements();
        all.push(SampleKernel {
            name: format!("{:?}", shape(1)),
            inputs: vec![asking, looked_at, asking],
            outputs: vec![asking, asking, looked_at],
            format: None,
            has_numbers: false,
            run: Box::new(move |device, batch, x, to| {
                let [y, of_queries, of_keys_values] = array(to);
                let mut statistics = vec![0.0; batch * kept];
                AttendKernel {
                    queries: x[0],
                    keys_values: x[1],
                    y,
                    statistics: DeviceSliceMut::Host(&mut statistics),
                    shape: shape(batch),
                    lengths: Vec::new(),
                }
                .run_on(device);
                AttendGradientKernel {
                    queries: x[0],
                    keys_values: x[1],
                    statistics: DeviceSlice::Host(&statistics),
                    dy: x[2],
                    of_queries,
                    of_keys_values,
                    shape: shape(batch),
                    format: None,
                    lengths: Vec::new(),
                }
                .run_on(device);
            }),
        });
    }
}

fn norms_of_rows(all: &mut Vec<SampleKernel<'_>>) {
    let (gamma, beta) = (values(12, 7), values(12, 8));
    all.push(SampleKernel {
        name: "layer_norm".to_owned(),
        inputs: vec![120, 120],
        outputs: vec![120, 120],
        format: None,
        has_numbers: false,
        run: Box::new(move |device, samples, x, to| {
            let [y, dx] = array(to);
            let [gamma, beta] = [&gamma, &beta].map(|values| DeviceSlice::Host(values));
            let mut rows = vec![0.0; 2 * 10 * samples];
            let mut unused = [(); 2].map(|()| vec![0.0; 12]);
            let [of_gamma, of_beta] = unused.each_mut().map(|x| DeviceSliceMut::Host(x));
            LayerNormKernel {
                x: x[0],
                gamma,
                beta,
                y,
                statistics: DeviceSliceMut::Host(&mut rows),
                epsilon: 1e-5,
            }
            .run_on(device);
            LayerNormGradientKernel {
                x: x[0],
                dy: x[1],
                gamma,
                statistics: DeviceSlice::Host(&rows),
                dx,
                of_gamma,
                of_beta,
            }
            .run_on(device);
        }),
    });
}

fn norms_of_channels(all: &mut Vec<SampleKernel<'_>>) {
    let (gamma, beta) = (values(12, 7), values(12, 8));
    let known = [values(12, 9), vec![0.5; 12], vec![1.25; 12]].concat();
    all.push(SampleKernel {
        name: "group_norm and batch_norm_by".to_owned(),
        inputs: vec![120, 120],
        outputs: vec![120; 3],
        format: None,
        has_numbers: false,
        run: Box::new(move |device, samples, x, to| {
            let [y, dx, by_known] = array(to);
            let [gamma, beta] = [&gamma, &beta].map(|values| DeviceSlice::Host(values));
            let mut groups = vec![0.0; 2 * 3 * samples];
            let mut unused = [(); 2].map(|()| vec![0.0; 12]);
            let [of_gamma, of_beta] = unused.each_mut().map(|x| DeviceSliceMut::Host(x));
            let shape = GroupNorm {
                samples,
                channels: 12,
                places: 10,
                groups: 3,
                epsilon: 1e-5,
            };
            GroupNormKernel {
                x: x[0],
                gamma,
                beta,
                y,
                statistics: DeviceSliceMut::Host(&mut groups),
                shape,
            }
            .run_on(device);
            GroupNormGradientKernel {
                x: x[0],
                dy: x[1],
                gamma,
                statistics: DeviceSlice::Host(&groups),
                dx,
                of_gamma,
                of_beta,
                shape,
            }
            .run_on(device);
            BatchNormByKernel {
                x: x[0],
                gamma,
                beta,
                added: Some(x[1]),
                statistics: DeviceSlice::Host(&known),
                y: by_known,
                shape: BatchNorm {
                    samples,
                    channels: 12,
                    places: 10,
                    epsilon: 1e-5,
                    rectified: true,
                },
            }
            .run_on(device);
        }),
    });
}

fn embeddings(all: &mut Vec<SampleKernel<'_>>) {
    let (vectors, positions) = (values(4 * 9, 10), values(6 * 9, 11));
    all.push(SampleKernel {
        name: "embed".to_owned(),
        inputs: vec![6],
        outputs: vec![6 * 9, 6 * 9],
        format: None,
        has_numbers: true,
        run: Box::new(move |device, _, x, to| {
            let [y, of_rows] = array(to);
            let vectors = DeviceSlice::Host(&vectors);
            EmbedKernel {
                tokens: x[0],
                vectors,
                positions: DeviceSlice::Host(&positions),
                y,
                width: 9,
            }
            .run_on(device);
            EmbedRowsKernel {
                tokens: x[0],
                table: vectors.range(9..27),
                y: of_rows,
                rows: TableRows {
                    width: 9,
                    first: 1,
                    count: 4,
                },
            }
            .run_on(device);
        }),
    });
}

fn tables(all: &mut Vec<SampleKernel<'_>>) {
    let centres = values(3 * 21, 12);
    all.push(SampleKernel {
        name: "distances".to_owned(),
        inputs: vec![21, 3],
        outputs: vec![3, 21],
        format: None,
        has_numbers: false,
        run: Box::new(move |device, _, x, to| {
            let [y, of_points] = array(to);
            let centres = DeviceSlice::Host(&centres);
            SquaredDistancesKernel {
                points: x[0],
                centres,
                to: y,
                width: 21,
            }
            .run_on(device);
            PointGradientsKernel {
                points: x[0],
                centres,
                dy: x[1],
                to: of_points,
                width: 21,
            }
            .run_on(device);
        }),
    });
    let [users, items] = [13, 14].map(|seed| values(4 * 5, seed));
    let biases = values(4, 15);
    all.push(SampleKernel {
        name: "factor_scores".to_owned(),
        inputs: vec![2],
        outputs: vec![1],
        format: None,
        has_numbers: true,
        run: Box::new(move |device, _, x, to| {
            let [y] = array(to);
            let biases = DeviceSlice::Host(&biases);
            FactorScoresKernel {
                pairs: x[0],
                users: DeviceSlice::Host(&users),
                items: DeviceSlice::Host(&items),
                user_bias: biases,
                item_bias: biases,
                bias: biases.range(0..1),
                y,
                factors: 5,
            }
            .run_on(device);
        }),
    });
}

fn elements(all: &mut Vec<SampleKernel<'_>>) {
    use ActivationFunction::{Gelu, Sigmoid, Silu, Tanh};
    for function in [Gelu, Silu, Sigmoid, Tanh] {
        all.push(SampleKernel {
            name: format!("{function:?}"),
            inputs: vec![37],
            outputs: vec![37, 37],
            format: None,
            has_numbers: false,
            run: Box::new(move |device, _, x, to| {
                let [y, slope] = array(to);
                ActivateKernel {
                    x: x[0],
                    y,
                    slope: Some(slope),
                    function,
                }
                .run_on(device);
            }),
        });
    }
    all.push(SampleKernel {
        name: "add, multiply_by, rectify and round".to_owned(),
        inputs: vec![37, 37],
        outputs: vec![37; 5],
        format: None,
        has_numbers: false,
        run: Box::new(|device, _, x, to| {
            let [mut sum, mut product, mut rectified, gradient, mut rounded] = array(to);
            for to in [&mut sum, &mut product, &mut rectified, &mut rounded] {
                let to = to.reborrow();
                CopyKernel { from: x[0], to }.run_on(device);
            }
            AddKernel { y: sum, x: x[1] }.run_on(device);
            MultiplyByKernel {
                y: product,
                factors: x[1],
            }
            .run_on(device);
            RectifyKernel { y: rectified }.run_on(device);
            RectifyGradientKernel {
                y: x[0],
                dy: x[1],
                dx: gradient,
            }
            .run_on(device);
            RoundKernel {
                values: rounded,
                format: ShortFormat::Bf16,
            }
            .run_on(device);
        }),
    });
}

#[test]
fn a_sample_has_the_same_bits_beside_any_others() {
    let mut all = Vec::new();
    for format in [None, Some(ShortFormat::Bf16), Some(ShortFormat::F16)] {
        products(&mut all, format);
        convolutions(&mut all, format);
    }
    planes(&mut all);
    attentions(&mut all);
    norms_of_rows(&mut all);
    norms_of_channels(&mut all);
    embeddings(&mut all);
    tables(&mut all);
    elements(&mut all);
    for level in Level::supported() {
        for method in [
            ProductMethod::Plain,
            ProductMethod::Split,
            ProductMethod::F16,
        ] {
            let device = HostDevice::new().with_method(method);
            for kernel in &all {
                for count in COUNTS {
                    with_level(level, || kernel.check(&device, count));
                }
            }
        }
    }
}
