//! Operations on sequences, and changes of shape.

use std::ops::Range;

use super::{Attended, GraphBuilder, GraphValue};
use crate::graph::{PartPlace, TokenDivision};
use crate::initial::Initial;
use crate::operations::{
    Attend, Concatenate, ConcatenateTokens, NormaliseRows, Reshape, SliceTokens, TakeSlice,
};

impl GraphBuilder {
    /// Adds a normalisation of the last dimension, with an epsilon of 1e-5.
    pub fn layer_norm(&mut self, name: &str, x: GraphValue) -> GraphValue {
        let shape = self.shape(x).to_vec();
        let width = shape.last().copied().unwrap_or(1);
        let affine = [("gamma", 1.0), ("beta", 0.0)];
        let tensors = affine
            .into_iter()
            .map(|(tensor, value)| self.tensor(name, tensor, &[width], Initial::Constant(value)))
            .collect();
        let rows = shape.iter().product::<usize>() / width.max(1);
        self.add_operation(NormaliseRows { rows }, &[x], shape, tensors)
    }

    /// Adds a change of shape to as many elements per sample.
    pub fn reshape(&mut self, x: GraphValue, shape: &[usize]) -> GraphValue {
        let from = self.shape(x).to_vec();
        if from.iter().product::<usize>() != shape.iter().product::<usize>() {
            self.fail(format!("cannot reshape {from:?} to {shape:?}"));
        }
        if from == shape {
            return x;
        }
        self.add_operation(Reshape::new(&from, shape), &[x], shape.to_vec(), Vec::new())
    }

    /// Adds a change of shape to one dimension.
    pub fn flatten(&mut self, x: GraphValue) -> GraphValue {
        let elements = self.shape(x).iter().product();
        self.reshape(x, &[elements])
    }

    /// Adds the attention of several heads: `softmax(q k' / sqrt(width)) v`. Queries are
    /// `[positions, width]`; keys and values are side by side, `[positions, 2 * width]`.
    pub fn attention(
        &mut self,
        queries: GraphValue,
        keys_values: GraphValue,
        heads: usize,
        attended: Attended,
    ) -> GraphValue {
        let shapes = [queries, keys_values].map(|value| self.shape(value).to_vec());
        let ([asking, row], [keys, twice]) = (&shapes[0][..], &shapes[1][..]) else {
            self.fail(format!(
                "attention: invalid shapes {shapes:?}: expected [positions, width]"
            ));
            return queries;
        };
        if heads == 0 || !row.is_multiple_of(heads) || *twice != 2 * row {
            self.fail(format!("attention: {heads} heads of shapes {shapes:?}"));
            return queries;
        }
        if attended == Attended::Earlier && asking != keys {
            self.fail(format!(
                "attention: {asking} queries cannot attend to {keys} earlier keys"
            ));
        }
        let mut inputs = vec![queries, keys_values];
        if let Attended::First(lengths) = attended {
            // The rows that `source_lengths` makes.
            if !matches!(*self.shape(lengths), [1, width] if width >= 2) {
                let shape = self.shape(lengths).to_vec();
                self.fail(format!(
                    "attention: invalid shape {shape:?} of the lengths: expected that of source_lengths"
                ));
                return queries;
            }
            inputs.push(lengths);
        }
        let operation = Attend {
            shape: ronde_kernels::Attention {
                batch: 1,
                queries: *asking,
                keys: *keys,
                heads,
                width: row / heads,
                causal: attended == Attended::Earlier,
            },
        };
        self.add_operation(operation, &inputs, shapes[0].clone(), Vec::new())
    }

    /// Adds a part of a value along a dimension.
    pub fn slice(&mut self, x: GraphValue, dim: usize, part: Range<usize>) -> GraphValue {
        let from = self.shape(x).to_vec();
        if from.get(dim).is_none_or(|&length| part.end > length) || part.is_empty() {
            self.fail(format!(
                "cannot take {part:?} of dimension {dim} of {from:?}"
            ));
            return x;
        }
        if part.len() == from[dim] {
            return x;
        }
        let mut shape = from.clone();
        shape[dim] = part.len();
        if let Some(division) = self.outline.divisions[x.0].clone() {
            return self.slice_tokens(x, dim, part, division);
        }
        self.add_operation(TakeSlice::new(&from, dim, part), &[x], shape, Vec::new())
    }

    /// Adds a block of the tokens of a divided value, or those that every process has.
    fn slice_tokens(
        &mut self,
        x: GraphValue,
        dim: usize,
        part: Range<usize>,
        division: TokenDivision,
    ) -> GraphValue {
        let from = self.shape(x).to_vec();
        let block = division
            .block_of(&part)
            .filter(|_| dim == 0 && self.part.is_none());
        let Some(block) = block else {
            self.fail(format!(
                "cannot take {part:?} of dimension {dim} of {from:?}, which is divided along its tokens: expected one block"
            ));
            return x;
        };
        let mut shape = from.clone();
        shape[0] = part.len();
        let parts = self.outline.parts;
        let is_divided = block < division.blocks().len();
        let of_block = is_divided.then(|| TokenDivision::new(&[part.len()], 0, parts));
        let node = SliceTokens {
            slice: TakeSlice::new(&from, dim, part),
            division,
            block,
            place: PartPlace::all(parts),
        };
        let found = self.add_node(Box::new(node), &[x], shape, Vec::new());
        self.divide(found, of_block);
        found
    }

    /// Adds the concatenation of values of some shapes along their tokens, where the first one is divided.
    fn concatenate_tokens(
        &mut self,
        values: &[GraphValue],
        shapes: &[Vec<usize>],
        dim: usize,
    ) -> GraphValue {
        let (mut blocks, mut of_inputs, mut shared) = (Vec::new(), Vec::new(), 0);
        let mut fits = dim == 0 && self.part.is_none();
        for (value, shape) in values.iter().zip(shapes) {
            match &self.outline.divisions[value.0] {
                Some(division) => {
                    fits &= shared == 0 && division.shared() == 0;
                    of_inputs.push(division.blocks().len());
                    blocks.extend_from_slice(division.blocks());
                }
                None => {
                    fits &= shared == 0;
                    shared = shape[0];
                }
            }
        }
        if !fits {
            self.fail(format!(
                "cannot concatenate {shapes:?} along dimension {dim}: expected values that are divided along their tokens, and at most one other after them"
            ));
            return values[0];
        }
        let parts = self.outline.parts;
        let division = TokenDivision::new(&blocks, shared, parts);
        let mut shape = shapes[0].clone();
        shape[0] = division.tokens();
        let node = ConcatenateTokens {
            concatenate: Concatenate::new(shapes, dim),
            division: division.clone(),
            blocks: of_inputs,
            place: PartPlace::all(parts),
        };
        let found = self.add_node(Box::new(node), values, shape, Vec::new());
        self.divide(found, Some(division));
        found
    }

    /// Adds the concatenation of values along a dimension; their other dimensions are equal.
    pub fn concatenate(&mut self, values: &[GraphValue], dim: usize) -> GraphValue {
        let shapes: Vec<Vec<usize>> = values
            .iter()
            .map(|value| self.shape(*value).to_vec())
            .collect();
        let without = |shape: &Vec<usize>| {
            let mut shape = shape.clone();
            shape[dim] = 0;
            shape
        };
        let has_dim = shapes.iter().all(|shape| dim < shape.len());
        let fits = has_dim
            && shapes
                .windows(2)
                .all(|pair| without(&pair[0]) == without(&pair[1]));
        if shapes.is_empty() || !fits {
            self.fail(format!(
                "cannot concatenate {shapes:?} along dimension {dim}"
            ));
            return self.input();
        }
        if self.outline.divisions[values[0].0].is_some() {
            return self.concatenate_tokens(values, &shapes, dim);
        }
        let mut shape = shapes[0].clone();
        shape[dim] = shapes.iter().map(|shape| shape[dim]).sum();
        self.add_operation(Concatenate::new(&shapes, dim), values, shape, Vec::new())
    }
}
