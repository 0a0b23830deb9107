//! f16: converted by hardware, eight at once, where supported; otherwise by the `half` crate.

use std::marker::PhantomData;

use half::f16;

use super::elements::ElementOperator;
use super::instructions::{InstructionSet, VectorLoop, run};

/// `into = into O other`, computed in f32 and rounded once.
pub(super) struct HalfLoop<'a, O> {
    into: &'a mut [f16],
    other: &'a [f16],
    operator: PhantomData<O>,
}

impl<'a, O> HalfLoop<'a, O>
where
    f32: ElementOperator<O>,
{
    pub(super) fn new(into: &'a mut [u8], other: &'a [u8]) -> Self {
        Self {
            into: bytemuck::cast_slice_mut(into),
            other: bytemuck::cast_slice(other),
            operator: PhantomData,
        }
    }

    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "a function for instructions that were detected")
    )]
    pub(super) fn run_by(self, by: InstructionSet) {
        match by {
            InstructionSet::Plain => run(by, self),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::V3 | InstructionSet::V4 => {
                // SAFETY: these values are only returned by `InstructionSet::all` if AVX2 and F16C were
                // detected.
                unsafe { by_hardware::<O>(self.into, self.other) }
            }
        }
    }
}

impl<O> VectorLoop for HalfLoop<'_, O>
where
    f32: ElementOperator<O>,
{
    #[inline(always)]
    fn run(self) {
        for (into, other) in self.into.iter_mut().zip(self.other) {
            *into = f16::apply(*into, *other);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn by_hardware<O>(into: &mut [f16], other: &[f16])
where
    f32: ElementOperator<O>,
{
    use std::arch::x86_64::{__m128i, __m256, _mm256_cvtph_ps, _mm256_cvtps_ph};

    const EIGHT: usize = 8;
    /// Round to nearest, ties to even.
    const NEAREST: i32 = 0;
    let each = |into: &mut [f16; EIGHT], other: &[f16; EIGHT]| {
        let widen = |halves: [f16; EIGHT]| -> [f32; EIGHT] {
            let bits: __m128i = bytemuck::cast(halves);
            bytemuck::cast::<__m256, _>(_mm256_cvtph_ps(bits))
        };
        let (mut left, right) = (widen(*into), widen(*other));
        for (left, right) in left.iter_mut().zip(right) {
            *left = f32::apply(*left, right);
        }
        let bits = _mm256_cvtps_ph::<NEAREST>(bytemuck::cast(left));
        *into = bytemuck::cast(bits);
    };
    let (into, into_rest) = into.as_chunks_mut::<EIGHT>();
    let (other, other_rest) = other.as_chunks::<EIGHT>();
    for (into, other) in into.iter_mut().zip(other) {
        each(into, other);
    }
    let count = into_rest.len().min(other_rest.len());
    let (mut left, mut right) = ([f16::ZERO; EIGHT], [f16::ZERO; EIGHT]);
    left[..count].copy_from_slice(&into_rest[..count]);
    right[..count].copy_from_slice(&other_rest[..count]);
    each(&mut left, &right);
    into_rest[..count].copy_from_slice(&left[..count]);
}
