//! Philox 4x32-10, a counter-based random generator: any number can be drawn without the previous ones.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
//! section 4; tested against the vectors published with it (Random123, `kat_vectors`).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Returns the block of 128 random bits of a key and a counter.
#[must_use]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let mut key = key;
    let mut block = counter;
    for _ in 0..ROUNDS {
        let product = |i: usize, word: u32| {
            let wide = u64::from(MULTIPLIERS[i]) * u64::from(word);
            ((wide >> 32) as u32, wide as u32)
        };
        let (high0, low0) = product(0, block[0]);
        let (high1, low1) = product(1, block[2]);
        block = [
            high1 ^ block[1] ^ key[0],
            low1,
            high0 ^ block[3] ^ key[1],
            low0,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    block
}

/// The random numbers of one key, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    nonce: [u32; 2],
}

impl Stream {
    /// Creates the stream of a 128-bit key.
    #[must_use]
    pub fn new(key: [u32; 4]) -> Self {
        Self {
            key: [key[0], key[1]],
            nonce: [key[2], key[3]],
        }
    }

    /// Returns block `index`: four words.
    #[must_use]
    pub fn block(&self, index: u64) -> [u32; 4] {
        philox(
            self.key,
            [
                index as u32,
                (index >> 32) as u32,
                self.nonce[0],
                self.nonce[1],
            ],
        )
    }

    /// Returns an independent stream for a part, different from this stream and from those of other parts.
    #[must_use]
    pub fn child(&self, part: u64) -> Self {
        // Block 0 is the key of permutations.
        Self::new(self.block(part.wrapping_add(1)))
    }

    /// Fills `out` with words, from word 0 of the stream.
    pub fn fill(&self, out: &mut [u32]) {
        for (index, chunk) in out.chunks_mut(4).enumerate() {
            chunk.copy_from_slice(&self.block(index as u64)[..chunk.len()]);
        }
    }

    /// Fills `out` with numbers of `[0, 1)`, multiples of 2^-24, from word 0 of the stream.
    pub fn fill_uniform(&self, out: &mut [f32]) {
        self.fill_uniform_from(0, out);
    }

    /// Fills `out` with the same numbers, from word `first` of the stream.
    pub fn fill_uniform_from(&self, first: u64, out: &mut [f32]) {
        // The words of the first block before `first` are skipped.
        let skipped = (first % 4) as usize;
        let (head, rest) = out.split_at_mut(((4 - skipped) % 4).min(out.len()));
        let write = |index: u64, skipped: usize, to: &mut [f32]| {
            for (to, word) in to.iter_mut().zip(&self.block(index)[skipped..]) {
                *to = (word >> 8) as f32 * (1.0 / (1 << 24) as f32);
            }
        };
        write(first / 4, skipped, head);
        for (index, chunk) in rest.chunks_mut(4).enumerate() {
            write(first.div_ceil(4) + index as u64, 0, chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_any_word_are_those_of_the_whole_stream() {
        let stream = Stream::new([1, 2, 3, 4]);
        let mut all = [0.0; 23];
        stream.fill_uniform(&mut all);
        for first in 0..23 {
            for end in first..23 {
                let mut part = vec![7.0; end - first];
                stream.fill_uniform_from(first as u64, &mut part);
                assert_eq!(part, all[first..end]);
            }
        }
    }

    #[test]
    fn published_vectors() {
        let cases = [
            (
                [0; 2],
                [0; 4],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [0xffff_ffff; 2],
                [0xffff_ffff; 4],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0xa409_3822, 0x299f_31d0],
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (key, counter, expected) in cases {
            assert_eq!(philox(key, counter), expected);
        }
    }

    #[test]
    fn fills_are_prefixes_of_each_other_and_in_range() {
        let stream = Stream::new([1, 2, 3, 4]);
        let (mut short, mut long) = (vec![0.0; 5], vec![0.0; 4099]);
        stream.fill_uniform(&mut short);
        stream.fill_uniform(&mut long);
        assert_eq!(short, long[..5]);
        assert!(long.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = long.iter().map(|&x| f64::from(x)).sum::<f64>() / long.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
