//! [`Codec`]: short forms of gradients and displacements. Units of elements begin again at each tensor, so the form of an element
//! depends only on the model, and never on buckets or ranks.
//!
//! Sources: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017 (the largest elements);
//! Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (scales of blocks).

use std::ops::Range;

use ronde_core::layout::Role;
use ronde_core::norm;

use crate::state::ModelState;

/// The elements of a block that share a scale.
const BLOCK: usize = 256;
/// The largest magnitude of a rounded element.
const LEVELS: f32 = 127.0;
/// The most elements of a unit.
pub(crate) const UNIT_MAX: usize = norm::BLOCK;

/// The form in which a sum or a displacement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Codec {
    /// As it is, in 4 bytes for each element.
    #[default]
    F32,
    /// The upper half of the bits of each element, in 2 bytes.
    Bf16,
    /// A number of 16 bits with 11 significant ones for each element, and a power of two for each block of 256 elements, in 2
    /// bytes and 4 for each block.
    F16,
    /// A multiple of 1/127 of the largest magnitude of a block of 256 elements, in 1 byte, and 4 bytes for each block.
    Int8Blocks,
    /// The elements of the largest magnitude of each block of up to 4,096 elements, in 6 bytes; the other ones are zero. Of
    /// equal magnitudes, the first ones count.
    TopK {
        /// The share of the elements of a block, at least one.
        ratio: f64,
    },
    /// Two factors of each matrix. Other tensors are sent as they are.
    PowerSgd {
        /// The number of columns of each factor.
        rank: u32,
    },
}

impl Codec {
    /// Returns the most elements of a unit, which has a separate form.
    fn unit_len(self) -> usize {
        match self {
            Self::TopK { .. } => UNIT_MAX,
            _ => BLOCK,
        }
    }
}

/// A run of elements of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CodedUnit {
    /// The region of the flat state and the layer of the tensor.
    pub(crate) layer: (usize, usize),
    /// The elements of the flat state.
    pub(crate) elements: Range<usize>,
    codec: Codec,
}

impl CodedUnit {
    /// Returns the number of bytes of its form.
    pub(crate) fn bytes(&self) -> usize {
        let len = self.elements.len();
        match self.codec {
            Codec::F32 | Codec::PowerSgd { .. } => 4 * len,
            Codec::Bf16 => 2 * len,
            Codec::F16 => 4 + 2 * len,
            Codec::Int8Blocks => 4 + len,
            Codec::TopK { ratio } => 6 * kept(len, ratio),
        }
    }

    /// Writes the form of the unit's values.
    pub(crate) fn encode(&self, values: &[f32], to: &mut [u8]) {
        match self.codec {
            Codec::F32 | Codec::PowerSgd { .. } => {
                for (to, value) in to.chunks_exact_mut(4).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
            Codec::Bf16 => {
                for (to, value) in to.chunks_exact_mut(2).zip(values) {
                    to.copy_from_slice(&bf16(*value).to_le_bytes());
                }
            }
            Codec::F16 => encode_f16(values, to),
            Codec::Int8Blocks => encode_int8(values, to),
            Codec::TopK { ratio } => encode_largest(kept(values.len(), ratio), values, to),
        }
    }

    /// Reads the form of the unit's values.
    pub(crate) fn decode(&self, from: &[u8], values: &mut [f32]) {
        match self.codec {
            Codec::F32 | Codec::PowerSgd { .. } => {
                for (from, value) in from.chunks_exact(4).zip(values) {
                    *value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
            Codec::Bf16 => {
                for (from, value) in from.chunks_exact(2).zip(values) {
                    *value = f32::from_le_bytes([0, 0, from[0], from[1]]);
                }
            }
            Codec::F16 => {
                let (factor, from) = head(from);
                for (from, value) in from.chunks_exact(2).zip(values) {
                    *value = half::f16::from_le_bytes([from[0], from[1]]).to_f32() * factor;
                }
            }
            Codec::Int8Blocks => {
                let (scale, from) = head(from);
                for (from, value) in from.iter().zip(values) {
                    *value = f32::from(from.cast_signed()) * scale;
                }
            }
            Codec::TopK { ratio } => {
                let (indices, numbers) = from.split_at(2 * kept(values.len(), ratio));
                values.fill(0.0);
                for (index, number) in indices.chunks_exact(2).zip(numbers.chunks_exact(4)) {
                    let index = u16::from_le_bytes([index[0], index[1]]);
                    // An index outside of the unit is an error of another rank.
                    if let Some(value) = values.get_mut(usize::from(index)) {
                        *value = f32::from_le_bytes([number[0], number[1], number[2], number[3]]);
                    }
                }
            }
        }
    }

    /// Writes the form of the unit's values, and leaves the error of the form in them.
    pub(crate) fn encode_with_error(&self, values: &mut [f32], to: &mut [u8]) {
        self.encode(values, to);
        let mut carried = [0.0; UNIT_MAX];
        let carried = &mut carried[..values.len()];
        self.decode(to, carried);
        for (value, carried) in values.iter_mut().zip(carried) {
            *value -= *carried;
        }
    }
}

/// Returns the units of a range of the flat state that consists of whole tensors, in order. Running statistics stay exact,
/// because they are values and not changes.
pub(crate) fn units(state: &ModelState, elements: &Range<usize>, codec: Codec) -> Vec<CodedUnit> {
    let inside = |start: usize| elements.contains(&start);
    let tensors = state.tensors().iter().filter(|t| inside(t.range.start));
    let mut units = Vec::new();
    for tensor in tensors {
        let codec = match tensor.entry.role {
            Role::Parameter => codec,
            _ => Codec::F32,
        };
        let len = codec.unit_len();
        let part = tensor.entry.part.as_ref();
        let region = part.map_or(0, |part| part.index as usize + 1);
        for start in tensor.range.clone().step_by(len) {
            units.push(CodedUnit {
                layer: (region, tensor.layer),
                elements: start..(start + len).min(tensor.range.end),
                codec,
            });
        }
    }
    units
}

/// Returns the number of elements of a unit that are sent.
fn kept(len: usize, ratio: f64) -> usize {
    ((len as f64 * ratio).ceil() as usize).clamp(1, len.max(1))
}

/// Splits a form into the factor of its block and the rest.
fn head(from: &[u8]) -> (f32, &[u8]) {
    let (factor, rest) = from.split_at(4);
    let factor = f32::from_le_bytes([factor[0], factor[1], factor[2], factor[3]]);
    (factor, rest)
}

fn encode_int8(values: &[f32], to: &mut [u8]) {
    let scale = scale(values);
    let (head, to) = to.split_at_mut(4);
    head.copy_from_slice(&scale.to_le_bytes());
    for (to, value) in to.iter_mut().zip(values) {
        // A block that is not finite has no scale: all of it becomes NaN.
        let level = if scale > 0.0 { value / scale } else { 0.0 };
        *to = (level.round_ties_even().clamp(-LEVELS, LEVELS) as i8).cast_unsigned();
    }
}

fn encode_f16(values: &[f32], to: &mut [u8]) {
    let factor = power_of_two(values);
    let (head, to) = to.split_at_mut(4);
    head.copy_from_slice(&factor.to_le_bytes());
    for (to, value) in to.chunks_exact_mut(2).zip(values) {
        // The factor is a power of two, so the quotient is exact. A block that is not finite has none: all of it becomes NaN.
        let number = if factor > 0.0 { value / factor } else { 0.0 };
        to.copy_from_slice(&half::f16::from_f32(number).to_le_bytes());
    }
}

/// Returns the power of two that a block is divided by, so that its largest magnitude is a number between 16,384 and 32,768; NaN
/// if a value is not finite, and zero if all values are.
fn power_of_two(values: &[f32]) -> f32 {
    let Some(most) = most(values) else {
        return f32::NAN;
    };
    // Smaller values would need a factor that is not a normal number: they are zero.
    let exponent = (most.to_bits() >> 23) as i32 - 127 - 14;
    if most.is_normal() && exponent >= -126 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    } else {
        0.0
    }
}

/// Writes the indices of the `kept` largest magnitudes, in order, then their values.
fn encode_largest(kept: usize, values: &[f32], to: &mut [u8]) {
    let mut keys = [0_u64; UNIT_MAX];
    let keys = &mut keys[..values.len()];
    for ((index, key), value) in (0_u32..).zip(keys.iter_mut()).zip(values) {
        // The bits of magnitudes are in their order, and NaN is the largest. Of equal ones, the first counts.
        let magnitude = value.to_bits() & 0x7fff_ffff;
        *key = u64::from(magnitude) << 32 | u64::from(!index);
    }
    if kept < keys.len() {
        keys.select_nth_unstable_by(kept - 1, |one, other| other.cmp(one));
    }
    let mut chosen = [0_u16; UNIT_MAX];
    let chosen = &mut chosen[..kept];
    for (chosen, key) in chosen.iter_mut().zip(keys) {
        *chosen = !(*key as u32) as u16;
    }
    chosen.sort_unstable();
    let (indices, numbers) = to.split_at_mut(2 * kept);
    for ((index, number), chosen) in (indices.chunks_exact_mut(2))
        .zip(numbers.chunks_exact_mut(4))
        .zip(chosen)
    {
        index.copy_from_slice(&chosen.to_le_bytes());
        number.copy_from_slice(&values[usize::from(*chosen)].to_le_bytes());
    }
}

/// Returns the upper half of a number's bits, rounded to the nearest, to even in the middle.
fn bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    let rounding = 0x7fff + (bits >> 16 & 1);
    (bits.wrapping_add(rounding) >> 16) as u16
}

/// Returns the largest magnitude; `None` if a value is not finite.
fn most(values: &[f32]) -> Option<f32> {
    let mut most = 0.0_f32;
    for value in values {
        if !value.is_finite() {
            return None;
        }
        most = most.max(value.abs());
    }
    Some(most)
}

/// Returns the step between the levels of a block; NaN if a value is not finite.
fn scale(values: &[f32]) -> f32 {
    let Some(most) = most(values) else {
        return f32::NAN;
    };
    let scale = most / LEVELS;
    // Values too small for a scale are zero.
    if scale.is_normal() { scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ronde_core::seed::SeedTree;
    use ronde_engine::ModelConfig;

    use super::*;

    const ALL: [Codec; 5] = [
        Codec::F32,
        Codec::Bf16,
        Codec::F16,
        Codec::Int8Blocks,
        Codec::TopK { ratio: 0.1 },
    ];

    fn unit(codec: Codec, len: usize) -> CodedUnit {
        CodedUnit {
            layer: (0, 0),
            elements: 0..len,
            codec,
        }
    }

    fn decoded(codec: Codec, values: &[f32]) -> Vec<f32> {
        let unit = unit(codec, values.len());
        let mut bytes = vec![0xff; unit.bytes()];
        unit.encode(values, &mut bytes);
        let mut back = vec![f32::NAN; values.len()];
        unit.decode(&bytes, &mut back);
        back
    }

    proptest! {
        #[test]
        fn errors_are_at_most_half_a_level(
            values in prop::collection::vec(-1e3_f32..1e3, 1..BLOCK),
            factor in prop::sample::select(vec![1e-30_f32, 1e-6, 1.0, 1e20]),
        ) {
            let values: Vec<f32> = values.iter().map(|value| value * factor).collect();
            let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (codec, of_most, of_value) in [
                (Codec::Int8Blocks, 0.5 / LEVELS, 0.0),
                (Codec::Bf16, 0.0, 1.0 / 256.0),
                // Small values of a block are multiples of 2^-24 of the largest half of a power of two.
                (Codec::F16, 2.0_f32.powi(-38), 1.0 / 2048.0),
                (Codec::F32, 0.0, 0.0),
            ] {
                let back = decoded(codec, &values);
                for (value, found) in values.iter().zip(&back) {
                    let limit = most * of_most + value.abs() * of_value;
                    prop_assert!((value - found).abs() <= limit * 1.001, "{codec:?} {value} {found}");
                }
            }
        }

        #[test]
        fn the_largest_magnitudes_are_sent(
            values in prop::collection::vec((-40_i32..40).prop_map(|value| value as f32), 1..300),
            ratio in 0.001_f64..1.2,
        ) {
            let kept = kept(values.len(), ratio);
            let mut order: Vec<usize> = (0..values.len()).collect();
            // The sort is stable: of equal magnitudes, the first ones are first.
            order.sort_by(|one, other| values[*other].abs().total_cmp(&values[*one].abs()));
            let mut expected = vec![0.0; values.len()];
            for &index in &order[..kept] {
                expected[index] = values[index];
            }
            prop_assert_eq!(decoded(Codec::TopK { ratio }, &values), expected);
        }

        #[test]
        fn a_form_and_its_error_make_the_values(
            values in prop::collection::vec(-10_f32..10.0, 1..BLOCK),
        ) {
            for codec in ALL {
                let unit = unit(codec, values.len());
                let (mut bytes, mut rest) = (vec![0; unit.bytes()], values.clone());
                unit.encode_with_error(&mut rest, &mut bytes);
                let mut back = vec![0.0; values.len()];
                unit.decode(&bytes, &mut back);
                for ((value, back), rest) in values.iter().zip(&back).zip(&rest) {
                    prop_assert!((value - (back + rest)).abs() <= 1e-6 * value.abs());
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_stay_so_and_tiny_ones_become_zero() {
        for codec in ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let back = decoded(codec, &[1.0, bad, 2.0]);
                assert!(!back[1].is_finite(), "{codec:?} {bad}");
            }
        }
        for codec in [Codec::Int8Blocks, Codec::F16] {
            assert_eq!(decoded(codec, &[0.0, -0.0]), [0.0, 0.0]);
            assert_eq!(decoded(codec, &[1e-40, -2e-39]), [0.0, 0.0]);
            let most = decoded(codec, &[f32::MAX / 2.0, -f32::MAX / 2.0]);
            assert!(most.iter().all(|value| value.is_finite()), "{most:?}");
        }
        let back = decoded(Codec::Int8Blocks, &[127.0, -3.4]);
        assert_eq!(back, [127.0, -3.0]);
    }

    #[test]
    fn sizes_are_those_of_the_documentation() {
        let bytes = |codec, len| unit(codec, len).bytes();
        assert_eq!(bytes(Codec::Int8Blocks, 256), 260);
        assert_eq!(bytes(Codec::F16, 256), 516);
        assert_eq!(bytes(Codec::Bf16, 256), 512);
        assert_eq!(bytes(Codec::TopK { ratio: 0.01 }, 4096), 41 * 6);
        assert_eq!(bytes(Codec::TopK { ratio: 0.01 }, 7), 6, "at least one");
        assert_eq!(bytes(Codec::TopK { ratio: 2.0 }, 7), 42, "at most all");
    }

    #[test]
    fn units_cover_all_tensors_and_running_statistics_are_exact() {
        let model: ModelConfig = serde_json::from_str(r#"{"kind": "digits_cnn"}"#).unwrap();
        let chain = model.build(&[1, 8, 8], 10, &SeedTree::new(1)).unwrap();
        let state = ModelState::of(&chain);
        for codec in ALL {
            let units = units(&state, &(0..state.len()), codec);
            let mut units = units.iter();
            for tensor in state.tensors() {
                let mut end = tensor.range.start;
                while end < tensor.range.end {
                    let unit = units.next().unwrap();
                    assert_eq!(unit.elements.start, end);
                    let is_exact = unit.codec == Codec::F32;
                    assert!(is_exact || tensor.entry.role == Role::Parameter);
                    assert!(is_exact == (codec == Codec::F32) || tensor.entry.role == Role::Buffer);
                    end = unit.elements.end;
                }
                assert_eq!(end, tensor.range.end);
            }
            assert!(units.next().is_none());
        }
    }
}
