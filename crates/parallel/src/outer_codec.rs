//! [`OuterCodec`]: a shorter form of the displacements of replicas, for the exchange at the end of a round.
//!
//! Blocks of elements begin anew at each tensor, so the form of an element depends only on the model. A replica's displacement is
//! rounded where it is computed, and their sum once more; both are fixed places of the sum, whichever rank they are on.
//! Running statistics stay exact, because they are values and not changes.

use std::ops::Range;

use ronde_core::layout::Role;

use crate::ModelState;

/// The elements of a block that share a scale.
const BLOCK: usize = 256;
/// The largest magnitude of a rounded element.
const LEVELS: f32 = 127.0;

/// The form in which displacements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OuterFormat {
    /// As they are, in 4 bytes for each element.
    #[default]
    F32,
    /// The upper half of the bits of each element, in 2 bytes.
    Bf16,
    /// A multiple of 1/127 of the largest magnitude of a block of 256 elements, in 1 byte, and 4 bytes for each block.
    Int8Blocks,
}

/// A run of elements of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CodedBlock {
    elements: Range<usize>,
    format: OuterFormat,
    /// The offset of its bytes in the form of the whole state.
    at: usize,
}

impl CodedBlock {
    fn bytes(&self) -> usize {
        match self.format {
            OuterFormat::F32 => 4 * self.elements.len(),
            OuterFormat::Bf16 => 2 * self.elements.len(),
            OuterFormat::Int8Blocks => 4 + self.elements.len(),
        }
    }

    fn encode(&self, values: &[f32], to: &mut [u8]) {
        match self.format {
            OuterFormat::F32 => {
                for (to, value) in to.chunks_exact_mut(4).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
            OuterFormat::Bf16 => {
                for (to, value) in to.chunks_exact_mut(2).zip(values) {
                    to.copy_from_slice(&bf16(*value).to_le_bytes());
                }
            }
            OuterFormat::Int8Blocks => {
                let scale = scale(values);
                let (head, to) = to.split_at_mut(4);
                head.copy_from_slice(&scale.to_le_bytes());
                for (to, value) in to.iter_mut().zip(values) {
                    // A block that is not finite has no scale: all of it becomes NaN.
                    let level = if scale > 0.0 { value / scale } else { 0.0 };
                    *to = (level.round_ties_even().clamp(-LEVELS, LEVELS) as i8).cast_unsigned();
                }
            }
        }
    }

    fn decode(&self, from: &[u8], values: &mut [f32]) {
        match self.format {
            OuterFormat::F32 => {
                for (from, value) in from.chunks_exact(4).zip(values) {
                    *value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
            OuterFormat::Bf16 => {
                for (from, value) in from.chunks_exact(2).zip(values) {
                    *value = f32::from_le_bytes([0, 0, from[0], from[1]]);
                }
            }
            OuterFormat::Int8Blocks => {
                let scale = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                for (from, value) in from[4..].iter().zip(values) {
                    *value = f32::from(from.cast_signed()) * scale;
                }
            }
        }
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

/// Returns the step between the levels of a block; NaN if a value is not finite.
fn scale(values: &[f32]) -> f32 {
    let mut most = 0.0_f32;
    for value in values {
        if !value.is_finite() {
            return f32::NAN;
        }
        most = most.max(value.abs());
    }
    let scale = most / LEVELS;
    // Values too small for a scale are zero.
    if scale.is_normal() { scale } else { 0.0 }
}

/// The short form of all displacements of a model.
#[derive(Debug, Clone)]
pub(crate) struct OuterCodec {
    blocks: Vec<CodedBlock>,
    bytes: usize,
}

impl OuterCodec {
    /// Creates the form of a model's state.
    pub(crate) fn new(state: &ModelState, format: OuterFormat) -> Self {
        let (mut blocks, mut at) = (Vec::new(), 0);
        for tensor in state.tensors() {
            let format = match tensor.entry.role {
                Role::Parameter => format,
                _ => OuterFormat::F32,
            };
            for start in tensor.range.clone().step_by(BLOCK) {
                let elements = start..(start + BLOCK).min(tensor.range.end);
                let block = CodedBlock {
                    elements,
                    format,
                    at,
                };
                at += block.bytes();
                blocks.push(block);
            }
        }
        Self { blocks, bytes: at }
    }

    /// Returns the number of bytes of a displacement.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Divides the blocks among ranks, nearly evenly by their bytes.
    pub(crate) fn slices(&self, ranks: usize) -> Vec<Range<usize>> {
        let border = |rank: usize| {
            let wanted = (self.bytes as u128 * rank as u128 / ranks.max(1) as u128) as usize;
            self.blocks.partition_point(|block| block.at < wanted)
        };
        (0..ranks)
            .map(|rank| match rank + 1 == ranks {
                true => border(rank)..self.blocks.len(),
                false => border(rank)..border(rank + 1),
            })
            .collect()
    }

    /// Returns the range of the bytes of some blocks in the form of the whole state.
    pub(crate) fn bytes_of(&self, blocks: &Range<usize>) -> Range<usize> {
        let at = |block: usize| self.blocks.get(block).map_or(self.bytes, |block| block.at);
        at(blocks.start)..at(blocks.end)
    }

    /// Returns the number of elements of some blocks.
    pub(crate) fn elements_of(&self, blocks: &Range<usize>) -> usize {
        let blocks = &self.blocks[blocks.clone()];
        blocks.iter().map(|block| block.elements.len()).sum()
    }

    /// Writes all blocks of a flat state, which has padding between tensors.
    ///
    /// # Panics
    /// When `to` has another length than [`OuterCodec::bytes`].
    pub(crate) fn encode(&self, values: &[f32], to: &mut [u8]) {
        assert_eq!(to.len(), self.bytes, "the length of the form");
        for block in &self.blocks {
            let bytes = &mut to[block.at..block.at + block.bytes()];
            block.encode(&values[block.elements.clone()], bytes);
        }
    }

    /// Reads all blocks into a flat state. Padding is not changed.
    ///
    /// # Panics
    /// When `from` has another length than [`OuterCodec::bytes`].
    pub(crate) fn decode(&self, from: &[u8], values: &mut [f32]) {
        assert_eq!(from.len(), self.bytes, "the length of the form");
        for block in &self.blocks {
            let bytes = &from[block.at..block.at + block.bytes()];
            block.decode(bytes, &mut values[block.elements.clone()]);
        }
    }

    /// Writes values of some blocks, one after the other without padding.
    ///
    /// # Panics
    /// When the lengths are not those of the blocks.
    pub(crate) fn encode_blocks(&self, blocks: &Range<usize>, values: &[f32], to: &mut [u8]) {
        let (mut values, mut to) = (values, to);
        for block in &self.blocks[blocks.clone()] {
            let (own, rest) = values.split_at(block.elements.len());
            let (bytes, after) = std::mem::take(&mut to).split_at_mut(block.bytes());
            block.encode(own, bytes);
            (values, to) = (rest, after);
        }
    }

    /// Reads some blocks into values one after the other without padding.
    ///
    /// # Panics
    /// When the lengths are not those of the blocks.
    pub(crate) fn decode_blocks(&self, blocks: &Range<usize>, from: &[u8], values: &mut [f32]) {
        let (mut from, mut values) = (from, values);
        for block in &self.blocks[blocks.clone()] {
            let (bytes, rest) = from.split_at(block.bytes());
            let (own, after) = std::mem::take(&mut values).split_at_mut(block.elements.len());
            block.decode(bytes, own);
            (from, values) = (rest, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ronde_core::seed::SeedTree;
    use ronde_engine::ModelConfig;

    use super::*;

    fn block(format: OuterFormat, len: usize) -> CodedBlock {
        CodedBlock {
            elements: 0..len,
            format,
            at: 0,
        }
    }

    fn decoded(format: OuterFormat, values: &[f32]) -> Vec<f32> {
        let block = block(format, values.len());
        let mut bytes = vec![0xff; block.bytes()];
        block.encode(values, &mut bytes);
        let mut back = vec![f32::NAN; values.len()];
        block.decode(&bytes, &mut back);
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
            for (format, share) in [
                (OuterFormat::Int8Blocks, 0.5 / LEVELS),
                (OuterFormat::Bf16, 1.0 / 256.0),
                (OuterFormat::F32, 0.0),
            ] {
                let back = decoded(format, &values);
                for (value, found) in values.iter().zip(&back) {
                    let limit = match format {
                        OuterFormat::Int8Blocks => most * share,
                        _ => value.abs() * share,
                    };
                    prop_assert!((value - found).abs() <= limit * 1.001, "{value} {found}");
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_stay_so_and_tiny_ones_become_zero() {
        for format in [OuterFormat::Int8Blocks, OuterFormat::Bf16, OuterFormat::F32] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let back = decoded(format, &[1.0, bad, 2.0]);
                assert!(!back[1].is_finite(), "{format:?} {bad}");
            }
        }
        assert_eq!(decoded(OuterFormat::Int8Blocks, &[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(
            decoded(OuterFormat::Int8Blocks, &[1e-40, -2e-39]),
            [0.0, 0.0]
        );
        assert_eq!(
            decoded(OuterFormat::Int8Blocks, &[127.0, -3.4]),
            [127.0, -3.0]
        );
        let most = decoded(OuterFormat::Int8Blocks, &[f32::MAX / 2.0, -f32::MAX / 2.0]);
        assert!(most.iter().all(|value| value.is_finite()), "{most:?}");
    }

    #[test]
    fn slices_cover_all_blocks_and_have_the_bytes_of_the_whole() {
        let model: ModelConfig = serde_json::from_str(r#"{"kind": "digits_cnn"}"#).unwrap();
        let chain = model.build(&[1, 8, 8], 10, &SeedTree::new(1)).unwrap();
        let state = ModelState::of(&chain);
        let values: Vec<f32> = (0..state.len()).map(|i| (i as f32).sin()).collect();
        for format in [OuterFormat::Int8Blocks, OuterFormat::Bf16] {
            let codec = OuterCodec::new(&state, format);
            let mut whole = vec![0; codec.bytes()];
            codec.encode(&values, &mut whole);
            let mut expected = vec![0.0; state.len()];
            codec.decode(&whole, &mut expected);
            for ranks in 1..=9 {
                let (mut parts, mut elements) = (Vec::new(), 0);
                for slice in codec.slices(ranks) {
                    let blocks = codec.blocks[slice.clone()].iter();
                    let own: Vec<f32> = blocks
                        .flat_map(|block| &values[block.elements.clone()])
                        .copied()
                        .collect();
                    let mut bytes = vec![0; codec.bytes_of(&slice).len()];
                    codec.encode_blocks(&slice, &own, &mut bytes);
                    let mut back = vec![0.0; codec.elements_of(&slice)];
                    codec.decode_blocks(&slice, &bytes, &mut back);
                    assert_eq!(back.len(), own.len());
                    parts.extend_from_slice(&bytes);
                    elements += own.len();
                }
                assert_eq!(parts, whole, "{ranks} ranks");
                let all: usize = state.tensors().iter().map(|t| t.range.len()).sum();
                assert_eq!(elements, all);
            }
            for tensor in state.tensors() {
                if tensor.entry.role == Role::Buffer {
                    let range = tensor.range.clone();
                    assert_eq!(
                        expected[range.clone()],
                        values[range],
                        "statistics are exact"
                    );
                }
            }
        }
    }
}
