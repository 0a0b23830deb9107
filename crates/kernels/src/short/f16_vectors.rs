//! Conversions of f16 by the instructions of AVX-512, sixteen values at a time; the bits are those of the portable ones.
#![expect(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_or_si512, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

const LANES: usize = 16;
const GROUP: usize = super::ShortFormat::GROUP;

#[target_feature(enable = "avx512f")]
fn narrow(values: __m512) -> __m256i {
    _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(values)
}

/// Returns two vectors of halves in the bits of one vector of floats.
#[target_feature(enable = "avx512f")]
fn joined(low: __m256i, high: __m256i) -> __m512 {
    let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(low), high))
}

/// Returns the low and the high halves of a packed vector as floats.
#[target_feature(enable = "avx512f")]
fn widened(packed: __m512) -> [__m512; 2] {
    let packed: __m512i = _mm512_castps_si512(packed);
    let high = _mm512_srli_epi32::<16>(packed);
    [packed, high].map(|halves| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves)))
}

/// Converts whole vectors to halves, in place in the first half of their memory. Returns the number of values.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn shorten(values: &mut [f32]) -> usize {
    let whole = values.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: 16 values are read from `at` on, and their memory or that of earlier ones is written.
        unsafe {
            let halves = narrow(_mm512_loadu_ps(values.as_ptr().add(at)));
            let to = values.as_mut_ptr().add(at / 2);
            to.cast::<__m256i>().write_unaligned(halves);
        }
    }
    whole
}

/// Replaces the values of whole vectors by their halves, twice in the bits of each. Returns the number of values.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn double(values: &mut [f32]) -> usize {
    let whole = values.len() / LANES * LANES;
    for vector in values[..whole].chunks_exact_mut(LANES) {
        // SAFETY: the chunk has 16 values.
        unsafe {
            let halves = narrow(_mm512_loadu_ps(vector.as_ptr()));
            _mm512_storeu_ps(vector.as_mut_ptr(), joined(halves, halves));
        }
    }
    whole
}

/// Rounds whole vectors in place. Returns the number of values.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn round(values: &mut [f32]) -> usize {
    let whole = values.len() / LANES * LANES;
    for vector in values[..whole].chunks_exact_mut(LANES) {
        // SAFETY: the chunk has 16 values.
        unsafe {
            let rounded = _mm512_cvtph_ps(narrow(_mm512_loadu_ps(vector.as_ptr())));
            _mm512_storeu_ps(vector.as_mut_ptr(), rounded);
        }
    }
    whole
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
            _mm512_storeu_ps(to.as_mut_ptr(), joined(low, high));
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
            let [low, high] = widened(_mm512_loadu_ps(from.as_ptr()));
            _mm512_storeu_ps(group.as_mut_ptr(), low);
            _mm512_storeu_ps(group.as_mut_ptr().add(LANES), high);
        }
    }
    groups.len() * GROUP
}
