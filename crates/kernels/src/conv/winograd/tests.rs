//! The algorithm against the definition in f64 and against the direct form, at all levels.

use super::*;
use crate::conv::tests::each;
use crate::conv::weights::WeightGradient;
use crate::conv::windows::FlippedWeights;
use crate::conv::{ConvolutionForward, Matrix};
use crate::simd::{Level, dispatch_at};
use crate::testing::values;

const LEVELS: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

fn shape(channels: usize, size: [usize; 2], outputs: usize) -> Convolution {
    Convolution {
        channels,
        size,
        outputs,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    }
}

/// The operands of the three passes.
struct Operands {
    shape: Convolution,
    samples: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
}

impl Operands {
    /// The inputs are positive, as after a rectifier.
    fn new(shape: Convolution, samples: usize) -> Self {
        let [input, output, weights] = shape.elements();
        let x = values(samples * input, 1);
        Self {
            shape,
            samples,
            x: x.into_iter().map(f32::abs).collect(),
            w: values(weights, 2),
            dy: values(samples * output, 3),
        }
    }

    /// Returns the output, the gradient of the input and that of the weights.
    fn exact(&self) -> [Vec<f64>; 3] {
        let lengths = [self.dy.len(), self.x.len(), self.w.len()];
        let mut found = lengths.map(|length| vec![0.0; length]);
        each(&self.shape, self.samples, |i, t, o| {
            let [x, w, dy] = [self.x[i], self.w[t], self.dy[o]].map(f64::from);
            found[0][o] += x * w;
            found[1][i] += dy * w;
            found[2][t] += dy * x;
        });
        found
    }

    fn unwritten(&self) -> [Vec<f32>; 3] {
        [self.dy.len(), self.x.len(), self.w.len()].map(|length| vec![f32::NAN; length])
    }

    /// Returns the convolution whose output is the gradient of the input.
    fn turned(&self) -> Convolution {
        Convolution {
            channels: self.shape.outputs,
            outputs: self.shape.channels,
            ..self.shape
        }
    }

    fn transformed(&self, level: Level) -> [Vec<f32>; 3] {
        let (shape, samples) = (self.shape, self.samples);
        let mut found = self.unwritten();
        let [y, dx, dw] = &mut found;
        let forward = WinogradForward {
            shape,
            samples,
            x: &self.x,
            weights: TiledWeights::Forward(&self.w),
            y,
        };
        dispatch_at(level, forward);
        let input_gradient = WinogradForward {
            shape: self.turned(),
            samples,
            x: &self.dy,
            weights: TiledWeights::Flipped {
                weights: &self.w,
                outer: self.shape.channels,
                first: 0,
            },
            y: dx,
        };
        dispatch_at(level, input_gradient);
        let (x, dy) = (&*self.x, &*self.dy);
        let weight_gradient = WinogradWeightGradient {
            shape,
            samples,
            x,
            dy,
            group_tiles: group_tiles(shape.channels.max(shape.outputs)),
            dw,
        };
        dispatch_at(level, weight_gradient);
        found
    }

    fn direct(&self, level: Level) -> [Vec<f32>; 3] {
        let (shape, samples) = (self.shape, self.samples);
        let mut found = self.unwritten();
        let [y, dx, dw] = &mut found;
        let forward = ConvolutionForward {
            shape,
            samples,
            x: &self.x,
            left: Matrix::new(&self.w, shape.outputs, shape.window()).transposed(),
            y,
        };
        dispatch_at(level, forward);
        let input_gradient = ConvolutionForward {
            shape: self.turned(),
            samples,
            x: &self.dy,
            left: FlippedWeights::new(&self.w, shape.channels, 0, TAPS),
            y: dx,
        };
        dispatch_at(level, input_gradient);
        let (x, dy) = (&*self.x, &*self.dy);
        let weight_gradient = WeightGradient {
            shape,
            samples,
            x,
            dy,
            outputs: 0..shape.outputs,
            dw,
        };
        dispatch_at(level, weight_gradient);
        found
    }
}

/// Returns the root of the mean square of the errors, and the largest.
fn errors(got: &[f32], exact: &[f64]) -> [f64; 2] {
    let errors = got.iter().zip(exact);
    let errors = errors.map(|(got, exact)| (f64::from(*got) - exact).abs());
    let (mut squares, mut largest) = (0.0, 0.0_f64);
    for error in errors {
        assert!(error.is_finite(), "an element that was not written");
        squares += error * error;
        largest = largest.max(error);
    }
    [(squares / exact.len() as f64).sqrt(), largest]
}

#[test]
fn errors_are_at_most_ten_times_those_of_the_direct_form() {
    for (shape, samples) in [
        (shape(64, [16, 16], 64), 2),
        (shape(128, [8, 8], 64), 4),
        (shape(64, [7, 7], 128), 4),
        (shape(512, [4, 4], 64), 8),
        (shape(64, [4, 4], 512), 8),
    ] {
        let operands = Operands::new(shape, samples);
        let exact = operands.exact();
        for level in LEVELS {
            let (found, direct) = (operands.transformed(level), operands.direct(level));
            for pass in 0..3 {
                let found = errors(&found[pass], &exact[pass]);
                let direct = errors(&direct[pass], &exact[pass]);
                let ratios = [found[0] / direct[0], found[1] / direct[1]];
                assert!(
                    ratios.iter().all(|ratio| *ratio <= 10.0),
                    "{shape:?}, {level:?}, pass {pass}: rms and largest error {ratios:?} times the direct form's"
                );
            }
        }
    }
}

#[test]
fn all_groups_of_tiles_are_computed() {
    let shape = shape(512, [3, 3], 64);
    let samples = group_tiles(512) + 3;
    let operands = Operands::new(shape, samples);
    let direct = operands.direct(Level::detect());
    for level in LEVELS {
        for (got, expected) in operands.transformed(level).iter().zip(&direct) {
            for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
                let near = (got - expected).abs() <= 1e-3 * (1.0 + expected.abs());
                assert!(near, "{level:?} at {place}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn the_choice_depends_on_the_shape() {
    let with = |change: fn(&mut Convolution)| {
        let mut shape = shape(64, [8, 8], 64);
        change(&mut shape);
        applies(&shape)
    };
    assert!(with(|_| ()));
    assert!(with(|shape| shape.padding = [0, 2]));
    assert!(with(|shape| shape.size = [3, 4]));
    assert!(!with(|shape| shape.size = [2, 2]));
    assert!(!with(|shape| shape.size = [5, 5]));
    assert!(!with(|shape| shape.padding = [3, 1]));
    assert!(!with(|shape| shape.stride = [1, 2]));
    assert!(!with(|shape| shape.kernel = [3, 1]));
    assert!(!with(|shape| shape.channels = 48));
    assert!(!with(|shape| shape.outputs = 72));
}
