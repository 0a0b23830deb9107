//! Random elements by rank and index, and their reduction in a wider type.

use half::{bf16, f16};
use ronde_core::philox::Stream;
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Element, ReduceOp};

/// A type of elements that can be drawn, reduced in a wider type, and compared.
pub(crate) trait ReferenceElement: Element + PartialEq + std::fmt::Display {
    /// The type of the reference: f64 for floating point, i64 for integers.
    type Wide: Copy;

    /// Returns an element from 32 random bits. Floating point: multiples of 2^-23 in [-1, 1), for
    /// products in [0.5, 1.5), rounded to the type. Integers: any.
    fn draw(word: u32, op: ReduceOp) -> Self;
    /// Converts without loss.
    fn widen(self) -> Self::Wide;
    /// Rounds to nearest, or truncates to the type's bits.
    fn narrow(wide: Self::Wide) -> Self;
    /// Combines two elements; a mean is only summed.
    fn combine(op: ReduceOp, left: Self::Wide, right: Self::Wide) -> Self::Wide;
    /// Completes the reduction of `count` elements.
    fn finish(op: ReduceOp, wide: Self::Wide, count: usize) -> Self::Wide;
    /// Converts to f64, for differences of floating-point elements.
    fn to_f64(self) -> f64;
}

macro_rules! floating {
    ($($type:ty: $narrow:expr, $wide:expr;)*) => { $(impl ReferenceElement for $type {
        type Wide = f64;

        fn draw(word: u32, op: ReduceOp) -> Self {
            let unit = f64::from(word >> 8) / f64::from(1 << 24);
            $narrow(if op == ReduceOp::Product { unit + 0.5 } else { 2.0 * unit - 1.0 })
        }

        fn widen(self) -> f64 {
            $wide(self)
        }

        fn narrow(wide: f64) -> Self {
            $narrow(wide)
        }

        fn combine(op: ReduceOp, left: f64, right: f64) -> f64 {
            match op {
                ReduceOp::Min => left.min(right),
                ReduceOp::Max => left.max(right),
                ReduceOp::Product => left * right,
                _ => left + right,
            }
        }

        fn finish(op: ReduceOp, wide: f64, count: usize) -> f64 {
            if op == ReduceOp::Mean { wide / count as f64 } else { wide }
        }

        fn to_f64(self) -> f64 {
            $wide(self)
        }
    })* };
}
floating! {
    f64: |wide: f64| wide, |value: f64| value;
    f32: |wide: f64| wide as f32, f64::from;
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
}

macro_rules! integer {
    ($($type:ty)*) => { $(impl ReferenceElement for $type {
        type Wide = i64;

        fn draw(word: u32, _op: ReduceOp) -> Self {
            // The upper half of wide types repeats the same bits, multiplied.
            u64::from(word).wrapping_mul(0x9e37_79b9_7f4a_7c15) as Self
        }

        fn widen(self) -> i64 {
            self as i64
        }

        fn narrow(wide: i64) -> Self {
            wide as Self
        }

        fn combine(op: ReduceOp, left: i64, right: i64) -> i64 {
            match op {
                ReduceOp::Min => left.min(right),
                ReduceOp::Max => left.max(right),
                ReduceOp::Product => left.wrapping_mul(right),
                ReduceOp::And => left & right,
                ReduceOp::Or => left | right,
                ReduceOp::Xor => left ^ right,
                ReduceOp::Sum | ReduceOp::Mean => left.wrapping_add(right),
            }
        }

        fn finish(_op: ReduceOp, wide: i64, _count: usize) -> i64 {
            wide
        }

        fn to_f64(self) -> f64 {
            self as f64
        }
    })* };
}
integer!(i64 i32 u32 u8);

/// Calls a generic function with the type of a [`ronde_core::DType`].
macro_rules! with_type {
    ($dtype:expr, $function:ident ( $($argument:expr),* )) => {
        match $dtype {
            ronde_core::DType::F64 => $function::<f64>($($argument),*),
            ronde_core::DType::F32 => $function::<f32>($($argument),*),
            ronde_core::DType::F16 => $function::<half::f16>($($argument),*),
            ronde_core::DType::Bf16 => $function::<half::bf16>($($argument),*),
            ronde_core::DType::I64 => $function::<i64>($($argument),*),
            ronde_core::DType::I32 => $function::<i32>($($argument),*),
            ronde_core::DType::U32 => $function::<u32>($($argument),*),
            ronde_core::DType::U8 => $function::<u8>($($argument),*),
        }
    };
}
pub(crate) use with_type;

/// The inputs of all ranks: element `i` of a rank depends only on the seed, the rank and `i`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ElementSource {
    seeds: SeedTree,
    op: ReduceOp,
}

impl ElementSource {
    pub(crate) fn new(seed: u64, op: ReduceOp) -> Self {
        Self {
            seeds: SeedTree::new(seed),
            op,
        }
    }

    /// Fills `out` with the elements of `rank` from index `start` on.
    pub(crate) fn fill<T: ReferenceElement>(&self, rank: usize, start: usize, out: &mut [T]) {
        let stream = self.seeds.stream(Purpose::Benchmark, &[rank as u64]);
        let ahead = start % 4;
        let first = (4 - ahead).min(out.len()) % 4;
        let (head, rest) = out.split_at_mut(first);
        let words = stream.block((start / 4) as u64);
        for (out, word) in head.iter_mut().zip(&words[ahead..]) {
            *out = T::draw(*word, self.op);
        }
        self.fill_blocks(stream, (start + first) / 4, rest);
    }

    fn fill_blocks<T: ReferenceElement>(&self, stream: Stream, block: usize, out: &mut [T]) {
        for (index, out) in out.chunks_mut(4).enumerate() {
            for (out, word) in out.iter_mut().zip(stream.block((block + index) as u64)) {
                *out = T::draw(word, self.op);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_a_rank_has_the_elements_of_the_whole() {
        let source = ElementSource::new(7, ReduceOp::Sum);
        let mut whole = vec![0.0_f32; 41];
        source.fill(3, 0, &mut whole);
        for start in 0..12 {
            for len in 0..20 {
                let mut piece = vec![0.0_f32; len];
                source.fill(3, start, &mut piece);
                assert_eq!(piece, whole[start..start + len], "{start} + {len}");
            }
        }
        let mut other = vec![0.0_f32; 41];
        source.fill(2, 0, &mut other);
        assert_ne!(other, whole);
        assert!(whole.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(whole.iter().any(|x| *x < 0.0));
    }

    #[test]
    fn integers_wrap_and_floats_are_rounded_once() {
        assert_eq!(
            i32::narrow(i32::combine(ReduceOp::Sum, i64::from(i32::MAX), 1)),
            i32::MIN
        );
        assert_eq!(u8::narrow(u8::combine(ReduceOp::Product, 200, 3)), 88);
        assert_eq!(u8::combine(ReduceOp::Xor, 5, 3), 6);
        assert_eq!(f32::finish(ReduceOp::Mean, 3.0, 4), 0.75);
        assert_eq!(bf16::narrow(1.0 + 1.0 / 256.0).to_f64(), 1.0);
        assert_eq!(f32::combine(ReduceOp::Min, 1.0, -1.0), -1.0);
        assert!((0.5..=1.5).contains(&f16::draw(u32::MAX, ReduceOp::Product).to_f64()));
    }
}
