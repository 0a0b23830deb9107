//! [`Embedding`]: vectors of tokens and positions; and the lengths of padded texts.

use ronde_core::Shard;

use super::{TiedTable, only};
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{CopyRowsKernel, EmbedGradientKernel, EmbedKernel, RowCopy};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{
    GraphBuilder, GraphOperation, GraphValue, KeptPositions, KeptValues, TensorGradients, Tensors,
};

/// The sum of a vector for each token and one for each position. Takes token numbers `[N, T]`. A
/// number beyond the table is treated as the last token: a generated number must not end the
/// process.
pub(crate) struct Embedding {
    positions: usize,
    width: usize,
    tied: Option<TiedTable>,
}

/// The values kept of one shard.
pub(crate) struct SavedEmbedding {
    tokens: Activation,
    shard: Shard,
}

impl GraphOperation for Embedding {
    type Saved = SavedEmbedding;

    fn computation(&self) -> Computation {
        Computation::Embedding
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn selects_rows(&self) -> bool {
        self.tied.is_none()
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedEmbedding), EngineError> {
        let x = only(inputs);
        let mut y = tensors.unwritten(&[x.samples(), self.positions, self.width]);
        let (device, tables) = (tensors.device(), [tensors.get(0), tensors.get(1)]);
        let [vectors, positions] = tables;
        EmbedKernel {
            width: self.width,
            tokens: x.values(),
            vectors,
            positions,
            y: y.values_mut(device),
        }
        .run_on(device);
        if let Some(table) = &self.tied {
            table.offer(context.shard, tensors.share(0));
        }
        let saved = SavedEmbedding {
            tokens: x,
            shard: context.shard,
        };
        Ok((y, saved))
    }

    /// Begins with the position after the kept tokens of each text.
    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        let x = only(inputs);
        let (texts, more, width) = (x.samples(), x.shape()[1], self.width);
        kept.check_length(more, self.positions)?;
        let device = tensors.device();
        let mut y = tensors.unwritten(&[texts, more, width]);
        let mut tokens = tensors.unwritten(&[more]);
        let mut positions = tensors.unwritten(&[more, width]);
        let mut found = tensors.unwritten(&[more, width]);
        for (text, kept) in kept.texts.iter().enumerate() {
            let of_text = RowCopy {
                from: [texts * more, text * more],
                to: [more, 0],
                length: more,
            };
            CopyRowsKernel {
                copy: of_text,
                from: x.values(),
                to: tokens.values_mut(device),
            }
            .run_on(device);
            let next = RowCopy {
                from: [self.positions * width, kept.tokens() * width],
                to: [more * width, 0],
                length: more * width,
            };
            CopyRowsKernel {
                copy: next,
                from: tensors.get(1),
                to: positions.values_mut(device),
            }
            .run_on(device);
            EmbedKernel {
                width,
                tokens: tokens.values(),
                vectors: tensors.get(0),
                positions: positions.values(),
                y: found.values_mut(device),
            }
            .run_on(device);
            let to_text = RowCopy {
                from: [more * width, 0],
                to: [texts * more * width, text * more * width],
                length: more * width,
            };
            CopyRowsKernel {
                copy: to_text,
                from: found.values(),
                to: y.values_mut(device),
            }
            .run_on(device);
        }
        if let Some(table) = &self.tied {
            table.offer(Shard(0), tensors.share(0));
        }
        Ok(Some(y))
    }

    /// Token numbers have no gradient.
    fn backward_input(
        &self,
        _saved: &mut SavedEmbedding,
        _gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![None]
    }

    /// The gradient of a tied table starts with the output layer's part, to which the embedding's
    /// is added.
    fn backward_weights(
        &self,
        saved: &SavedEmbedding,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        let (tokens, given) = (saved.tokens.values(), gradient.values());
        let [of_vectors, of_positions] = to.pair(0);
        EmbedGradientKernel {
            width: self.width,
            tokens,
            dy: given,
            of_vectors,
            of_positions,
        }
        .run_on(device);
        match &self.tied {
            Some(table) => table.add_gradient(saved.shard, device, to.get(0)),
            None => Ok(()),
        }
    }
}

/// The token that pads short source texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePadding {
    /// The number of the token.
    pub token: u32,
    /// The number of positions of the source text, which is first.
    pub source: usize,
}

/// A length is encoded as two numbers below this, which the short formats represent exactly.
const DIGIT: usize = 256;

/// Writes the number of tokens of a source before its padding.
fn write_length(tokens: &[f32], padding: SourcePadding, to: &mut [f32]) {
    let source = &tokens[..padding.source];
    let last = source
        .iter()
        .rposition(|token| *token != padding.token as f32);
    let length = last.map_or(0, |last| last + 1);
    to.fill(0.0);
    to[0] = (length % DIGIT) as f32;
    to[1] = (length / DIGIT) as f32;
}

/// Reads the length written by [`write_length`].
pub(super) fn read_length(from: &[f32]) -> usize {
    from[0] as usize + DIGIT * from[1] as usize
}

/// The number of tokens of each source text before its padding, as a row of `width` floats.
struct SourceLengths {
    padding: SourcePadding,
    positions: usize,
    width: usize,
}

impl GraphOperation for SourceLengths {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::SourceLengths(self.padding)
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let x = only(inputs);
        let mut y = vec![0.0; x.samples() * self.width];
        let texts = x.values().to_vec();
        let texts = texts.chunks_exact(self.positions.max(1));
        for (tokens, to) in texts.zip(y.chunks_exact_mut(self.width)) {
            write_length(tokens, self.padding, to);
        }
        let y = Activation::from_host(&[x.samples(), 1, self.width], y);
        Ok((y.on_device(tensors.device()), ()))
    }

    fn backward_input(
        &self,
        (): &mut (),
        _gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![None]
    }
}

impl GraphBuilder {
    /// Adds a vector for each token and one for each position to the layer's input `[positions]`,
    /// which has token numbers below `tokens`. Tensors are `token` and `position`. With a table, an
    /// output layer of the same model shares the vectors of the tokens: see
    /// [`GraphBuilder::tied_scores`].
    pub fn embedding(
        &mut self,
        x: GraphValue,
        tokens: usize,
        width: usize,
        tied: Option<&TiedTable>,
    ) -> GraphValue {
        let positions = self.shape(x).iter().product();
        if let Some(table) = tied {
            table.set_size([tokens, width]);
        }
        let initial = self.initial();
        let tensors = [("token", tokens), ("position", positions)]
            .map(|(tensor, rows)| self.tensor("", tensor, &[rows, width], initial));
        let operation = Embedding {
            positions,
            width,
            tied: tied.cloned(),
        };
        self.add_operation(operation, &[x], vec![positions, width], tensors.into())
    }

    /// Adds the number of tokens before the padding of each source text, as a row of `width` floats
    /// for [`Attended::First`](crate::Attended::First). `x` has the token numbers.
    pub fn source_lengths(
        &mut self,
        x: GraphValue,
        padding: SourcePadding,
        width: usize,
    ) -> GraphValue {
        let positions: usize = self.shape(x).iter().product();
        if width < 2 || padding.source >= DIGIT * DIGIT || padding.source > positions {
            self.fail(format!(
                "cannot encode the lengths of sources of {} of {positions} positions in {width} floats: expected a width of at least 2 and a source below {}",
                padding.source,
                DIGIT * DIGIT
            ));
            return x;
        }
        let operation = SourceLengths {
            padding,
            positions,
            width,
        };
        self.add_operation(operation, &[x], vec![1, width], Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_sources_read_back_as_written() {
        let padding = SourcePadding {
            token: 4,
            source: 700,
        };
        for length in [0, 1, 255, 256, 257, 699, 700] {
            let mut tokens = vec![4.0; 702];
            tokens[..length].fill(1.0);
            tokens[..length / 2].fill(4.0);
            tokens[700..].fill(1.0);
            let mut row = [f32::NAN; 3];
            write_length(&tokens, padding, &mut row);
            assert_eq!(read_length(&row), length);
            let mut short = row;
            crate::Precision::Bf16.round(&mut short);
            assert_eq!(short, row);
        }
    }
}
