//! Conversions of bf16 by the instructions of AVX-512, sixteen values at a time; the bits are those of the portable ones.
#![expect(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::{
    __m512, __m512i, _CMP_UNORD_Q, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_loadu_ps, _mm512_mask_mov_epi32,
    _mm512_or_si512, _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
};

const LANES: usize = 16;
const GROUP: usize = super::ShortFormat::GROUP;

/// Returns the rounded values in the high halves; the low ones have any bits.
#[target_feature(enable = "avx512f")]
fn narrow(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_add_epi32(bits, half);
    // The carry of a NaN could make it infinite or zero.
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    _mm512_mask_mov_epi32(rounded, is_nan, quiet)
}

/// Returns the high halves of the bits.
#[target_feature(enable = "avx512f")]
fn high_halves(bits: __m512i) -> __m512i {
    _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
}

/// Packs whole groups. Returns the number of values.
///
/// # Safety
/// The processor has AVX-512.
///
/// # Panics
/// If there are fewer packed pairs than values.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pack(values: &[f32], packed: &mut [f32]) -> usize {
    let (groups, _) = values.as_chunks::<GROUP>();
    let to = packed[..groups.len() * LANES].as_chunks_mut::<LANES>().0;
    for (group, to) in groups.iter().zip(to) {
        // SAFETY: a group has two vectors, its packed form one.
        unsafe {
            let [low, high] = [0, LANES].map(|at| narrow(_mm512_loadu_ps(group.as_ptr().add(at))));
            let joined = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high_halves(high));
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(joined));
        }
    }
    groups.len() * GROUP
}

/// Unpacks whole groups. Returns the number of values.
///
/// # Safety
/// The processor has AVX-512.
///
/// # Panics
/// If there are fewer packed pairs than values.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn unpack(packed: &[f32], values: &mut [f32]) -> usize {
    let (groups, _) = values.as_chunks_mut::<GROUP>();
    let from = packed[..groups.len() * LANES].as_chunks::<LANES>().0;
    for (group, from) in groups.iter_mut().zip(from) {
        // SAFETY: as above.
        unsafe {
            let pairs = _mm512_castps_si512(_mm512_loadu_ps(from.as_ptr()));
            let halves = [_mm512_slli_epi32::<16>(pairs), high_halves(pairs)];
            for (half, to) in halves.into_iter().zip(group.as_chunks_mut::<LANES>().0) {
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(half));
            }
        }
    }
    groups.len() * GROUP
}
