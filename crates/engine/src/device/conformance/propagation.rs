//! How far NaN and infinite values reach.

use ronde_kernels::{
    ActivationFunction, AverageAreas, BatchNorm, Convolution, GroupedConvolution, ShortFormat,
    SlidingWindow,
};

use super::shared_cases::{AttentionCase, SampleNorm};
use super::{Kernel, KernelComparison, rounded, unwritten, values, writable};
use crate::device::{AffineSlices, MatrixSlice, PlaneMap, TableRows};

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
        kernel: Kernel<'_>,
    ) {
        let outputs: Vec<_> = outputs.iter().map(|length| unwritten(*length)).collect();
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
                        device.multiply(left, right, to[0].slice_mut(), false);
                    },
                );
            }
        }
        self.reaches(
            "sum_rows and sum_channels",
            &[values(24, 82)],
            &[Exactly(0)],
            &[6, 2],
            &|device, x, to| {
                let [rows, channels] = writable(to);
                device.sum_rows(x[0], rows);
                device.sum_channels(x[0], 4, channels);
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
                        device.convolve(&shape, format, 2, x[0], x[1], y);
                        device.convolve_input_gradient(&shape, format, 2, x[1], x[2], dx);
                        device.convolve_weight_gradient(&shape, None, 2, x[0], x[2], dw);
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
                    device.map_planes(map, x[0], y);
                    device.map_planes_gradient(map, x[1], dx);
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
                let affine = AffineSlices {
                    gamma: x[3],
                    beta: x[4],
                };
                let (first, rest) = to.split_at_mut(2);
                let [y, statistics] = writable(first);
                device.batch_norm(&shape, x[0], affine, Some(x[2]), y, statistics);
                let statistics = first[1].slice();
                let sums = device.batch_gradient_sums(&shape, x[0], x[1], statistics);
                let moments = device.batch_moments(&shape, x[0]);
                let summed: Vec<f32> = moments.iter().chain(&sums).map(|sum| *sum as f32).collect();
                let [
                    dx,
                    dgamma,
                    dbeta,
                    of_added,
                    again,
                    known,
                    mean,
                    variance,
                    found,
                ] = writable(rest);
                let inputs = [x[0], first[0].slice(), x[1], x[3]];
                let gradients = [dx, dgamma, dbeta];
                device.batch_norm_gradient(&shape, inputs, statistics, gradients, Some(of_added));
                device.batch_norm_by(&shape, x[0], affine, Some(x[2]), again, statistics);
                device.move_statistics([x[4], x[5]], statistics, 0.1, [mean, variance]);
                device.known_statistics([x[4], x[5]], 1e-5, known);
                device.write(&summed, found);
            },
        );
    }

    fn through_norms_of_samples(&mut self) {
        for (name, norm, affine, statistics) in SampleNorm::each() {
            let seeds = [(120, 93), (120, 94), (affine, 95), (affine, 96)];
            let inputs = seeds.map(|(length, seed)| values(length, seed));
            let with = [0, 1, 2, 3].map(Exactly);
            let outputs = [120, statistics, 120, affine, affine];
            let run: Kernel<'_> = &|device, x, to| norm.run(device, x, to);
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
            let run: Kernel<'_> = &|device, x, to| attention.run(device, x, to);
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
                device.embed_rows(rows, x[0], x[1], y);
                device.embed_rows_gradient(rows, x[0], x[2], gradient);
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
                device.embed(5, x[0], [x[1], x[2]], y);
                device.embed_gradient(5, x[0], x[3], [vectors, positions]);
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
                device.squared_distances(5, [x[0], x[1]], y);
                device.point_gradients(5, [x[0], x[1]], x[2], of_points);
                device.centre_gradients(5, [x[0], x[1]], x[2], &[1.0, 0.5, 3.0], of_centres);
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
                let [y, gradients @ ..]: [_; 6] = writable(to);
                device.factor_scores(3, x[6], [x[0], x[1], x[2], x[3], x[4]], y);
                device.factor_gradients(3, x[6], [x[0], x[1]], x[5], gradients);
            },
        );
    }

    fn through_elements(&mut self) {
        let inputs = [values(50, 112), values(50, 113)];
        self.reaches(
            "add and multiply_by",
            &inputs,
            &[Exactly(0), Exactly(1)],
            &[50, 50],
            &|device, x, to| {
                let [sum, product] = writable(to);
                device.copy(x[0], sum);
                device.copy(x[0], product);
                let [sum, product] = writable(to);
                device.add(sum, x[1]);
                device.multiply_by(product, x[1]);
            },
        );
        use ActivationFunction::{Gelu, Sigmoid, Silu, Tanh};
        for function in [Gelu, Silu, Sigmoid, Tanh] {
            let (name, inputs) = (format!("{function:?}"), &inputs[..1]);
            self.reaches(&name, inputs, &[Exactly(0)], &[50, 50], &|device, x, to| {
                let [y, slope] = writable(to);
                device.activate(function, x[0], y, Some(slope));
            });
        }
        let (name, inputs) = ("bf16", &inputs[..1]);
        self.reaches(name, inputs, &[Exactly(0)], &[50, 50], &|device, x, to| {
            let mut packed = device.allocate(25);
            let [values, unpacked] = writable(to);
            device.copy(x[0], values);
            device.pack(ShortFormat::Bf16, x[0], packed.slice_mut());
            device.unpack(ShortFormat::Bf16, packed.slice(), unpacked);
            let [values, _] = writable(to);
            device.round(ShortFormat::Bf16, values);
        });
    }
}
