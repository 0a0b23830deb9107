//! `exp` and `erf` without tables or branches, so that loops over them are vectorised.
//!
//! Multiplications and additions are not fused: the bits are the same at every level.

/// Returns `e^x` in f64 within 2 units in the last place; 0 below -708, and NaN for NaN.
///
/// Source: argument reduction by Cody and Waite, "Software manual for the elementary functions", 1980;
/// then the Taylor series; the first omitted term is below half a unit.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding it leaves the rounded sum in the low bits, plus the exponent's bias of 1,023.
    const ROUND: f64 = 6_755_399_441_055_744.0 + 1_023.0;
    const SERIES: [f64; 13] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];
    let inside = if x < -708.0 { -708.0 } else { x };
    let inside = if inside > 708.0 { 708.0 } else { inside };
    let shifted = inside * std::f64::consts::LOG2_E + ROUND;
    let power = f64::from_bits(shifted.to_bits() << 52);
    let whole = shifted - ROUND;
    let rest = (inside - whole * LN2_HIGH) - whole * LN2_LOW;
    let mut sum = SERIES[0];
    for term in &SERIES[1..] {
        sum = sum * rest + term;
    }
    let found = (sum * rest + 1.0) * power;
    // The bit shift destroys NaN, so it is restored here.
    if x < -708.0 { 0.0 } else { found + x * 0.0 }
}

/// Returns `erf(x)` in f32 within 1e-6, given `e^(-x^2)`. Source: Abramowitz and Stegun, "Handbook of mathematical functions",
/// 7.1.26.
#[inline(always)]
pub(crate) fn erf(x: f32, exp_of_minus_square: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let series = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t
        + 0.254_829_6)
        * t;
    let found = 1.0 - series * exp_of_minus_square;
    if x < 0.0 { -found } else { found }
}

/// Returns `e^x` in f32 within 2 units in the last place; 0 below -87, and NaN for NaN. Source: the Cephes
/// library, `expf`.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const ROUND: f32 = 12_582_912.0 + 127.0;
    let inside = if x < -87.0 { -87.0 } else { x };
    let inside = if inside > 87.0 { 87.0 } else { inside };
    let shifted = inside * std::f32::consts::LOG2_E + ROUND;
    let power = f32::from_bits(shifted.to_bits() << 23);
    let whole = shifted - ROUND;
    let rest = (inside - whole * LN2_HIGH) - whole * LN2_LOW;
    let mut sum = 1.987_569_1e-4;
    for term in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_6e-1,
        5e-1,
    ] {
        sum = sum * rest + term;
    }
    let found = (sum * rest * rest + rest + 1.0) * power;
    if x < -87.0 { 0.0 } else { found + x * 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn exponentials_are_near_those_of_libm() {
        at_every_level(|| {
            for i in -70_000..70_000 {
                let x = f64::from(i) * 0.01;
                let expected = libm::exp(x);
                assert!((exp(x) - expected).abs() <= 5e-16 * expected, "exp({x})");
                let narrow = (x * 0.124) as f32;
                let expected = libm::exp(f64::from(narrow));
                let near = (f64::from(exp_f32(narrow)) - expected).abs() <= 2.5e-7 * expected;
                assert!(near, "exp({narrow}): {} for {expected}", exp_f32(narrow));
            }
            assert_eq!((exp(0.0), exp_f32(0.0)), (1.0, 1.0));
            assert_eq!((exp(-1e9), exp_f32(-1e9)), (0.0, 0.0));
            assert_eq!(
                (exp(f64::NEG_INFINITY).to_bits(), exp_f32(-100.0)),
                (0, 0.0)
            );
            assert!(exp(f64::NAN).is_nan() && exp_f32(f32::NAN).is_nan());
        });
    }

    #[test]
    fn the_error_function_is_near_that_of_libm() {
        at_every_level(|| {
            for i in -6000..6000 {
                let x = i as f32 * 0.001;
                let got = erf(x, exp_f32(-x * x));
                assert!(
                    (f64::from(got) - libm::erf(f64::from(x))).abs() < 1e-6,
                    "erf({x})"
                );
            }
        });
    }
}
