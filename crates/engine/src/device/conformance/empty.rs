//! Kernels without samples, rows or terms of a sum.

use ronde_kernels::{
    Attention, AverageAreas, BatchNorm, Convolution, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::runs::{self, ConvolutionRun};
use super::shared_cases::{run_attention, sums_of_batch};
use super::{KernelComparison, unwritten, values, writable};
use crate::context::ForwardContext;
use crate::device::DeviceBuffer;
use crate::device::kernel::{
    ActivateKernel, AddExactKernel, AddKernel, AddToChannelsKernel, BatchAffineGradientsKernel,
    BatchInputGradientKernel, BatchNormByKernel, BatchNormGradientKernel, BatchNormKernel,
    ConvolveShardsWeightGradientKernel, CopyRowsKernel, DrawDropoutKernel, DrawnRows, FillKernel,
    GroupNormGradientKernel, GroupNormKernel, LayerNormGradientKernel, LayerNormKernel,
    MatrixSlice, MaxPoolGradientKernel, MaxPoolKernel, MultiplyByKernel, MultiplyKernel,
    MultiplyShardsKernel, PackKernel, PlaneMap, RectifyGradientKernel, RectifyKernel,
    RepeatRowKernel, RoundKernel, RowCopy, SumChannelsKernel, SumRowsKernel, TableRows,
    UnpackKernel,
};

/// Returns buffers of zeros.
fn zeros<const N: usize>(lengths: [usize; N]) -> Vec<Vec<f32>> {
    lengths.map(|length| vec![0.0; length]).to_vec()
}

impl KernelComparison<'_> {
    pub(super) fn empty_inputs(&mut self) {
        self.empty_matrices();
        self.no_images();
        self.empty_batch_norm();
        self.statistics_of_no_channels();
        self.no_rows_to_normalise();
        self.empty_attention();
        self.empty_tables();
        self.no_elements();
    }

    fn empty_matrices(&mut self) {
        for format in [None, Some(ShortFormat::Bf16)] {
            for [rows, inner, columns] in [[0, 4, 3], [3, 0, 2], [3, 4, 0], [0, 0, 0]] {
                for adds in [false, true] {
                    let start = values(rows * columns, 60);
                    let expected = if adds {
                        start.clone()
                    } else {
                        vec![0.0; rows * columns]
                    };
                    let inputs = [rows * inner, inner * columns].map(|length| vec![1.0; length]);
                    self.known_case(
                        &format!("multiply {rows} x {inner} x {columns} of {format:?}"),
                        &inputs,
                        &[start],
                        &[expected],
                        &|device, x, to| {
                            let left = MatrixSlice::new(x[0], rows, inner).rounded_to(format);
                            let right = MatrixSlice::new(x[1], inner, columns).rounded_to(format);
                            MultiplyKernel {
                                left,
                                right,
                                to: to[0].slice_mut(),
                                adds,
                            }
                            .run_on(device);
                        },
                    );
                }
            }
        }
        for [rows, columns] in [[0, 3], [3, 0], [3, 2]] {
            self.known_case(
                &format!("multiply_shards {rows} x 0 x {columns}"),
                &[vec![], vec![]],
                &[values(rows * columns, 62)],
                &[vec![0.0; rows * columns]],
                &|device, x, to| {
                    MultiplyShardsKernel {
                        left: MatrixSlice::new(x[0], rows, 0),
                        right: MatrixSlice::new(x[1], 0, columns),
                        to: to[0].slice_mut(),
                        shards: [0, 0].into(),
                    }
                    .run_on(device);
                },
            );
        }
        self.known_case(
            "sum_rows and repeat_row without rows",
            &[vec![], values(4, 61)],
            &[unwritten(4), vec![]],
            &zeros([4, 0]),
            &|device, x, to| {
                let [sums, repeated] = writable(to);
                SumRowsKernel {
                    rows: x[0],
                    to: sums,
                }
                .run_on(device);
                RepeatRowKernel {
                    row: x[1],
                    to: repeated,
                }
                .run_on(device);
            },
        );
    }

    fn no_images(&mut self) {
        for (channels, kernel, stride, groups) in
            [(16, 3, 1, 1), (3, 1, 1, 1), (3, 3, 2, 1), (2, 3, 1, 3)]
        {
            let shape = GroupedConvolution {
                each: Convolution {
                    channels,
                    size: [8, 8],
                    outputs: 16,
                    kernel: [kernel; 2],
                    stride: [stride; 2],
                    padding: [kernel / 2; 2],
                },
                groups,
            };
            self.known_case(
                &format!(
                    "convolve_shards_weight_gradient {:?} without samples",
                    shape.each
                ),
                &[vec![]],
                &[unwritten(16 * channels * kernel * kernel)],
                &zeros([16 * channels * kernel * kernel]),
                &|device, x, to| {
                    ConvolveShardsWeightGradientKernel {
                        shape: shape.each,
                        x: x[0],
                        dy: x[0],
                        dw: to[0].slice_mut(),
                        shards: [0, 0].into(),
                    }
                    .run_on(device);
                },
            );
            let weights = groups * 16 * channels * kernel * kernel;
            for format in [None, Some(ShortFormat::Bf16)] {
                self.known_case(
                    &format!("convolution {shape:?} of {format:?} without samples"),
                    &[vec![], values(weights, 62)],
                    &[vec![], vec![], unwritten(weights)],
                    &zeros([0, 0, weights]),
                    &|device, x, to| {
                        let [y, dx, dw] = writable(to);
                        ConvolutionRun {
                            shape,
                            format,
                            samples: 0,
                        }
                        .run(device, [x[0], x[1], x[0]], [y, dx, dw]);
                    },
                );
            }
        }
        self.no_planes();
    }

    fn no_planes(&mut self) {
        let (size, window) = ([7, 6], SlidingWindow::new(3, 2, 1));
        let areas = AverageAreas {
            size,
            areas: [3, 2],
        };
        let maps = [
            PlaneMap::Average { size, window },
            PlaneMap::Areas(areas),
            PlaneMap::Enlarge { size, factor: 2 },
        ];
        let inputs = [vec![], values(3, 63)];
        let outputs = [unwritten(3), vec![], vec![], vec![]];
        self.known_case(
            "pools and sums of channels without images",
            &inputs,
            &outputs,
            &zeros([3, 0, 0, 0]),
            &|device, x, to| {
                let [sums, y, from, dx] = writable(to);
                SumChannelsKernel {
                    x: x[0],
                    places: 5,
                    to: sums,
                }
                .run_on(device);
                MaxPoolKernel {
                    size,
                    window,
                    x: x[0],
                    y,
                    from,
                }
                .run_on(device);
                MaxPoolGradientKernel {
                    size,
                    window,
                    dy: x[0],
                    from: x[0],
                    dx,
                }
                .run_on(device);
                for map in maps {
                    let [_, y, dx, channels] = writable(to);
                    runs::map_planes(device, map, [x[0], x[0]], [y, dx]);
                    AddToChannelsKernel {
                        y: channels,
                        places: 5,
                        added: x[1],
                    }
                    .run_on(device);
                }
            },
        );
    }

    fn empty_batch_norm(&mut self) {
        for rectified in [false, true] {
            let shape = BatchNorm {
                samples: 0,
                channels: 2,
                places: 4,
                epsilon: 0.25,
                rectified,
            };
            let empty_statistics = vec![0.0, 0.0, 0.0, 0.0, 2.0, 2.0];
            self.known_case(
                &format!("batch_norm {shape:?}"),
                &[vec![], values(2, 64), empty_statistics.clone()],
                &[6, 2, 2, 2, 2, 10, 0].map(unwritten),
                &[vec![empty_statistics], zeros([2, 2, 2, 2, 10, 0])].concat(),
                &|device, x, to| {
                    let (sums, all) = sums_of_batch(device, shape, [x[0], x[0], x[2]]);
                    let [statistics, dgamma, dbeta, of_gamma, of_beta, found, y] = writable(to);
                    BatchNormKernel {
                        shape,
                        x: x[0],
                        gamma: x[1],
                        beta: x[1],
                        added: None,
                        y,
                        statistics,
                    }
                    .run_on(device);
                    device.write(&all, found);
                    BatchAffineGradientsKernel {
                        shape,
                        own: sums.to_vec(),
                        statistics: x[2],
                        of_gamma,
                        of_beta,
                    }
                    .run_on(device);
                    let mut none = device.allocate(0);
                    let (x, gamma, statistics) = (x[0], x[1], x[2]);
                    BatchNormGradientKernel {
                        shape,
                        x,
                        y: x,
                        dy: x,
                        gamma,
                        statistics,
                        dx: none.slice_mut(),
                        of_gamma: dgamma,
                        of_beta: dbeta,
                        of_added: None,
                    }
                    .run_on(device);
                    BatchNormByKernel {
                        shape,
                        x,
                        gamma,
                        beta: gamma,
                        added: None,
                        y: none.slice_mut(),
                        statistics,
                    }
                    .run_on(device);
                },
            );
        }
    }

    fn statistics_of_no_channels(&mut self) {
        let shape = BatchNorm {
            samples: 2,
            channels: 0,
            places: 4,
            epsilon: 0.25,
            rectified: false,
        };
        let no_samples = BatchNorm {
            samples: 0,
            channels: 2,
            ..shape
        };
        let empty = [vec![], vec![], vec![], vec![]];
        let inputs = [&empty[..3], &[values(2, 64), values(6, 65)]].concat();
        self.known_case(
            "statistics of no channels, and gradients without samples",
            &inputs,
            &empty,
            &empty,
            &|device, x, to| {
                let [statistics, mean, variance, dy] = writable(to);
                let moved = [statistics, mean, variance];
                runs::running_statistics(device, [x[0], x[1], x[2]], moved);
                let mut dy = dy;
                for (shape, gamma, statistics) in [(shape, x[1], x[2]), (no_samples, x[3], x[4])] {
                    BatchInputGradientKernel {
                        shape,
                        x: x[0],
                        gamma,
                        statistics,
                        summed: vec![0.0; shape.sums_len()],
                        dy: dy.reborrow(),
                    }
                    .run_on(device);
                }
                let [of_gamma, of_beta, _, _] = writable(to);
                BatchAffineGradientsKernel {
                    shape,
                    own: vec![8.0],
                    statistics: x[2],
                    of_gamma,
                    of_beta,
                }
                .run_on(device);
            },
        );
    }

    fn no_rows_to_normalise(&mut self) {
        let shape = GroupNorm {
            samples: 0,
            channels: 6,
            places: 10,
            groups: 3,
            epsilon: 1e-5,
        };
        self.known_case(
            "group_norm and layer_norm without samples",
            &[vec![], values(6, 65)],
            &[6, 6, 6, 6].map(unwritten),
            &zeros([6, 6, 6, 6]),
            &|device, x, to| {
                let mut none: Vec<DeviceBuffer> = (0..2).map(|_| device.allocate(0)).collect();
                let [y, statistics] = writable(&mut none);
                GroupNormKernel {
                    shape,
                    x: x[0],
                    gamma: x[1],
                    beta: x[1],
                    y,
                    statistics,
                }
                .run_on(device);
                let [y, statistics] = writable(&mut none);
                LayerNormKernel {
                    x: x[0],
                    gamma: x[1],
                    beta: x[1],
                    epsilon: 1e-5,
                    y,
                    statistics,
                }
                .run_on(device);
                let [dgamma, dbeta, of_gamma, of_beta] = writable(to);
                GroupNormGradientKernel {
                    shape,
                    x: x[0],
                    dy: x[0],
                    gamma: x[1],
                    statistics: x[0],
                    dx: none[0].slice_mut(),
                    of_gamma: dgamma,
                    of_beta: dbeta,
                }
                .run_on(device);
                LayerNormGradientKernel {
                    x: x[0],
                    dy: x[0],
                    gamma: x[1],
                    statistics: x[0],
                    dx: none[0].slice_mut(),
                    of_gamma,
                    of_beta,
                }
                .run_on(device);
            },
        );
    }

    fn empty_attention(&mut self) {
        for (batch, queries, keys) in [(0, 3, 5), (2, 0, 5), (2, 3, 0)] {
            for (causal, lengths) in [(false, vec![]), (true, vec![]), (false, vec![1; batch])] {
                let shape = Attention {
                    batch,
                    queries,
                    keys,
                    heads: 2,
                    width: 4,
                    causal,
                };
                let [asking, looked_at, _] = shape.elements();
                let inputs = [
                    values(asking, 66),
                    values(looked_at, 67),
                    values(asking, 68),
                ];
                self.known_case(
                    &format!("{shape:?} with the lengths {lengths:?}"),
                    &inputs,
                    &[asking, asking, looked_at].map(unwritten),
                    &zeros([asking, asking, looked_at]),
                    &|device, x, to| run_attention(device, &shape, &lengths, x, to),
                );
            }
        }
    }

    fn empty_tables(&mut self) {
        self.known_case(
            "embed without tokens",
            &[vec![], values(4 * 5, 69), values(3 * 5, 70)],
            &[0, 4 * 5, 3 * 5].map(unwritten),
            &zeros([0, 4 * 5, 3 * 5]),
            &|device, x, to| {
                let [y, vectors, positions] = writable(to);
                runs::embed(device, 5, [x[0], x[1], x[2], x[0]], [y, vectors, positions]);
            },
        );
        let rows = TableRows {
            width: 5,
            first: 4,
            count: 8,
        };
        for tokens in [vec![], vec![1.0, 3.0]] {
            let length = tokens.len() * 5;
            let name = format!("embed_rows without tokens of the rows among {tokens:?}");
            let inputs = [tokens, values(4 * 5, 73), values(length, 74)];
            let outputs = [length, 4 * 5];
            let expected = zeros(outputs);
            self.known_case(
                &name,
                &inputs,
                &outputs.map(unwritten),
                &expected,
                &|device, x, to| {
                    let [y, gradient] = writable(to);
                    runs::embed_rows(device, rows, [x[0], x[1], x[2]], [y, gradient]);
                },
            );
        }
        self.no_distances_and_factors();
    }

    fn no_distances_and_factors(&mut self) {
        for (points, centres) in [(0, 3), (4, 0)] {
            self.known_case(
                &format!("squared_distances of {points} points and {centres} centres"),
                &[values(points * 5, 71), values(centres * 5, 72), vec![]],
                &[0, points * 5, centres * 5].map(unwritten),
                &zeros([0, points * 5, centres * 5]),
                &|device, x, to| {
                    let [y, of_points, of_centres] = writable(to);
                    let scales = vec![1.0; centres];
                    let to = [y, of_points, of_centres];
                    runs::distances(device, &scales, [x[0], x[1], x[2]], to);
                },
            );
        }
        let lengths = [4 * 3, 2 * 3, 4, 2, 1];
        let mut inputs: Vec<Vec<f32>> = (73..).zip(lengths).map(|(s, n)| values(n, s)).collect();
        inputs.push(vec![]);
        let outputs = [0, 4 * 3, 2 * 3, 4, 2, 1];
        self.known_case(
            "factor_scores without pairs",
            &inputs,
            &outputs.map(unwritten),
            &zeros(outputs),
            &|device, x, to| {
                let all = writable(to);
                runs::factors(device, [x[0], x[1], x[2], x[3], x[4]], [x[5], x[5]], all);
            },
        );
    }

    /// Nothing is written, so only a failure can be found.
    fn no_elements(&mut self) {
        let context = ForwardContext::evaluate();
        let copy = RowCopy {
            from: [10, 3],
            to: [6, 2],
            length: 4,
        };
        let empty = [vec![], vec![]];
        self.known_case(
            "functions of no elements",
            &empty,
            &empty,
            &empty,
            &|device, x, to| {
                let mut none = device.allocate(0);
                let x = x[0];
                RectifyKernel {
                    y: none.slice_mut(),
                }
                .run_on(device);
                FillKernel {
                    to: none.slice_mut(),
                    value: 2.5,
                }
                .run_on(device);
                RectifyGradientKernel {
                    y: x,
                    dy: x,
                    dx: none.slice_mut(),
                }
                .run_on(device);
                DrawDropoutKernel {
                    context,
                    probability: 0.3,
                    index: 2,
                    drawn: DrawnRows::all(0),
                    to: none.slice_mut(),
                }
                .run_on(device);
                CopyRowsKernel {
                    copy,
                    from: x,
                    to: none.slice_mut(),
                }
                .run_on(device);
                let [y, slope] = writable(to);
                ActivateKernel {
                    function: ronde_kernels::ActivationFunction::Gelu,
                    x,
                    y,
                    slope: Some(slope),
                }
                .run_on(device);
            },
        );
        self.no_terms();
        self.no_short_values();
    }

    fn no_terms(&mut self) {
        let empty = [vec![], vec![]];
        self.known_case(
            "sums and products of no elements",
            &empty,
            &empty,
            &empty,
            &|device, x, _| {
                let mut none = device.allocate(0);
                let x = x[0];
                AddKernel {
                    y: none.slice_mut(),
                    x,
                }
                .run_on(device);
                AddExactKernel {
                    y: none.slice_mut(),
                    x,
                }
                .run_on(device);
                MultiplyByKernel {
                    y: none.slice_mut(),
                    factors: x,
                }
                .run_on(device);
            },
        );
    }

    fn no_short_values(&mut self) {
        let empty = [vec![]];
        for format in [ShortFormat::Bf16, ShortFormat::F16] {
            self.known_case(
                "short formats of no elements",
                &empty,
                &empty,
                &empty,
                &|device, x, to| {
                    let x = x[0];
                    RoundKernel {
                        format,
                        values: to[0].slice_mut(),
                    }
                    .run_on(device);
                    PackKernel {
                        format,
                        values: x,
                        packed: to[0].slice_mut(),
                    }
                    .run_on(device);
                    UnpackKernel {
                        format,
                        packed: x,
                        values: to[0].slice_mut(),
                    }
                    .run_on(device);
                },
            );
        }
    }
}
