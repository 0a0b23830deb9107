//! How far NaN and infinite values reach.

use crate::device::kernel::{
    ActivateKernel, AddExactKernel, AddKernel, AddToChannelsKernel, BatchAffineGradientsKernel,
    BatchInputGradientKernel, ConvolveShardsWeightGradientKernel, CopyKernel, CopyRowsKernel,
    FillKernel, MatrixSlice, MultiplyByKernel, MultiplyKernel, MultiplyShardsKernel, PackKernel,
    PlaneMap, RepeatRowKernel, RoundKernel, RowCopy, SumChannelsKernel, SumRowsKernel, TableRows,
    UnpackKernel,
};
use ronde_kernels::{
    ActivationFunction, AverageAreas, BatchNorm, Convolution, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::runs::{self, ConvolutionRun};
use super::shared_cases::{AttentionCase, SampleNorm, sums_of_batch};
use super::{KernelComparison, KernelRun, rounded, unwritten, values, writable};

/// Two values whose exchange changes each output that depends on them, by more than rounding hides. All formats but f16
/// represent them.
const PROBES: [f32; 2] = [0.5, (1_u64 << 50) as f32];

/// Returns elements of an input that are not at the start of a sample or of a sequence.
fn chosen(length: usize) -> [usize; 3] {
    [length / 3, length * 2 / 3, length - 1]
}

/// Inputs in which elements are set to NaN or infinity.
#[derive(Clone, Copy)]
enum Reaching {
    /// Each output that does not depend on the element must keep its value.
    Exactly(usize),
    /// Such outputs may change, because the element is multiplied by zeros of the padding or of a mask.
    AtLeast(usize),
}
use Reaching::{AtLeast, Exactly};

impl KernelComparison<'_> {
    pub(super) fn propagation(&mut self) {
        self.through_products();
        self.through_convolutions();
        self.through_planes();
        self.through_batch_norms();
        self.through_sums_over_shards();
        self.through_norms_of_samples();
        self.through_attention();
        self.through_rows_of_tables();
        self.through_tables();
        self.through_elements();
    }

    /// Sets elements of the given inputs to NaN or infinity. NaN must reach each output that changes with the element; outputs
    /// that do not change with it must keep their values.
    fn reaches(
        &mut self,
        name: &str,
        inputs: &[Vec<f32>],
        with: &[Reaching],
        outputs: &[usize],
        kernel: KernelRun<'_>,
    ) {
        let outputs: Vec<_> = outputs.iter().map(|length| unwritten(*length)).collect();
        if !self.concerns(inputs, &outputs, kernel) {
            return;
        }
        for &reach in with {
            let (Exactly(input) | AtLeast(input)) = reach;
            for element in chosen(inputs[input].len()) {
                let run = |value: f32| {
                    let mut inputs = inputs.to_vec();
                    inputs[input][element] = value;
                    Self::run(self.device, &inputs, &outputs, kernel)
                };
                let [clean, moved] = PROBES.map(run);
                for (value, results) in [f32::NAN, f32::INFINITY].map(|x| (x, run(x))) {
                    let name = format!("{name}: {value} in element {element} of input {input}");
                    for (number, results) in results.iter().enumerate() {
                        let name = format!("{name}, output {number}");
                        let values = (&clean[number][..], &moved[number][..]);
                        self.check_reach(&name, value, values, results, reach);
                    }
                }
            }
        }
    }

    fn check_reach(
        &mut self,
        name: &str,
        value: f32,
        (clean, moved): (&[f32], &[f32]),
        results: &[f32],
        reach: Reaching,
    ) {
        let mut independent = [Vec::new(), Vec::new()];
        for (element, result) in results.iter().enumerate() {
            if clean[element].to_bits() == moved[element].to_bits() {
                independent[0].push(clean[element]);
                independent[1].push(*result);
            } else if value.is_nan() && !result.is_nan() {
                let fault = format!("{name}: element {element} is {result}, expected NaN");
                return self.found.push(fault);
            }
        }
        let [expected, found] = independent;
        if matches!(reach, AtLeast(_)) {
            return;
        }
        self.compare(
            &format!("{name}, among independent values"),
            &expected,
            &found,
        );
    }

    fn through_products(&mut self) {
        for format in [None, Some(ShortFormat::Bf16)] {
            for [rows, inner, columns] in [[5, 7, 3], [33, 70, 49], [3, 600, 17]] {
                let inputs = [values(rows * inner, 80), values(inner * columns, 81)];
                self.reaches(
                    &format!("multiply {rows} x {inner} x {columns} of {format:?}"),
                    &inputs.map(|values| rounded(values, format)),
                    &[Exactly(0), Exactly(1)],
                    &[rows * columns],
                    &|device, x, to| {
                        let left = MatrixSlice::new(x[0], rows, inner).rounded_to(format);
                        let right = MatrixSlice::new(x[1], inner, columns).rounded_to(format);
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
        }
        self.reaches(
            "multiply_shards 5 x (3 + 4) x 3",
            &[values(35, 83), values(21, 84)],
            &[Exactly(0), Exactly(1)],
            &[15],
            &|device, x, to| {
                MultiplyShardsKernel {
                    left: MatrixSlice::new(x[0], 5, 7),
                    right: MatrixSlice::new(x[1], 7, 3),
                    to: to[0].slice_mut(),
                    shards: [3, 4].into(),
                }
                .run_on(device);
            },
        );
        self.reaches(
            "sum_rows and sum_channels",
            &[values(24, 82)],
            &[Exactly(0)],
            &[6, 2],
            &|device, x, to| {
                let [rows, channels] = writable(to);
                SumRowsKernel {
                    rows: x[0],
                    to: rows,
                }
                .run_on(device);
                SumChannelsKernel {
                    x: x[0],
                    places: 4,
                    to: channels,
                }
                .run_on(device);
            },
        );
    }

    fn through_convolutions(&mut self) {
        for (channels, kernel, stride, groups) in
            [(16, 3, 1, 1), (4, 1, 1, 1), (3, 3, 2, 1), (2, 3, 1, 3)]
        {
            let each = Convolution {
                channels,
                size: [9, 8],
                outputs: 16,
                kernel: [kernel; 2],
                stride: [stride; 2],
                padding: [kernel / 2; 2],
            };
            let shape = GroupedConvolution { each, groups };
            let places: usize = each.output_size().iter().product();
            self.reaches(
                &format!("convolve_shards_weight_gradient {each:?}"),
                &[values(3 * channels * 72, 83), values(3 * 16 * places, 85)],
                &[Exactly(0), AtLeast(1)],
                &[16 * channels * kernel * kernel],
                &|device, x, to| {
                    ConvolveShardsWeightGradientKernel {
                        shape: each,
                        x: x[0],
                        dy: x[1],
                        dw: to[0].slice_mut(),
                        shards: [1, 2].into(),
                    }
                    .run_on(device);
                },
            );
            let (images, results) = (2 * groups * channels * 72, 2 * groups * 16 * places);
            let weights = groups * 16 * channels * kernel * kernel;
            for format in [None, Some(ShortFormat::Bf16)] {
                let inputs = [values(images, 83), values(weights, 84), values(results, 85)];
                self.reaches(
                    &format!("convolution {shape:?} of {format:?}"),
                    &inputs.map(|values| rounded(values, format)),
                    &[Exactly(0), AtLeast(1), AtLeast(2)],
                    &[results, images, weights],
                    &|device, x, to| {
                        let [y, dx, dw] = writable(to);
                        ConvolutionRun {
                            shape,
                            format,
                            samples: 2,
                        }
                        .run(device, [x[0], x[1], x[2]], [y, dx, dw]);
                    },
                );
            }
        }
    }

    fn through_planes(&mut self) {
        let (size, window) = ([7, 6], SlidingWindow::new(3, 2, 1));
        let areas = AverageAreas {
            size,
            areas: [3, 2],
        };
        let maps = [
            (PlaneMap::Average { size, window }, 12),
            (PlaneMap::Areas(areas), 6),
            (PlaneMap::Enlarge { size, factor: 2 }, 168),
        ];
        for (map, results) in maps {
            let lengths = [4 * results, 4 * 42];
            let inputs = [values(lengths[1], 86), values(lengths[0], 87)];
            let name = format!("{map:?}");
            self.reaches(
                &name,
                &inputs,
                &[Exactly(0), Exactly(1)],
                &lengths,
                &|device, x, to| {
                    let [y, dx] = writable(to);
                    runs::map_planes(device, map, [x[0], x[1]], [y, dx]);
                },
            );
        }
    }

    fn through_batch_norms(&mut self) {
        let shape = BatchNorm {
            samples: 3,
            channels: 4,
            places: 35,
            epsilon: 1e-5,
            rectified: false,
        };
        let all = 3 * 4 * 35;
        let inputs = [
            values(all, 88),
            values(all, 89),
            values(all, 90),
            values(4, 91),
            values(4, 92),
            vec![0.5; 4],
        ];
        let outputs = [all, 12, all, 4, 4, all, all, 12, 4, 4, 18];
        self.reaches(
            "batch_norm",
            &inputs,
            &[0, 1, 2, 3, 4, 5].map(Exactly),
            &outputs,
            &|device, x, to| {
                let (found, to) = to.split_last_mut().expect("a case has outputs");
                runs::batch_norm(device, (shape, true), x, to);
                let statistics = to[1].slice();
                let (_, summed) = sums_of_batch(device, shape, [x[0], x[1], statistics]);
                device.write(&summed, found.slice_mut());
            },
        );
    }

    fn through_norms_of_samples(&mut self) {
        for (name, norm, affine, statistics) in SampleNorm::each() {
            let seeds = [(120, 93), (120, 94), (affine, 95), (affine, 96)];
            let inputs = seeds.map(|(length, seed)| values(length, seed));
            let with = [0, 1, 2, 3].map(Exactly);
            let outputs = [120, statistics, 120, affine, affine];
            let run: KernelRun<'_> = &|device, x, to| norm.run(device, x, to);
            self.reaches(name, &inputs, &with, &outputs, run);
        }
    }

    fn through_attention(&mut self) {
        for attention in AttentionCase::each() {
            let AttentionCase { shape, lengths } = &attention;
            let [asking, looked_at, _] = shape.elements();
            let seeds = [(asking, 97), (looked_at, 98), (asking, 99)];
            let inputs = seeds.map(|(length, seed)| values(length, seed));
            let outputs = [asking, asking, looked_at];
            let name = format!("{shape:?} with the lengths {lengths:?}");
            let with = [0, 1, 2].map(if shape.causal { AtLeast } else { Exactly });
            let run: KernelRun<'_> = &|device, x, to| attention.run(device, x, to);
            self.reaches(&name, &inputs, &with, &outputs, run);
        }
    }

    fn through_rows_of_tables(&mut self) {
        let inputs = [
            vec![0.0, 3.0, 3.0, 1.0, 2.0, 2.0],
            values(2 * 5, 106),
            values(6 * 5, 107),
        ];
        let rows = TableRows {
            width: 5,
            first: 2,
            count: 4,
        };
        self.reaches(
            "embed_rows",
            &inputs,
            &[Exactly(1), Exactly(2)],
            &[6 * 5, 2 * 5],
            &|device, x, to| {
                let [y, gradient] = writable(to);
                runs::embed_rows(device, rows, [x[0], x[1], x[2]], [y, gradient]);
            },
        );
    }

    fn through_tables(&mut self) {
        let inputs = [
            vec![0.0, 3.0, 3.0, 1.0, 2.0, 2.0],
            values(4 * 5, 100),
            values(3 * 5, 101),
            values(6 * 5, 102),
        ];
        let outputs = [6 * 5, 4 * 5, 3 * 5];
        self.reaches(
            "embed",
            &inputs,
            &[Exactly(1), Exactly(2), Exactly(3)],
            &outputs,
            &|device, x, to| {
                let [y, vectors, positions] = writable(to);
                runs::embed(device, 5, [x[0], x[1], x[2], x[3]], [y, vectors, positions]);
            },
        );
        let inputs = [values(4 * 5, 103), values(3 * 5, 104), values(4 * 3, 105)];
        let outputs = [4 * 3, 4 * 5, 3 * 5];
        let name = "squared_distances";
        self.reaches(
            name,
            &inputs,
            &[Exactly(0), Exactly(1), Exactly(2)],
            &outputs,
            &|device, x, to| {
                let [y, of_points, of_centres] = writable(to);
                runs::distances(
                    device,
                    &[1.0, 0.5, 3.0],
                    [x[0], x[1], x[2]],
                    [y, of_points, of_centres],
                );
            },
        );
        let lengths = [4 * 3, 2 * 3, 4, 2, 1, 3];
        let mut inputs: Vec<Vec<f32>> = (106..).zip(lengths).map(|(s, n)| values(n, s)).collect();
        inputs.push(vec![0.0, 1.0, 3.0, 0.0, 3.0, 1.0]);
        let outputs = [3, 4 * 3, 2 * 3, 4, 2, 1];
        self.reaches(
            "factor_scores",
            &inputs,
            &[
                Exactly(0),
                Exactly(1),
                Exactly(2),
                Exactly(3),
                Exactly(4),
                Exactly(5),
            ],
            &outputs,
            &|device, x, to| {
                let all = writable(to);
                runs::factors(device, [x[0], x[1], x[2], x[3], x[4]], [x[6], x[5]], all);
            },
        );
    }

    fn through_rows(&mut self) {
        let copy = RowCopy {
            from: [10, 3],
            to: [6, 2],
            length: 4,
        };
        self.reaches(
            "repeat_row, add_to_channels and copy_rows",
            &[values(10, 116), values(5, 117), values(50, 118)],
            &[Exactly(0), Exactly(1)],
            &[50, 50, 6],
            &|device, x, to| {
                let [repeated, channels, copied] = writable(to);
                RepeatRowKernel {
                    row: x[0],
                    to: repeated,
                }
                .run_on(device);
                CopyKernel {
                    from: x[2],
                    to: channels,
                }
                .run_on(device);
                FillKernel {
                    to: copied,
                    value: 0.5,
                }
                .run_on(device);
                let [_, channels, copied] = writable(to);
                AddToChannelsKernel {
                    y: channels,
                    added: x[1],
                    places: 5,
                }
                .run_on(device);
                CopyRowsKernel {
                    copy,
                    from: x[0],
                    to: copied,
                }
                .run_on(device);
            },
        );
    }

    fn through_sums_over_shards(&mut self) {
        let shape = BatchNorm {
            samples: 2,
            channels: 3,
            places: 20,
            epsilon: 1e-5,
            rectified: false,
        };
        // Mean, variance and inverse deviation of the channels.
        let statistics = [values(3, 119), vec![0.5; 3], vec![1.25; 3]].concat();
        let inputs = [
            values(120, 120),
            values(120, 121),
            values(3, 122),
            statistics,
        ];
        let sums: Vec<f64> = (0..shape.sums_len()).map(|sum| sum as f64 + 0.5).collect();
        self.reaches(
            "batch_input_gradient and batch_affine_gradients",
            &inputs,
            &[Exactly(0), Exactly(1), Exactly(2), Exactly(3)],
            &[120, 3, 3],
            &|device, x, to| {
                let [dy, of_gamma, of_beta] = writable(to);
                CopyKernel { from: x[1], to: dy }.run_on(device);
                BatchAffineGradientsKernel {
                    shape,
                    own: sums.clone(),
                    statistics: x[3],
                    of_gamma,
                    of_beta,
                }
                .run_on(device);
                BatchInputGradientKernel {
                    shape,
                    x: x[0],
                    gamma: x[2],
                    statistics: x[3],
                    summed: sums.clone(),
                    dy: to[0].slice_mut(),
                }
                .run_on(device);
            },
        );
    }

    fn through_elements(&mut self) {
        let inputs = [values(50, 112), values(50, 113)];
        self.reaches(
            "add, add_exact and multiply_by",
            &inputs,
            &[Exactly(0), Exactly(1)],
            &[50, 50, 50],
            &|device, x, to| {
                for to in writable::<3>(to) {
                    CopyKernel { from: x[0], to }.run_on(device);
                }
                let [sum, product, exact_sum] = writable(to);
                AddKernel { y: sum, x: x[1] }.run_on(device);
                AddExactKernel {
                    y: exact_sum,
                    x: x[1],
                }
                .run_on(device);
                MultiplyByKernel {
                    y: product,
                    factors: x[1],
                }
                .run_on(device);
            },
        );
        self.through_rows();
        use ActivationFunction::{Gelu, Sigmoid, Silu, Tanh};
        for function in [Gelu, Silu, Sigmoid, Tanh] {
            let (name, inputs) = (format!("{function:?}"), &inputs[..1]);
            self.reaches(&name, inputs, &[Exactly(0)], &[50, 50], &|device, x, to| {
                let [y, slope] = writable(to);
                ActivateKernel {
                    function,
                    x: x[0],
                    y,
                    slope: Some(slope),
                }
                .run_on(device);
            });
        }
        self.through_short_formats();
    }

    fn through_short_formats(&mut self) {
        let inputs = [values(50, 112)];
        self.reaches(
            "bf16",
            &inputs,
            &[Exactly(0)],
            &[50, 50],
            &|device, x, to| {
                let mut packed = device.allocate(25);
                let [values, unpacked] = writable(to);
                CopyKernel {
                    from: x[0],
                    to: values,
                }
                .run_on(device);
                PackKernel {
                    format: ShortFormat::Bf16,
                    values: x[0],
                    packed: packed.slice_mut(),
                }
                .run_on(device);
                UnpackKernel {
                    format: ShortFormat::Bf16,
                    packed: packed.slice(),
                    values: unpacked,
                }
                .run_on(device);
                let [values, _] = writable(to);
                RoundKernel {
                    format: ShortFormat::Bf16,
                    values,
                }
                .run_on(device);
            },
        );
    }
}
