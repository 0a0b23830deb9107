//! Kernels without samples, rows or terms of a sum.

use ronde_kernels::{
    Attention, AverageAreas, BatchNorm, Convolution, GroupNorm, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::shared_cases::run_attention;
use super::{KernelComparison, unwritten, values, writable};
use crate::context::ForwardContext;
use crate::device::{
    AffineSlices, DeviceBuffer, DrawnRows, MatrixSlice, PlaneMap, RowCopy, TableRows,
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
                            device.multiply(left, right, to[0].slice_mut(), adds);
                        },
                    );
                }
            }
        }
        self.known_case(
            "sum_rows and repeat_row without rows",
            &[vec![], values(4, 61)],
            &[unwritten(4), vec![]],
            &zeros([4, 0]),
            &|device, x, to| {
                let [sums, repeated] = writable(to);
                device.sum_rows(x[0], sums);
                device.repeat_row(x[1], repeated);
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
            let weights = groups * 16 * channels * kernel * kernel;
            for format in [None, Some(ShortFormat::Bf16)] {
                self.known_case(
                    &format!("convolution {shape:?} of {format:?} without samples"),
                    &[vec![], values(weights, 62)],
                    &[vec![], vec![], unwritten(weights)],
                    &zeros([0, 0, weights]),
                    &|device, x, to| {
                        let [y, dx, dw] = writable(to);
                        device.convolve(&shape, format, 0, x[0], x[1], y);
                        device.convolve_input_gradient(&shape, format, 0, x[1], x[0], dx);
                        device.convolve_weight_gradient(&shape, None, 0, x[0], x[0], dw);
                    },
                );
            }
        }
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
                device.sum_channels(x[0], 5, sums);
                device.max_pool(size, window, x[0], y, from);
                device.max_pool_gradient(size, window, x[0], x[0], dx);
                for map in maps {
                    let [_, y, dx, channels] = writable(to);
                    device.map_planes(map, x[0], y);
                    device.map_planes_gradient(map, x[0], dx);
                    device.add_to_channels(channels, 5, x[1]);
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
                    let affine = AffineSlices {
                        gamma: x[1],
                        beta: x[1],
                    };
                    let inputs = [x[0], x[0], x[0], x[1]];
                    let sums = device.batch_gradient_sums(&shape, x[0], x[0], x[2]);
                    let moments = device.batch_moments(&shape, x[0]);
                    let all: Vec<f32> = moments.iter().chain(&sums).map(|x| *x as f32).collect();
                    let [statistics, dgamma, dbeta, of_gamma, of_beta, found, y] = writable(to);
                    device.batch_norm(&shape, x[0], affine, None, y, statistics);
                    device.write(&all, found);
                    device.batch_affine_gradients(&shape, &sums, x[2], [of_gamma, of_beta]);
                    let mut none = device.allocate(0);
                    let gradients = [none.slice_mut(), dgamma, dbeta];
                    device.batch_norm_gradient(&shape, inputs, x[2], gradients, None);
                    device.batch_norm_by(&shape, x[0], affine, None, none.slice_mut(), x[2]);
                    let dy = none.slice_mut();
                    device.batch_input_gradient(&shape, x[0], x[1], x[2], &sums, dy);
                },
            );
        }
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
                let affine = AffineSlices {
                    gamma: x[1],
                    beta: x[1],
                };
                let mut none: Vec<DeviceBuffer> = (0..2).map(|_| device.allocate(0)).collect();
                let [y, statistics] = writable(&mut none);
                device.group_norm(&shape, x[0], affine, y, statistics);
                let [y, statistics] = writable(&mut none);
                device.layer_norm(x[0], affine, 1e-5, y, statistics);
                let inputs = [x[0], x[0], x[1]];
                let [dgamma, dbeta, of_gamma, of_beta] = writable(to);
                let gradients = [none[0].slice_mut(), dgamma, dbeta];
                device.group_norm_gradient(&shape, inputs, x[0], gradients);
                let gradients = [none[0].slice_mut(), of_gamma, of_beta];
                device.layer_norm_gradient(inputs, x[0], gradients);
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
                device.embed(5, x[0], [x[1], x[2]], y);
                device.embed_gradient(5, x[0], x[0], [vectors, positions]);
            },
        );
        let rows = TableRows {
            width: 5,
            first: 4,
            count: 8,
        };
        self.known_case(
            "embed_rows without tokens of the rows",
            &[vec![1.0, 3.0], values(4 * 5, 73), values(2 * 5, 74)],
            &[2 * 5, 4 * 5].map(unwritten),
            &zeros([2 * 5, 4 * 5]),
            &|device, x, to| {
                let [y, gradient] = writable(to);
                device.embed_rows(rows, x[0], x[1], y);
                device.embed_rows_gradient(rows, x[0], x[2], gradient);
            },
        );
        for (points, centres) in [(0, 3), (4, 0)] {
            self.known_case(
                &format!("squared_distances of {points} points and {centres} centres"),
                &[values(points * 5, 71), values(centres * 5, 72), vec![]],
                &[0, points * 5, centres * 5].map(unwritten),
                &zeros([0, points * 5, centres * 5]),
                &|device, x, to| {
                    let [y, of_points, of_centres] = writable(to);
                    device.squared_distances(5, [x[0], x[1]], y);
                    device.point_gradients(5, [x[0], x[1]], x[2], of_points);
                    let scales = vec![1.0; centres];
                    device.centre_gradients(5, [x[0], x[1]], x[2], &scales, of_centres);
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
                let [y, gradients @ ..]: [_; 6] = writable(to);
                device.factor_scores(3, x[5], [x[0], x[1], x[2], x[3], x[4]], y);
                device.factor_gradients(3, x[5], [x[0], x[1]], x[5], gradients);
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
                let write = |kernel: &mut dyn FnMut(&mut DeviceBuffer)| {
                    kernel(&mut device.allocate(0));
                };
                write(&mut |to| device.add(to.slice_mut(), x[0]));
                write(&mut |to| device.multiply_by(to.slice_mut(), x[0]));
                write(&mut |to| device.rectify(to.slice_mut()));
                write(&mut |to| device.rectify_gradient(x[0], x[1], to.slice_mut()));
                write(&mut |to| {
                    let drawn = DrawnRows::all(0);
                    device.draw_dropout(&context, 0.3, 2, drawn, to.slice_mut());
                });
                write(&mut |to| device.copy_rows(copy, x[0], to.slice_mut()));
                let function = ronde_kernels::ActivationFunction::Gelu;
                let [y, slope] = writable(to);
                device.activate(function, x[0], y, Some(slope));
                for format in [ShortFormat::Bf16, ShortFormat::F16] {
                    write(&mut |to| device.round(format, to.slice_mut()));
                    write(&mut |to| device.pack(format, x[0], to.slice_mut()));
                    write(&mut |to| device.unpack(format, x[0], to.slice_mut()));
                }
            },
        );
    }
}
