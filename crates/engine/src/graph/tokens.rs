//! [`TokenDivision`]: the division of a value along its tokens among the parts of a layer.
//!
//! Operations that belong to no part compute each token on its own, so they need not compute all tokens on every process.
//! The tokens of a sample have a fixed segment for each part, and in training a process has those of its parts. It stores them
//! part by part: of each part a segment of every block, each with all samples. The tokens of a part are thus one run of memory,
//! as exchanges and sums over them need it.
//!
//! `CombineParts` scatters its sum over the tokens, and `GatherTokens` gathers the input of operations of parts: together as many
//! bytes as a sum for all ranks. Only the rank's tokens are kept for the backward pass, which gathers them once more before the
//! gradients of weights of parts: a quarter more bytes, without which each rank would keep all tokens. Dropout draws by the element
//! of the undivided value. Gradients of tensors that belong to no part are summed over the tokens of each part and then along the
//! tree over the parts, also on one rank, in one exchange for each layer and shard. Evaluation keeps no values, so it has all
//! tokens. The division has no setting: a layer in parts would otherwise have two ways to the same result, with different bits.

use std::ops::Range;

use super::parts::share;
use crate::activation::Activation;
use crate::device::Device;
use crate::device::kernel::{CopyRowsKernel, RowCopy};

/// The number of tokens of a sample on processes that compute different parts of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenShares {
    /// The tokens of each part.
    pub parts: Vec<usize>,
    /// The tokens that every process has.
    pub shared: usize,
}

impl TokenShares {
    /// Returns the number of tokens of a process that computes some parts.
    #[must_use]
    pub fn of(&self, own: &Range<u32>) -> usize {
        let parts = &self.parts[own.start as usize..own.end as usize];
        parts.iter().sum::<usize>() + self.shared
    }

    /// Returns the number of all tokens.
    #[must_use]
    pub fn all(&self) -> usize {
        self.parts.iter().sum::<usize>() + self.shared
    }
}

/// A run of tokens that a process stores one after the other, with all samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenPiece {
    /// The number of the block.
    pub(crate) block: usize,
    /// Its tokens in a whole sample.
    pub(crate) tokens: Range<usize>,
    /// The number of tokens that are stored before it.
    pub(crate) before: usize,
}

/// The division of a value along the first dimension of a sample, its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenDivision {
    /// The lengths of the blocks of tokens, with a segment for each part.
    blocks: Vec<usize>,
    /// The number of tokens after these that every process has.
    shared: usize,
    parts: u32,
}

impl TokenDivision {
    pub(crate) fn new(blocks: &[usize], shared: usize, parts: u32) -> Self {
        Self {
            blocks: blocks.to_vec(),
            shared,
            parts,
        }
    }

    /// Returns the lengths of the blocks.
    pub(crate) fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// Returns the number of tokens that every process has.
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    /// Returns the number of tokens of a whole sample.
    pub(crate) fn tokens(&self) -> usize {
        self.blocks.iter().sum::<usize>() + self.shared
    }

    /// Returns the number of tokens of each part.
    pub(crate) fn shares(&self) -> TokenShares {
        let of_part = |part: u32| {
            let blocks = self.blocks.iter();
            blocks
                .map(|&block| share(block, part, self.parts).len())
                .sum()
        };
        TokenShares {
            parts: (0..self.parts).map(of_part).collect(),
            shared: self.shared,
        }
    }

    /// Returns the block of a range of tokens; that of the tokens that every process has is the one after the last.
    pub(crate) fn block_of(&self, tokens: &Range<usize>) -> Option<usize> {
        let mut start = 0;
        let lengths = self.blocks.iter().chain(Some(&self.shared));
        lengths.into_iter().position(|length| {
            let block = start..start + length;
            start = block.end;
            block == *tokens
        })
    }

    /// Returns the runs of tokens of a process that computes some parts, in the order in which it stores them.
    pub(crate) fn pieces(&self, own: &Range<u32>) -> Vec<TokenPiece> {
        let mut pieces: Vec<TokenPiece> = Vec::new();
        let mut before = 0;
        let mut push = |block, tokens: Range<usize>| {
            let length = tokens.len();
            pieces.push(TokenPiece {
                block,
                tokens,
                before,
            });
            before += length;
        };
        for part in own.clone() {
            let mut start = 0;
            for (block, &length) in self.blocks.iter().enumerate() {
                let segment = share(length, part, self.parts);
                push(block, start + segment.start..start + segment.end);
                start += length;
            }
        }
        if self.shared > 0 {
            push(
                self.blocks.len(),
                self.tokens() - self.shared..self.tokens(),
            );
        }
        pieces
    }

    /// Returns whether a whole value of some samples has its tokens part by part anyway.
    pub(crate) fn is_by_part(&self, samples: usize) -> bool {
        samples == 1 && self.blocks.len() == 1 && self.shared == 0
    }

    /// Returns the shape of a value of a process, from that of the whole one or of any other process.
    fn shape_of(&self, shape: &[usize], tokens: usize) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if let Some(length) = shape.get_mut(1) {
            *length = tokens;
        }
        shape
    }

    /// Returns the shape of a value on a process that computes some parts, from that of the whole one, with its samples.
    pub(crate) fn own_shape(&self, shape: &[usize], own: &Range<u32>) -> Vec<usize> {
        self.shape_of(shape, self.shares().of(own))
    }

    /// Returns the tokens of a whole value on a process that computes some parts.
    pub(crate) fn take(
        &self,
        device: &dyn Device,
        whole: &Activation,
        own: &Range<u32>,
    ) -> Activation {
        let mut found = Activation::unwritten(device, &self.own_shape(whole.shape(), own));
        self.copy(own, whole.shape(), |at_whole, at_own, length| {
            copy_run(device, (whole, at_whole), (&mut found, at_own), length);
        });
        found
    }

    /// Returns a whole value with the tokens of a process that computes some parts; the others are unspecified.
    pub(crate) fn put(
        &self,
        device: &dyn Device,
        stored: &Activation,
        own: &Range<u32>,
    ) -> Activation {
        let shape = self.shape_of(stored.shape(), self.tokens());
        let mut whole = Activation::unwritten(device, &shape);
        self.copy(own, &shape, |at_whole, at_own, length| {
            copy_run(device, (stored, at_own), (&mut whole, at_whole), length);
        });
        whole
    }

    /// Calls `copy` with the first element of each run in the whole value, that in the stored one, and the length.
    fn copy(&self, own: &Range<u32>, shape: &[usize], mut copy: impl FnMut(usize, usize, usize)) {
        let samples = shape.first().copied().unwrap_or(0);
        let width: usize = shape.iter().skip(2).product();
        for TokenPiece { tokens, before, .. } in self.pieces(own) {
            let length = tokens.len() * width;
            for sample in 0..samples {
                let at_whole = (sample * self.tokens() + tokens.start) * width;
                copy(at_whole, before * samples * width + sample * length, length);
            }
        }
    }
}

/// Copies consecutive elements of a value to another one.
pub(crate) fn copy_run(
    device: &dyn Device,
    (from, first): (&Activation, usize),
    (to, start): (&mut Activation, usize),
    length: usize,
) {
    if length == 0 {
        return;
    }
    let copy = RowCopy {
        from: [from.elements(), first],
        to: [to.elements(), start],
        length,
    };
    CopyRowsKernel {
        copy,
        from: from.values(),
        to: to.values_mut(device),
    }
    .run_on(device);
}

/// Returns a copy of consecutive elements of a value.
pub(crate) fn taken_run(
    device: &dyn Device,
    from: &Activation,
    first: usize,
    shape: &[usize],
) -> Activation {
    let mut found = Activation::unwritten(device, shape);
    let length = found.elements();
    copy_run(device, (from, first), (&mut found, 0), length);
    found
}

/// The own tokens of a value, for operations that compute sums over them, or numbers of the whole value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnTokens<'a> {
    division: &'a TokenDivision,
    own: &'a Range<u32>,
}

impl<'a> OwnTokens<'a> {
    pub(crate) fn new(division: &'a TokenDivision, own: &'a Range<u32>) -> Self {
        Self { division, own }
    }

    /// Returns the number of tokens of a whole sample.
    pub(crate) fn all(self) -> usize {
        self.division.tokens()
    }

    /// Returns the runs of tokens, in the order in which they are stored.
    pub(crate) fn pieces(self) -> Vec<TokenPiece> {
        self.division.pieces(self.own)
    }

    /// Returns the parts whose tokens these are.
    pub(crate) fn parts(self) -> Range<u32> {
        self.own.clone()
    }

    /// Returns the stored tokens of one of the own parts.
    pub(crate) fn of_part(self, part: u32) -> Range<usize> {
        let shares = self.division.shares().parts;
        let first = self.own.start as usize;
        let before: usize = shares[first..part as usize].iter().sum();
        before..before + shares[part as usize]
    }

    /// Returns the segments of one of the own parts, in the order in which they are stored.
    pub(crate) fn segments(self, part: u32) -> Vec<Range<usize>> {
        let pieces = self.division.pieces(&(part..part + 1)).into_iter();
        let blocks = self.division.blocks.len();
        let of_part = pieces.filter(|piece| piece.block < blocks);
        of_part.map(|piece| piece.tokens).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostDevice;

    #[test]
    fn a_value_is_divided_and_joined_again() {
        let device = HostDevice::new();
        // Two samples of 5 and 3 tokens and a shared one, each of two elements.
        let division = TokenDivision::new(&[5, 3], 1, 3);
        let shape = [2, 9, 2];
        let whole: Vec<f32> = (0..36_u8).map(f32::from).collect();
        let whole = Activation::from_host(&shape, whole);
        assert_eq!(division.shares().parts, [2, 3, 3]);
        assert_eq!(
            (division.shares().of(&(1..3)), division.shares().all()),
            (7, 9)
        );
        let own = division.take(&device, &whole, &(1..2));
        assert_eq!(own.shape(), [2, 4, 2]);
        let expected = [
            2.0, 3.0, 4.0, 5.0, 20.0, 21.0, 22.0, 23.0, 12.0, 13.0, 30.0, 31.0, 16.0, 17.0, 34.0,
            35.0,
        ];
        let tokens = division.pieces(&(1..2)).into_iter();
        let tokens: Vec<Range<usize>> = tokens.map(|piece| piece.tokens).collect();
        assert_eq!(tokens, [1..3, 6..7, 8..9]);
        assert_eq!(own.as_slice(), expected);
        let all = division.take(&device, &whole, &(0..3));
        assert_eq!(
            division.put(&device, &all, &(0..3)).as_slice(),
            whole.as_slice()
        );
        assert_eq!(division.block_of(&(5..8)), Some(1));
        assert_eq!(division.block_of(&(8..9)), Some(2));
        assert_eq!(division.block_of(&(4..8)), None);
    }

    #[test]
    fn a_sample_may_have_fewer_tokens_than_there_are_parts() {
        let division = TokenDivision::new(&[2], 0, 4);
        assert_eq!(division.shares().parts, [0, 1, 0, 1]);
        let own = 0..4;
        let tokens = OwnTokens::new(&division, &own);
        assert_eq!(tokens.of_part(1), 0..1);
        assert_eq!(tokens.of_part(2), 1..1);
        assert_eq!(tokens.segments(3), std::slice::from_ref(&(1..2)));
    }
}
