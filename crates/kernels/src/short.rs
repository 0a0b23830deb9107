//! Short floating-point formats: rounding, and storage in 2 bytes.
//!
//! Packed values are stored in pairs in the bits of floats: value `i` in the low half of float `i`, and value
//! `i + (n + 1) / 2` in its high half. So both halves are read and written in order, without moves across lanes.
//! Rounding is to the nearest, ties to even; the bits are the same at every level.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "conversions by vector instructions")
)]

#[cfg(target_arch = "x86_64")]
mod f16_vectors;

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

/// Rounds values in place and packs them. Cost: one pass.
///
/// # Panics
/// If `packed` does not have the packed length.
pub fn round_and_pack(format: ShortFormat, values: &mut [f32], packed: &mut [f32]) {
    check_packed(values.len(), packed.len());
    match format {
        ShortFormat::Bf16 => vectorised(RoundingAndPacking::<Bf16Bits>::new(values, packed)),
        ShortFormat::F16 => vectorised(RoundingAndPacking::<F16Bits>::new(values, packed)),
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

    /// Packs the first pairs, likewise.
    #[inline(always)]
    fn pack_vectors(_low: &[f32], _high: &[f32], _packed: &mut [f32]) -> usize {
        0
    }

    /// Unpacks the first pairs, likewise.
    #[inline(always)]
    fn unpack_vectors(_packed: &[f32], _low: &mut [f32], _high: &mut [f32]) -> usize {
        0
    }
}

/// The number of pairs that are rounded and packed at once, a multiple of all vectors.
const PART: usize = 1024;

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
        if !f16_vectors::apply() {
            return 0;
        }
        // SAFETY: the processor has the instructions.
        unsafe { f16_vectors::round(values) }
    }

    #[cfg(target_arch = "x86_64")]
    fn pack_vectors(low: &[f32], high: &[f32], packed: &mut [f32]) -> usize {
        if !f16_vectors::apply() {
            return 0;
        }
        // SAFETY: as above.
        unsafe { f16_vectors::pack(low, high, packed) }
    }

    #[cfg(target_arch = "x86_64")]
    fn unpack_vectors(packed: &[f32], low: &mut [f32], high: &mut [f32]) -> usize {
        if !f16_vectors::apply() {
            return 0;
        }
        // SAFETY: as above.
        unsafe { f16_vectors::unpack(packed, low, high) }
    }
}

/// Converts an even number of values that are exact in f16 to halves, in place in the first half of their memory.
#[inline(always)]
pub(crate) fn shorten_f16(values: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if f16_vectors::apply() {
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
    if f16_vectors::apply() {
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
pass!(RoundingAndPacking, &'a mut [f32], &'a mut [f32]);
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

impl<B: ShortBits> Vectorised for Packing<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (low, high) = self.values.split_at(self.packed.len());
        let (pairs, rest) = self.packed.split_at_mut(high.len());
        let done = B::pack_vectors(low, high, pairs);
        let values = low[done..].iter().zip(&high[done..]);
        for (packed, (low, high)) in pairs[done..].iter_mut().zip(values) {
            *packed = joined(B::narrow(*low), B::narrow(*high));
        }
        for (packed, low) in rest.iter_mut().zip(&low[high.len()..]) {
            *packed = joined(B::narrow(*low), 0);
        }
    }
}

impl<B: ShortBits> Vectorised for RoundingAndPacking<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (low, high) = self.values.split_at_mut(self.packed.len());
        let (pairs, rest) = self.packed.split_at_mut(high.len());
        let (low, last) = low.split_at_mut(high.len());
        let mut done = 0;
        // Parts that stay in the first-level cache between both passes.
        while done + PART <= high.len() {
            let part = done..done + PART;
            if B::pack_vectors(
                &low[part.clone()],
                &high[part.clone()],
                &mut pairs[part.clone()],
            ) == 0
            {
                break;
            }
            B::unpack_vectors(
                &pairs[part.clone()],
                &mut low[part.clone()],
                &mut high[part],
            );
            done += PART;
        }
        let values = low[done..].iter_mut().zip(&mut high[done..]);
        for (packed, (low, high)) in pairs[done..].iter_mut().zip(values) {
            let (low_bits, high_bits) = (B::narrow(*low), B::narrow(*high));
            *packed = joined(low_bits, high_bits);
            *low = B::widen(low_bits);
            *high = B::widen(high_bits);
        }
        for (packed, last) in rest.iter_mut().zip(last) {
            let bits = B::narrow(*last);
            *packed = joined(bits, 0);
            *last = B::widen(bits);
        }
    }
}

impl<B: ShortBits> Vectorised for Unpacking<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (low, high) = self.values.split_at_mut(self.packed.len());
        let (pairs, rest) = self.packed.split_at(high.len());
        let (low, last) = low.split_at_mut(high.len());
        let done = B::unpack_vectors(pairs, low, high);
        let values = low[done..].iter_mut().zip(&mut high[done..]);
        for (packed, (low, high)) in pairs[done..].iter().zip(values) {
            let bits = packed.to_bits();
            *low = B::widen(bits & 0xffff);
            *high = B::widen(bits >> 16);
        }
        for (packed, last) in rest.iter().zip(last) {
            *last = B::widen(packed.to_bits() & 0xffff);
        }
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
        at_every_level(round_and_pack_all);
    }

    fn round_and_pack_all() {
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
            let (mut both, mut again) = (all.clone(), vec![f32::NAN; packed.len()]);
            round_and_pack(format, &mut both, &mut again);
            assert!(bits(&both) == bits(&rounded) && bits(&again) == bits(&packed));
            let mut unpacked = vec![1.0; all.len()];
            unpack_short(format, &packed, &mut unpacked);
            assert!(bits(&unpacked) == bits(&rounded));
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
