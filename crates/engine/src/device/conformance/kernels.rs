//! Kernels on ordinary values, compared with those of the host.

use ronde_kernels::{
    ActivationFunction, AverageAreas, BatchNorm, Convolution, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::runs::{self, ConvolutionRun};
use super::shared_cases::{AttentionCase, SampleNorm, sums_of_batch};
use super::{KernelComparison, rounded, unwritten, values, writable};
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::{
    ActivateKernel, AddExactKernel, AddKernel, AddToChannelsKernel, BatchAffineGradientsKernel,
    BatchInputGradientKernel, ConvolveShardsWeightGradientKernel, CopyKernel, CopyRowsKernel,
    DrawDropoutKernel, DrawnRows, FillKernel, MatrixSlice, MultiplyByKernel, MultiplyKernel,
    MultiplyShardsKernel, PackKernel, PlaneMap, RectifyGradientKernel, RectifyKernel,
    RepeatRowKernel, RoundKernel, RowCopy, SumChannelsKernel, SumRowsKernel, TableRows,
    UnpackKernel,
};

impl KernelComparison<'_> {
    pub(super) fn ordinary_values(&mut self) {
        self.memory();
        self.matrices();
        self.products_of_shards();
        self.convolutions();
        self.pools();
        self.batch_norms();
        self.sums_over_shards();
        self.norms_of_samples();
        self.sequences();
        self.rows_of_tables();
        self.tables();
        self.elements();
        self.short_formats();
    }

    fn memory(&mut self) {
        self.case(
            "copy",
            &[values(37, 1)],
            &[unwritten(37)],
            &|device, x, to| {
                CopyKernel {
                    from: x[0],
                    to: to[0].slice_mut(),
                }
                .run_on(device);
            },
        );
        self.case("fill", &[], &[unwritten(5)], &|device, _, to| {
            FillKernel {
                to: to[0].slice_mut(),
                value: 2.5,
            }
            .run_on(device);
        });
        self.case("an empty buffer", &[vec![]], &[vec![]], &|device, x, to| {
            CopyKernel {
                from: x[0],
                to: to[0].slice_mut(),
            }
            .run_on(device);
        });
    }

    fn products_of_shards(&mut self) {
        for shards in [&[1][..], &[3, 0, 2], &[8; 9], &[300, 1, 270]] {
            let (rows, inner, columns) = (33, shards.iter().sum(), 49);
            for transposed in [false, true] {
                let inputs = [values(rows * inner, 7), values(inner * columns, 8)];
                self.case(
                    &format!("multiply_shards of {shards:?}"),
                    &inputs,
                    &[values(rows * columns, 9)],
                    &|device, x, to| {
                        let left = match transposed {
                            true => MatrixSlice::new(x[0], inner, rows).transposed(),
                            false => MatrixSlice::new(x[0], rows, inner),
                        };
                        MultiplyShardsKernel {
                            left,
                            right: MatrixSlice::new(x[1], inner, columns),
                            to: to[0].slice_mut(),
                            shards: shards.into(),
                        }
                        .run_on(device);
                    },
                );
            }
        }
    }

    fn matrices(&mut self) {
        let bf16 = Some(ShortFormat::Bf16);
        for [rows, inner, columns] in [[1, 1, 1], [5, 7, 3], [33, 70, 49], [3, 600, 17]] {
            for (transposes, adds, formats) in [
                ([false; 2], false, [None; 2]),
                ([true, false], true, [None; 2]),
                ([false, true], false, [None; 2]),
                ([false; 2], true, [bf16; 2]),
                ([true, false], false, [bf16; 2]),
                ([false, true], false, [bf16, None]),
            ] {
                let inputs = [
                    rounded(values(rows * inner, 2), formats[0]),
                    rounded(values(inner * columns, 3), formats[1]),
                ];
                let name = format!("multiply {rows} x {inner} x {columns} of {formats:?}");
                self.case(
                    &name,
                    &inputs,
                    &[values(rows * columns, 4)],
                    &|device, x, to| {
                        let view = |index: usize, [rows, columns]: [usize; 2]| {
                            let view = if transposes[index] {
                                MatrixSlice::new(x[index], columns, rows).transposed()
                            } else {
                                MatrixSlice::new(x[index], rows, columns)
                            };
                            view.rounded_to(formats[index])
                        };
                        let (left, right) = (view(0, [rows, inner]), view(1, [inner, columns]));
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
        let row = [values(6, 5), values(24, 6)];
        let outputs = [unwritten(24), unwritten(6)];
        self.case(
            "repeat_row and sum_rows",
            &row,
            &outputs,
            &|device, x, to| {
                let [repeated, sums] = writable(to);
                RepeatRowKernel {
                    row: x[0],
                    to: repeated,
                }
                .run_on(device);
                SumRowsKernel {
                    rows: x[1],
                    to: sums,
                }
                .run_on(device);
            },
        );
    }

    fn gradients_of_shards(&mut self, shapes: impl IntoIterator<Item = Convolution>) {
        for shape in shapes {
            let [image, result, weights] = shape.elements();
            for shards in [&[1][..], &[2, 0, 1], &[1; 5]] {
                let samples: usize = shards.iter().sum();
                self.case(
                    &format!("convolve_shards_weight_gradient {shape:?} of {shards:?}"),
                    &[values(samples * image, 7), values(samples * result, 9)],
                    &[unwritten(weights)],
                    &|device, x, to| {
                        ConvolveShardsWeightGradientKernel {
                            shape,
                            x: x[0],
                            dy: x[1],
                            dw: to[0].slice_mut(),
                            shards: shards.into(),
                        }
                        .run_on(device);
                    },
                );
            }
        }
    }

    fn convolutions(&mut self) {
        let shape = |channels, outputs, kernel, stride, padding, groups| GroupedConvolution {
            each: Convolution {
                channels,
                size: [9, 8],
                outputs,
                kernel,
                stride: [stride; 2],
                padding,
            },
            groups,
        };
        let shapes = [
            shape(3, 5, [3, 3], 1, [1, 1], 1),
            shape(16, 32, [3, 3], 1, [1, 1], 1),
            shape(4, 6, [1, 1], 1, [0, 0], 1),
            shape(3, 4, [3, 1], 2, [1, 0], 1),
            shape(2, 3, [3, 3], 2, [1, 1], 2),
            shape(1, 1, [3, 3], 1, [1, 1], 6),
        ];
        let samples = 3;
        for shape in shapes {
            let each = shape.each;
            let images = samples * shape.groups * each.channels * 72;
            let weights =
                shape.groups * each.outputs * each.channels * each.kernel[0] * each.kernel[1];
            let places: usize = each.output_size().iter().product();
            let results = samples * shape.groups * each.outputs * places;
            for format in [None, Some(ShortFormat::Bf16)] {
                let inputs = [values(images, 7), values(weights, 8), values(results, 9)];
                let inputs = inputs.map(|values| rounded(values, format));
                let outputs = [unwritten(results), unwritten(images), unwritten(weights)];
                self.case(
                    &format!("convolution {shape:?} of {format:?}"),
                    &inputs,
                    &outputs,
                    &|device, x, to| {
                        let [y, dx, dw] = writable(to);
                        ConvolutionRun {
                            shape,
                            format,
                            samples,
                        }
                        .run(device, [x[0], x[1], x[2]], [y, dx, dw]);
                    },
                );
            }
        }
        self.gradients_of_shards(shapes.map(|shape| shape.each));
        let inputs = [values(4, 10), values(2 * 4 * 6, 11)];
        let outputs = [values(2 * 4 * 6, 12), unwritten(4)];
        self.case("sums of channels", &inputs, &outputs, &|device, x, to| {
            let [y, sums] = writable(to);
            AddToChannelsKernel {
                y,
                places: 6,
                added: x[0],
            }
            .run_on(device);
            SumChannelsKernel {
                x: x[1],
                places: 6,
                to: sums,
            }
            .run_on(device);
        });
    }

    fn pools(&mut self) {
        let (size, window) = ([7, 6], SlidingWindow::new(3, 2, 1));
        let images = [values(4 * 42, 13), values(4 * 12, 14)];
        let outputs = [unwritten(4 * 12), vec![0.0; 4 * 12], unwritten(4 * 42)];
        self.case("max_pool", &images, &outputs, &|device, x, to| {
            runs::max_pool(device, (size, window), [x[0], x[1]], to);
        });
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
            let inputs = [values(4 * 42, 15), values(4 * results, 16)];
            let outputs = [unwritten(4 * results), unwritten(4 * 42)];
            self.case(&format!("{map:?}"), &inputs, &outputs, &|device, x, to| {
                let [y, dx] = writable(to);
                runs::map_planes(device, map, [x[0], x[1]], [y, dx]);
            });
        }
    }

    fn batch_norms(&mut self) {
        for (rectified, adds) in [(false, false), (true, true)] {
            let shape = BatchNorm {
                samples: 3,
                channels: 4,
                places: 35,
                epsilon: 1e-5,
                rectified,
            };
            let all = 3 * 4 * 35;
            let [x, dy, added] = [17, 18, 19].map(|seed| values(all, seed));
            let inputs = [x, dy, added, values(4, 20), values(4, 21), vec![0.5; 4]];
            let outputs = [all, 12, all, 4, 4, all, all, 12, 4, 4].map(unwritten);
            self.case(
                &format!("batch_norm {shape:?}"),
                &inputs,
                &outputs,
                &|device, x, to| {
                    runs::batch_norm(device, (shape, adds), x, to);
                },
            );
        }
    }

    fn sums_over_shards(&mut self) {
        let shape = BatchNorm {
            samples: 2,
            channels: 3,
            places: 20,
            epsilon: 1e-5,
            rectified: false,
        };
        let statistics = [values(3, 22), vec![1.5; 3], vec![0.8; 3]].concat();
        let inputs = [values(120, 23), values(120, 24), statistics, values(3, 25)];
        let outputs = [values(120, 26), unwritten(3), unwritten(3), unwritten(14)];
        self.case("sums over shards", &inputs, &outputs, &|device, x, to| {
            let (sums, all) = sums_of_batch(device, shape, [x[0], x[1], x[2]]);
            let [dy, dgamma, dbeta, found] = writable(to);
            BatchInputGradientKernel {
                shape,
                x: x[0],
                gamma: x[3],
                statistics: x[2],
                summed: sums.to_vec(),
                dy,
            }
            .run_on(device);
            BatchAffineGradientsKernel {
                shape,
                own: sums.to_vec(),
                statistics: x[2],
                of_gamma: dgamma,
                of_beta: dbeta,
            }
            .run_on(device);
            device.write(&all, found);
        });
    }

    fn norms_of_samples(&mut self) {
        for (name, norm, affine, statistics) in SampleNorm::each() {
            let seeds = [(120, 27), (120, 28), (affine, 29), (affine, 30)];
            let inputs = seeds.map(|(length, seed)| values(length, seed));
            let outputs = [120, statistics, 120, affine, affine].map(unwritten);
            self.case(name, &inputs, &outputs, &|device, x, to| {
                norm.run(device, x, to)
            });
        }
    }

    fn sequences(&mut self) {
        for attention in AttentionCase::each() {
            let [asking, looked_at, _] = attention.shape.elements();
            let seeds = [(asking, 31), (looked_at, 32), (asking, 33)];
            let inputs = seeds.map(|(length, seed)| values(length, seed));
            let outputs = [asking, asking, looked_at].map(unwritten);
            let name = format!("{:?}", attention.shape);
            self.case(&name, &inputs, &outputs, &|device, x, to| {
                attention.run(device, x, to)
            });
        }
        let tokens = vec![0.0, 3.0, 3.0, 1.0, -2.0, 99.0];
        let inputs = [
            tokens,
            values(4 * 5, 34),
            values(3 * 5, 35),
            values(6 * 5, 36),
        ];
        let outputs = [6 * 5, 4 * 5, 3 * 5].map(unwritten);
        self.case("embed", &inputs, &outputs, &|device, x, to| {
            let [y, vectors, positions] = writable(to);
            runs::embed(device, 5, [x[0], x[1], x[2], x[3]], [y, vectors, positions]);
        });
    }

    fn rows_of_tables(&mut self) {
        let tokens = vec![0.0, 3.0, 7.0, 4.0, 3.0, 6.0];
        let inputs = [tokens, values(3 * 5, 47), values(6 * 5, 48)];
        let outputs = [6 * 5, 3 * 5].map(unwritten);
        let rows = TableRows {
            width: 5,
            first: 2,
            count: 7,
        };
        self.case("embed_rows", &inputs, &outputs, &|device, x, to| {
            let [y, gradient] = writable(to);
            runs::embed_rows(device, rows, [x[0], x[1], x[2]], [y, gradient]);
        });
    }

    fn tables(&mut self) {
        let inputs = [values(4 * 5, 44), values(3 * 5, 45), values(4 * 3, 46)];
        let outputs = [4 * 3, 4 * 5, 3 * 5].map(unwritten);
        self.case("squared_distances", &inputs, &outputs, &|device, x, to| {
            let [y, of_points, of_centres] = writable(to);
            let scales = [1.0, 0.5, 3.0];
            runs::distances(
                device,
                &scales,
                [x[0], x[1], x[2]],
                [y, of_points, of_centres],
            );
        });
        let lengths = [4 * 3, 2 * 3, 4, 2, 1];
        let mut inputs: Vec<Vec<f32>> = (47..).zip(lengths).map(|(s, n)| values(n, s)).collect();
        inputs.push(vec![0.0, 1.0, 3.0, 0.0, 3.0, 1.0]);
        inputs.push(values(3, 52));
        let outputs = [3, 4 * 3, 2 * 3, 4, 2, 1].map(unwritten);
        self.case("factor_scores", &inputs, &outputs, &|device, x, to| {
            let all = writable(to);
            runs::factors(device, [x[0], x[1], x[2], x[3], x[4]], [x[5], x[6]], all);
        });
    }

    fn elements(&mut self) {
        let inputs = [values(50, 37), values(50, 38)];
        let outputs = [
            values(50, 39),
            values(50, 40),
            values(50, 41),
            unwritten(50),
            values(50, 42),
        ];
        self.case(
            "add, multiply_by and rectify",
            &inputs,
            &outputs,
            &|device, x, to| {
                let [sum, product, rectified, gradient, exact_sum] = writable(to);
                AddKernel { y: sum, x: x[0] }.run_on(device);
                AddExactKernel {
                    y: exact_sum,
                    x: x[1],
                }
                .run_on(device);
                MultiplyByKernel {
                    y: product,
                    factors: x[0],
                }
                .run_on(device);
                RectifyKernel { y: rectified }.run_on(device);
                RectifyGradientKernel {
                    y: x[0],
                    dy: x[1],
                    dx: gradient,
                }
                .run_on(device);
            },
        );
        self.random_and_copied_values();
        let inputs = &inputs[..1];
        use ActivationFunction::{Gelu, Sigmoid, Silu, Tanh};
        for function in [Gelu, Silu, Sigmoid, Tanh] {
            let outputs = [unwritten(50), unwritten(50), unwritten(50)];
            self.case(
                &format!("{function:?}"),
                inputs,
                &outputs,
                &|device, x, to| {
                    let [y, slope, alone] = writable(to);
                    ActivateKernel {
                        function,
                        x: x[0],
                        y,
                        slope: Some(slope),
                    }
                    .run_on(device);
                    ActivateKernel {
                        function,
                        x: x[0],
                        y: alone,
                        slope: None,
                    }
                    .run_on(device);
                },
            );
        }
    }

    fn random_and_copied_values(&mut self) {
        let context = ForwardContext {
            mode: Mode::Train,
            ..ForwardContext::evaluate()
        };
        self.case("draw_dropout", &[], &[unwritten(50)], &|device, _, to| {
            let drawn = DrawnRows::all(50);
            DrawDropoutKernel {
                context,
                probability: 0.3,
                index: 2,
                drawn,
                to: to[0].slice_mut(),
            }
            .run_on(device);
        });
        self.case(
            "draw_dropout of a part",
            &[],
            &[unwritten(12)],
            &|device, _, to| {
                let drawn = DrawnRows {
                    row: 10,
                    first: 3,
                    length: 4,
                };
                DrawDropoutKernel {
                    context,
                    probability: 0.3,
                    index: 2,
                    drawn,
                    to: to[0].slice_mut(),
                }
                .run_on(device);
            },
        );
        let copy = RowCopy {
            from: [10, 3],
            to: [6, 2],
            length: 4,
        };
        self.case(
            "copy_rows",
            &[values(50, 42)],
            &[values(30, 43)],
            &|device, x, to| {
                CopyRowsKernel {
                    copy,
                    from: x[0],
                    to: to[0].slice_mut(),
                }
                .run_on(device);
            },
        );
    }

    /// The order of packed values is the device's, so they are compared after they are unpacked.
    fn short_formats(&mut self) {
        for format in [ShortFormat::Bf16, ShortFormat::F16] {
            const LENGTH: usize = 40_001;
            // Ranges of whole groups, with a shorter last one.
            let parts = [0..64, 64..20_000, 20_000..LENGTH];
            let floats = |values: &std::ops::Range<usize>| {
                ShortFormat::packed_length(values.start)..ShortFormat::packed_length(values.end)
            };
            let outputs = [values(LENGTH, 44), unwritten(LENGTH), unwritten(LENGTH)];
            self.case(
                &format!("{format:?}"),
                &[values(LENGTH, 46)],
                &outputs,
                &|device, x, to| {
                    let [rounded, whole, in_parts] = writable(to);
                    let [mut own, mut of_parts] =
                        [(); 2].map(|()| device.allocate(ShortFormat::packed_length(LENGTH)));
                    RoundKernel {
                        format,
                        values: rounded,
                    }
                    .run_on(device);
                    PackKernel {
                        format,
                        values: x[0],
                        packed: own.slice_mut(),
                    }
                    .run_on(device);
                    for part in &parts {
                        let to = of_parts.slice_mut().range(floats(part));
                        PackKernel {
                            format,
                            values: x[0].range(part.clone()),
                            packed: to,
                        }
                        .run_on(device);
                    }
                    UnpackKernel {
                        format,
                        packed: of_parts.slice(),
                        values: whole,
                    }
                    .run_on(device);
                    let mut in_parts = in_parts;
                    for part in &parts {
                        let to = in_parts.reborrow().range(part.clone());
                        UnpackKernel {
                            format,
                            packed: own.slice().range(floats(part)),
                            values: to,
                        }
                        .run_on(device);
                    }
                },
            );
        }
    }
}
