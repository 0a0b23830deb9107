//! The results of kernels for NaN and infinite values.

use crate::device::kernel::{
    ActivateKernel, AttendKernel, BatchNormKernel, CopyKernel, EmbedGradientKernel, EmbedKernel,
    FillKernel, MatrixSlice, MultiplyKernel, PackKernel, RectifyGradientKernel, RectifyKernel,
    RoundKernel, UnpackKernel,
};
use ronde_kernels::{
    ActivationFunction, Attention, BatchNorm, Convolution, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::runs::{self, ConvolutionRun};
use super::{KernelComparison, unwritten, values, writable};

const NAN: f32 = f32::NAN;
const INFINITE: f32 = f32::INFINITY;

/// Returns positions as `max_pool` writes them.
fn positions(of: &[u32]) -> Vec<f32> {
    of.iter()
        .map(|position| f32::from_bits(*position))
        .collect()
}

impl KernelComparison<'_> {
    pub(super) fn non_finite_inputs(&mut self) {
        self.propagation();
        self.products_with_zeros();
        self.maxima();
        self.weights_of_infinite_scores();
        self.rectifiers();
        self.limits_of_activations();
        self.rounded_infinities();
        self.tokens_without_a_number();
    }

    /// A factor of zero does not hide NaN or infinity, and overwritten values do not matter.
    fn products_with_zeros(&mut self) {
        for format in [None, Some(ShortFormat::Bf16)] {
            self.known_case(
                &format!("multiply of {format:?} with zeros"),
                &[vec![INFINITE, 1.0, NAN, 1.0, 1.0, 1.0], vec![0.0, 2.0]],
                &[vec![NAN; 3]],
                &[vec![NAN, NAN, 2.0]],
                &|device, x, to| {
                    let left = MatrixSlice::new(x[0], 3, 2).rounded_to(format);
                    let right = MatrixSlice::new(x[1], 2, 1).rounded_to(format);
                    MultiplyKernel {
                        left,
                        right,
                        to: to[0].slice_mut(),
                        adds: false,
                    }
                    .run_on(device);
                },
            );
        }
        for (channels, kernel) in [(16, 3), (4, 1)] {
            let each = Convolution {
                channels,
                size: [8, 8],
                outputs: 16,
                kernel: [kernel; 2],
                stride: [1; 2],
                padding: [kernel / 2; 2],
            };
            let shape = GroupedConvolution { each, groups: 1 };
            let (images, results) = (channels * 64, 16 * 64);
            let weights = 16 * channels * kernel * kernel;
            let [x, w, dy] = [images, weights, results].map(|length| vec![0.0; length]);
            for value in [NAN, INFINITE] {
                self.known_case(
                    &format!("convolution {shape:?} of {value} with weights of 0"),
                    &[vec![value; images], w.clone(), x.clone(), dy.clone()],
                    &[results, images, weights].map(unwritten),
                    &[vec![NAN; results], vec![0.0; images], vec![NAN; weights]],
                    &|device, x, to| {
                        let [y, dx, dw] = writable(to);
                        ConvolutionRun {
                            shape,
                            format: None,
                            samples: 1,
                        }
                        .run(device, [x[0], x[1], x[3]], [y, dx, dw]);
                    },
                );
            }
        }
    }

    fn maxima(&mut self) {
        let window = SlidingWindow::new(2, 1, 0);
        let infinite = [1.0, -INFINITE, INFINITE, 0.0, -INFINITE, -INFINITE];
        for (name, x, y, from) in [
            (
                "NaN",
                [1.0, 5.0, NAN, 5.0, INFINITE, NAN],
                [INFINITE, NAN],
                [4, 2],
            ),
            ("infinity", infinite, [1.0, INFINITE], [0, 2]),
            ("-infinity", [-INFINITE; 6], [-INFINITE; 2], [0, 1]),
        ] {
            let mut dx = vec![0.0; 6];
            dx[from[0] as usize] = 3.0;
            dx[from[1] as usize] = NAN;
            self.known_case(
                &format!("max_pool of {name}"),
                &[x.to_vec(), vec![3.0, NAN]],
                &[2, 2, 6].map(unwritten),
                &[y.to_vec(), positions(&from), dx],
                &|device, x, to| {
                    runs::max_pool(device, ([2, 3], window), [x[0], x[1]], to);
                },
            );
        }
    }

    /// Scores are products of a query of 1 and the keys.
    fn weights_of_infinite_scores(&mut self) {
        let shape = Attention {
            batch: 1,
            queries: 1,
            keys: 3,
            heads: 1,
            width: 1,
            causal: false,
        };
        for (keys, y) in [
            ([-INFINITE, 1.0, 1.0], 3.0),
            ([-INFINITE, 1.0, -INFINITE], 2.0),
            ([INFINITE, 1.0, 1.0], NAN),
            ([-INFINITE; 3], NAN),
            ([NAN, 1.0, 1.0], NAN),
        ] {
            self.known_case(
                &format!("attention with the scores {keys:?}"),
                &[vec![1.0], vec![keys[0], 1.0, keys[1], 2.0, keys[2], 4.0]],
                &[unwritten(1)],
                &[vec![y]],
                &|device, x, to| {
                    let mut statistics = device.allocate(shape.elements()[2]);
                    let y = to[0].slice_mut();
                    AttendKernel {
                        shape,
                        queries: x[0],
                        keys_values: x[1],
                        lengths: Vec::new(),
                        y,
                        statistics: statistics.slice_mut(),
                    }
                    .run_on(device);
                },
            );
        }
    }

    fn rectifiers(&mut self) {
        self.known_case(
            "rectify and rectify_gradient",
            &[
                vec![-INFINITE, -1.0, 0.0, INFINITE, NAN],
                vec![0.0, 0.0, 1.0, INFINITE, NAN],
                vec![NAN, INFINITE, NAN, 2.0, 3.0],
            ],
            &[5, 5].map(unwritten),
            &[
                vec![0.0, 0.0, 0.0, INFINITE, NAN],
                vec![0.0, 0.0, NAN, 2.0, 3.0],
            ],
            &|device, x, to| {
                let [rectified, gradient] = writable(to);
                CopyKernel {
                    from: x[0],
                    to: rectified,
                }
                .run_on(device);
                RectifyGradientKernel {
                    y: x[1],
                    dy: x[2],
                    dx: gradient,
                }
                .run_on(device);
                RectifyKernel {
                    y: to[0].slice_mut(),
                }
                .run_on(device);
            },
        );
        let shape = BatchNorm {
            samples: 2,
            channels: 2,
            places: 3,
            epsilon: 1e-5,
            rectified: true,
        };
        let bad = |channel: &[f32; 3]| channel.map(|_| NAN);
        for value in [NAN, INFINITE] {
            let mut x = values(12, 120);
            x[4] = value;
            let mut known = vec![0.0; 12];
            known.as_chunks_mut::<3>().0[1] = bad(&[0.0; 3]);
            known.as_chunks_mut::<3>().0[3] = bad(&[0.0; 3]);
            self.known_case(
                &format!("rectified batch_norm of {value}"),
                &[x, vec![1.0; 2], vec![-9.0; 2]],
                &[12, 6].map(unwritten),
                &[known],
                &|device, x, to| {
                    let [y, statistics] = writable(to);
                    BatchNormKernel {
                        shape,
                        x: x[0],
                        gamma: x[1],
                        beta: x[2],
                        added: None,
                        y,
                        statistics,
                    }
                    .run_on(device);
                },
            );
        }
    }

    fn limits_of_activations(&mut self) {
        use ActivationFunction::{Gelu, Sigmoid, Silu, Tanh};
        for (function, limits, slopes) in [
            (Gelu, [0.0, INFINITE], [0.0, 1.0]),
            (Silu, [0.0, INFINITE], [0.0, 1.0]),
            (Sigmoid, [0.0, 1.0], [0.0, 0.0]),
            (Tanh, [-1.0, 1.0], [0.0, 0.0]),
        ] {
            let found = Self::run(
                self.device,
                &[vec![-INFINITE, INFINITE, NAN]],
                &[3, 3].map(unwritten),
                &|device, x, to| {
                    let [y, slope] = writable(to);
                    ActivateKernel {
                        function,
                        x: x[0],
                        y,
                        slope: Some(slope),
                    }
                    .run_on(device);
                },
            );
            let fits = |got: f32, limit: f32| {
                got.is_nan() || got.to_bits() == limit.to_bits() || (got - limit).abs() < 1e-6
            };
            for (got, limits) in found.iter().zip([limits, slopes]) {
                let fit = fits(got[0], limits[0]) && fits(got[1], limits[1]) && got[2].is_nan();
                if !fit {
                    self.found.push(format!(
                        "{function:?} and its slope at -infinity, infinity and NaN: {found:?}, expected limits or NaN"
                    ));
                }
            }
        }
    }

    fn rounded_infinities(&mut self) {
        // A NaN whose upper 16 bits alone would be infinite.
        let short_nan = f32::from_bits(0x7f80_0001);
        let x = vec![NAN, INFINITE, -INFINITE, f32::MAX, f32::MIN, short_nan, 1.0];
        let expected = vec![NAN, INFINITE, -INFINITE, INFINITE, -INFINITE, NAN, 1.0];
        for format in [ShortFormat::Bf16, ShortFormat::F16] {
            self.known_case(
                &format!("{format:?} of NaN and infinity"),
                std::slice::from_ref(&x),
                &[7, 7].map(unwritten),
                &[expected.clone(), expected.clone()],
                &|device, x, to| {
                    let mut packed = device.allocate(ShortFormat::packed_length(7));
                    let [values, of_packed] = writable(to);
                    CopyKernel {
                        from: x[0],
                        to: values,
                    }
                    .run_on(device);
                    PackKernel {
                        format,
                        values: x[0],
                        packed: packed.slice_mut(),
                    }
                    .run_on(device);
                    UnpackKernel {
                        format,
                        packed: packed.slice(),
                        values: of_packed,
                    }
                    .run_on(device);
                    let [values, _] = writable(to);
                    RoundKernel { format, values }.run_on(device);
                },
            );
        }
    }

    fn tokens_without_a_number(&mut self) {
        self.known_case(
            "embed of NaN and infinity",
            &[
                vec![NAN, INFINITE, -INFINITE],
                vec![1.0, 2.0, 4.0],
                vec![0.0],
            ],
            &[3, 3, 1].map(unwritten),
            &[vec![1.0, 4.0, 1.0], vec![2.0, 0.0, 1.0], vec![3.0]],
            &|device, x, to| {
                let [y, vectors, positions] = writable(to);
                EmbedKernel {
                    width: 1,
                    tokens: x[0],
                    vectors: x[1],
                    positions: x[2],
                    y,
                }
                .run_on(device);
                let mut ones = device.allocate(3);
                FillKernel {
                    to: ones.slice_mut(),
                    value: 1.0,
                }
                .run_on(device);
                EmbedGradientKernel {
                    width: 1,
                    tokens: x[0],
                    dy: ones.slice(),
                    of_vectors: vectors,
                    of_positions: positions,
                }
                .run_on(device);
            },
        );
    }
}
