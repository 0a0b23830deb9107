//! Short floating-point formats: rounding, and storage in 2 bytes.
//!
//! Packed values are stored in pairs in the bits of floats: the first 16 of each [`ShortFormat::GROUP`] in the low halves of 16
//! floats, the others in their high halves; in a shorter group at the end, the first half likewise. So vectors are read and
//! written without moves across lanes, and whole groups are where their values are.
//! Rounding is to the nearest, ties to even; the bits are the same at every level.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "conversions by vector instructions")
)]

#[cfg(target_arch = "x86_64")]
mod bf16_vectors;
#[cfg(target_arch = "x86_64")]
mod f16_vectors;

#[cfg(target_arch = "x86_64")]
use crate::simd::Level;
use crate::simd::{Vectorised, vectorised};

/// A floating-point format of 2 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShortFormat {
    /// 8 bits of precision, the range of f32.
    Bf16,
    /// 11 bits of precision, 6e-8 to 65,504. Greater values become infinite.
    F16,
}

impl ShortFormat {
    /// The number of values that are packed together: a range of values that begins and ends with a group, or at the end, is
    /// packed in a range of floats.
    pub const GROUP: usize = 32;

    /// Returns the number of floats whose bits store `values` packed values.
    #[must_use]
    pub fn packed_length(values: usize) -> usize {
        values.div_ceil(2)
    }
}

/// Rounds values in place. Cost: one pass.
pub fn round_short(format: ShortFormat, values: &mut [f32]) {
    match format {
        ShortFormat::Bf16 => vectorised(Rounding::<Bf16Bits>::new(values)),
        ShortFormat::F16 => vectorised(Rounding::<F16Bits>::new(values)),
    }
}

/// Packs values, rounded. Cost: one pass.
///
/// # Panics
/// If `packed` does not have the packed length.
pub fn pack_short(format: ShortFormat, values: &[f32], packed: &mut [f32]) {
    check_packed(values.len(), packed.len());
    match format {
        ShortFormat::Bf16 => vectorised(Packing::<Bf16Bits>::new(values, packed)),
        ShortFormat::F16 => vectorised(Packing::<F16Bits>::new(values, packed)),
    }
}

/// Writes packed values as f32. Cost: one pass.
///
/// # Panics
/// If `packed` does not have the packed length.
pub fn unpack_short(format: ShortFormat, packed: &[f32], values: &mut [f32]) {
    check_packed(values.len(), packed.len());
    match format {
        ShortFormat::Bf16 => vectorised(Unpacking::<Bf16Bits>::new(values, packed)),
        ShortFormat::F16 => vectorised(Unpacking::<F16Bits>::new(values, packed)),
    }
}

fn check_packed(values: usize, packed: usize) {
    assert_eq!(
        packed,
        ShortFormat::packed_length(values),
        "packed length of {values} values"
    );
}

/// The conversions of a format, without branches so that loops over them are vectorised.
trait ShortBits {
    /// Returns the 16 bits of the nearest value.
    fn narrow(value: f32) -> u32;
    /// Returns the value of 16 bits.
    fn widen(bits: u32) -> f32;

    /// Rounds the first values by instructions for the format, if there are any. Returns their number.
    #[inline(always)]
    fn round_vectors(_values: &mut [f32]) -> usize {
        0
    }

    /// Packs the first groups, likewise.
    #[inline(always)]
    fn pack_vectors(_values: &[f32], _packed: &mut [f32]) -> usize {
        0
    }

    /// Unpacks the first groups, likewise.
    #[inline(always)]
    fn unpack_vectors(_packed: &[f32], _values: &mut [f32]) -> usize {
        0
    }
}

/// The number of floats of a packed group.
const PAIRS: usize = ShortFormat::GROUP / 2;

struct Bf16Bits;

impl ShortBits for Bf16Bits {
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // The carry of a NaN could make it infinite or zero.
        let kept = if value.is_nan() {
            bits | 0x0040_0000
        } else {
            rounded
        };
        kept >> 16
    }

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }

    #[cfg(target_arch = "x86_64")]
    fn pack_vectors(values: &[f32], packed: &mut [f32]) -> usize {
        if !has_vectors() {
            return 0;
        }
        // SAFETY: the processor has the instructions.
        unsafe { bf16_vectors::pack(values, packed) }
    }

    #[cfg(target_arch = "x86_64")]
    fn unpack_vectors(packed: &[f32], values: &mut [f32]) -> usize {
        if !has_vectors() {
            return 0;
        }
        // SAFETY: the processor has the instructions.
        unsafe { bf16_vectors::unpack(packed, values) }
    }
}

/// Returns whether this thread's level has the instructions of AVX-512.
#[cfg(target_arch = "x86_64")]
fn has_vectors() -> bool {
    Level::current() == Level::Avx512
}

struct F16Bits;

/// The magnitude 2^16 as bits of an f32: rounded values from there on are infinite.
const F16_END: u32 = (127 + 16) << 23;
/// The magnitude 2^-14, the least with all 11 bits of precision.
const F16_NORMAL: u32 = (127 - 14) << 23;
/// A number whose last bit has the weight of the last bit of f16 values below [`F16_NORMAL`]: 2^-24.
const F16_LAST_BIT: u32 = (127 - 24 + 23) << 23;

impl ShortBits for F16Bits {
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        let sign = bits & 0x8000_0000;
        let magnitude = bits ^ sign;
        let endless = if magnitude > 0x7f80_0000 {
            0x7e00 | magnitude >> 13 & 0x3ff
        } else {
            0x7c00
        };
        // The addition rounds to a multiple of the last bit.
        let small = (f32::from_bits(magnitude) + f32::from_bits(F16_LAST_BIT)).to_bits();
        let small = small.wrapping_sub(F16_LAST_BIT);
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub((127 - 15) << 23);
        let normal = normal.wrapping_add(0xfff + odd) >> 13;
        let finite = if magnitude < F16_NORMAL {
            small
        } else {
            normal
        };
        let short = if magnitude >= F16_END {
            endless
        } else {
            finite
        };
        short | sign >> 16
    }

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        let sign = (bits & 0x8000) << 16;
        let magnitude = (bits & 0x7fff) << 13;
        // Exact, also for values below the normal ones.
        let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let endless = if magnitude >= 0x7c00 << 13 {
            0x7f80_0000
        } else {
            0
        };
        f32::from_bits(scaled.to_bits() | endless | sign)
    }

    #[cfg(target_arch = "x86_64")]
    fn round_vectors(values: &mut [f32]) -> usize {
        if !has_vectors() {
            return 0;
        }
        // SAFETY: the processor has the instructions.
        unsafe { f16_vectors::round(values) }
    }

    #[cfg(target_arch = "x86_64")]
    fn pack_vectors(values: &[f32], packed: &mut [f32]) -> usize {
        if !has_vectors() {
            return 0;
        }
        // SAFETY: as above.
        unsafe { f16_vectors::pack(values, packed) }
    }

    #[cfg(target_arch = "x86_64")]
    fn unpack_vectors(packed: &[f32], values: &mut [f32]) -> usize {
        if !has_vectors() {
            return 0;
        }
        // SAFETY: as above.
        unsafe { f16_vectors::unpack(packed, values) }
    }
}

/// Converts an even number of values that are exact in f16 to halves, in place in the first half of their memory.
#[inline(always)]
pub(crate) fn shorten_f16(values: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        // SAFETY: the processor has the instructions.
        done = unsafe { f16_vectors::shorten(values) };
    }
    for at in (done..values.len() / 2 * 2).step_by(2) {
        let two = [values[at], values[at + 1]].map(F16Bits::narrow);
        values[at / 2] = joined(two[0], two[1]);
    }
}

/// Replaces values that are exact in f16 by their halves, twice in the bits of each: factors that one instruction repeats in
/// all lanes.
#[inline(always)]
pub(crate) fn double_f16(values: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        // SAFETY: the processor has the instructions.
        done = unsafe { f16_vectors::double(values) };
    }
    for value in &mut values[done..] {
        let half = F16Bits::narrow(*value);
        *value = joined(half, half);
    }
}

/// Returns two values in the bits of a float.
#[inline(always)]
fn joined(low: u32, high: u32) -> f32 {
    f32::from_bits(low | high << 16)
}

/// A pass over values and their packed form, each by reference or to be written.
macro_rules! pass {
    ($name:ident, $values:ty, $packed:ty) => {
        struct $name<'a, B> {
            values: $values,
            packed: $packed,
            bits: std::marker::PhantomData<B>,
        }

        impl<'a, B> $name<'a, B> {
            fn new(values: $values, packed: $packed) -> Self {
                Self {
                    values,
                    packed,
                    bits: std::marker::PhantomData,
                }
            }
        }
    };
}

pass!(Packing, &'a [f32], &'a mut [f32]);
pass!(Unpacking, &'a mut [f32], &'a [f32]);

struct Rounding<'a, B> {
    values: &'a mut [f32],
    bits: std::marker::PhantomData<B>,
}

impl<'a, B> Rounding<'a, B> {
    fn new(values: &'a mut [f32]) -> Self {
        Self {
            values,
            bits: std::marker::PhantomData,
        }
    }
}

impl<B: ShortBits> Vectorised for Rounding<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let done = B::round_vectors(self.values);
        for value in &mut self.values[done..] {
            *value = B::widen(B::narrow(*value));
        }
    }
}

/// Packs a group, or the shorter one at the end.
#[inline(always)]
fn pack_group<B: ShortBits>(values: &[f32], packed: &mut [f32]) {
    let (low, high) = values.split_at(packed.len());
    let (pairs, rest) = packed.split_at_mut(high.len());
    for ((packed, low), high) in pairs.iter_mut().zip(low).zip(high) {
        *packed = joined(B::narrow(*low), B::narrow(*high));
    }
    for (packed, low) in rest.iter_mut().zip(&low[high.len()..]) {
        *packed = joined(B::narrow(*low), 0);
    }
}

/// Unpacks a group, or the shorter one at the end.
#[inline(always)]
fn unpack_group<B: ShortBits>(packed: &[f32], values: &mut [f32]) {
    let (low, high) = values.split_at_mut(packed.len());
    for (low, packed) in low.iter_mut().zip(packed) {
        *low = B::widen(packed.to_bits() & 0xffff);
    }
    for (high, packed) in high.iter_mut().zip(packed) {
        *high = B::widen(packed.to_bits() >> 16);
    }
}

#[inline(always)]
fn pack_all<B: ShortBits>(values: &[f32], packed: &mut [f32]) {
    let done = B::pack_vectors(values, packed);
    let (groups, rest) = values[done..].as_chunks::<{ ShortFormat::GROUP }>();
    let (to, to_rest) = packed[done / 2..].split_at_mut(groups.len() * PAIRS);
    for (values, to) in groups.iter().zip(to.as_chunks_mut::<PAIRS>().0) {
        // All pairs in registers, so that vectors are of one group.
        let pair = |i: usize| joined(B::narrow(values[i]), B::narrow(values[PAIRS + i]));
        *to = std::array::from_fn(pair);
    }
    pack_group::<B>(rest, to_rest);
}

#[inline(always)]
fn unpack_all<B: ShortBits>(packed: &[f32], values: &mut [f32]) {
    let done = B::unpack_vectors(packed, values);
    let (groups, rest) = values[done..].as_chunks_mut::<{ ShortFormat::GROUP }>();
    let (from, from_rest) = packed[done / 2..].split_at(groups.len() * PAIRS);
    for (values, from) in groups.iter_mut().zip(from.as_chunks::<PAIRS>().0) {
        let bits = from.map(f32::to_bits);
        let halves = [bits.map(|bits| bits & 0xffff), bits.map(|bits| bits >> 16)];
        for (to, half) in values.as_chunks_mut::<PAIRS>().0.iter_mut().zip(halves) {
            *to = half.map(B::widen);
        }
    }
    unpack_group::<B>(from_rest, rest);
}

impl<B: ShortBits> Vectorised for Packing<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        pack_all::<B>(self.values, self.packed);
    }
}

impl<B: ShortBits> Vectorised for Unpacking<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        unpack_all::<B>(self.packed, self.values);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::testing::at_every_level;

    /// Returns f32 values around every value of 16 bits: itself, ties and their neighbours.
    fn around_all() -> Vec<f32> {
        let around = |bits: u16| {
            let values = [
                bf16::from_bits(bits).to_f32(),
                f16::from_bits(bits).to_f32(),
            ];
            values.into_iter().flat_map(|value| {
                [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001]
                    .map(|more| f32::from_bits(value.to_bits().wrapping_add(more)))
            })
        };
        (0..=u16::MAX).flat_map(around).collect()
    }

    fn expected(format: ShortFormat, value: f32) -> f32 {
        match format {
            ShortFormat::Bf16 => bf16::from_f32(value).to_f32(),
            ShortFormat::F16 => f16::from_f32(value).to_f32(),
        }
    }

    #[test]
    fn every_value_is_rounded_to_the_nearest_and_packed() {
        at_every_level(pack_all_values);
    }

    fn pack_all_values() {
        let mut all = around_all();
        all.push(1.5);
        for format in [ShortFormat::Bf16, ShortFormat::F16] {
            let mut rounded = all.clone();
            round_short(format, &mut rounded);
            for (value, got) in all.iter().zip(&rounded) {
                let expected = expected(format, *value);
                let is_same = got.to_bits() == expected.to_bits();
                assert!(
                    is_same || (value.is_nan() && got.is_nan()),
                    "{format:?}: {got} for {value}, expected {expected}"
                );
            }
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let mut packed = vec![f32::NAN; ShortFormat::packed_length(all.len())];
            pack_short(format, &all, &mut packed);
            let mut unpacked = vec![1.0; all.len()];
            unpack_short(format, &packed, &mut unpacked);
            assert!(bits(&unpacked) == bits(&rounded));
            // A range of whole groups, and one up to the end.
            for values in [64..ShortFormat::GROUP * 1001, 96..all.len()] {
                let floats = values.start / 2..ShortFormat::packed_length(values.end);
                let mut part = vec![f32::NAN; floats.len()];
                pack_short(format, &all[values.clone()], &mut part);
                assert!(bits(&part) == bits(&packed[floats.clone()]));
                let mut unpacked = vec![1.0; values.len()];
                unpack_short(format, &packed[floats], &mut unpacked);
                assert!(bits(&unpacked) == bits(&rounded[values]));
            }
        }
    }

    #[test]
    fn nothing_and_one_value_are_packed() {
        for length in 0..4 {
            let values: Vec<f32> = (0..length).map(|i| i as f32 - 1.0).collect();
            let mut packed = vec![f32::NAN; ShortFormat::packed_length(length)];
            pack_short(ShortFormat::Bf16, &values, &mut packed);
            let mut back = vec![f32::NAN; length];
            unpack_short(ShortFormat::Bf16, &packed, &mut back);
            assert_eq!(back, values);
        }
    }
}
