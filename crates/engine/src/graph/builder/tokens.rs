//! Values that are divided along their tokens: which operations compute them, and how parts read them.

use std::ops::Range;

use super::{GraphBuilder, GraphOutline, GraphValue, NodeEntry};
use crate::graph::TokenShares;
use crate::graph::{GraphOperation, OwnTokens, PartPlace, TokenDivision};
use crate::operations::{GatherTokens, PartsForm};
use crate::shard_map::ShardMap;

impl GraphOutline {
    /// Returns an operation, with the own tokens of its output if this is divided in training.
    pub(in crate::graph) fn node_and_tokens<'a>(
        &'a mut self,
        index: usize,
        own: &'a Range<u32>,
    ) -> (&'a mut NodeEntry, Option<OwnTokens<'a>>) {
        let division = self.divisions[index + 1].as_ref();
        let tokens = division.map(|division| OwnTokens::new(division, own));
        (&mut self.nodes[index], tokens)
    }

    /// Returns as many of `elements` elements in proportion to the tokens of a value as a process has.
    pub(super) fn own_elements(&self, value: usize, elements: usize, place: &PartPlace) -> usize {
        match &self.divisions[value] {
            None => elements,
            Some(division) => {
                let shares = division.shares();
                elements / shares.all().max(1) * shares.of(&place.own())
            }
        }
    }

    /// Returns the number of tokens of the input on processes that compute different parts, in training; `None` for an input
    /// that is whole on all of them.
    #[must_use]
    pub fn input_tokens(&self) -> Option<TokenShares> {
        self.divisions[0].as_ref().map(TokenDivision::shares)
    }

    /// Returns the same for the output.
    #[must_use]
    pub fn output_tokens(&self) -> Option<TokenShares> {
        let last = self.divisions.last()?.as_ref();
        last.map(TokenDivision::shares)
    }
}

impl GraphBuilder {
    /// Returns the division of the output of an operation along its tokens.
    pub(super) fn division_of(
        &mut self,
        operation: &impl GraphOperation,
        inputs: &[GraphValue],
    ) -> Option<TokenDivision> {
        let each = inputs
            .iter()
            .map(|input| self.outline.divisions[input.0].clone());
        let each: Vec<Option<TokenDivision>> = each.collect();
        let division = each.first().cloned().flatten();
        let is_whole = each.iter().all(Option::is_none);
        let is_same = each.iter().all(|other| *other == division);
        let has_shared = division
            .as_ref()
            .is_some_and(|division| division.shared() > 0);
        let computes_own = operation.computes_own_tokens() && self.part.is_none();
        if !is_whole && (!is_same || has_shared || !computes_own) {
            self.fail(format!(
                "{:?} cannot compute values that are divided along their tokens: see GraphBuilder::all_tokens",
                operation.computation()
            ));
        }
        division
    }

    /// Sets the division of the value that was added last.
    pub(super) fn divide(&mut self, value: GraphValue, division: Option<TokenDivision>) {
        // After a mistake, nothing was added.
        if self.problem.is_none() {
            self.outline.divisions[value.0] = division;
        }
    }

    /// Adds the same sum of values `[tokens, width]`, and divides it along the tokens: in training, a process has those of its
    /// parts. `blocks` are the lengths of the runs of tokens with a segment for each part; together they are all tokens.
    /// [`GraphBuilder::add`], [`GraphBuilder::dropout`], [`GraphBuilder::layer_norm`], [`GraphBuilder::bias`] and
    /// [`GraphBuilder::positions`] of a divided value compute these tokens only, [`GraphBuilder::slice`] takes a block, and
    /// [`GraphBuilder::concatenate`] joins values along the tokens. Operations of parts need [`GraphBuilder::all_tokens`].
    pub fn sum_parts_by_tokens(&mut self, values: &[GraphValue], blocks: &[usize]) -> GraphValue {
        let division = TokenDivision::new(blocks, 0, self.outline.parts);
        let shape = values.first().map_or(&[][..], |value| self.shape(*value));
        if shape.len() < 2 || shape[0] != division.tokens() {
            let shape = shape.to_vec();
            self.fail(format!(
                "cannot divide the tokens of {shape:?} into blocks of {blocks:?}"
            ));
            return self.input();
        }
        self.combine_parts(values, PartsForm::Sum, Some(division))
    }

    /// Declares that the input `[tokens, width]` is divided along its tokens among `parts` parts, as the layer before makes it:
    /// see [`GraphBuilder::sum_parts_by_tokens`]. `shared` tokens after the blocks are on every process.
    pub fn divide_input(&mut self, parts: u32, blocks: &[usize], shared: usize) {
        let division = TokenDivision::new(blocks, shared, parts);
        let shape = &self.outline.shapes[0];
        if shape.len() < 2 || shape[0] != division.tokens() || !self.outline.nodes.is_empty() {
            let shape = shape.clone();
            self.fail(format!(
                "cannot divide the tokens of an input {shape:?} into blocks of {blocks:?} and {shared} more, before all operations"
            ));
            return;
        }
        self.outline.parts = parts;
        self.outline.divisions[0] = Some(division);
    }

    /// Adds all tokens of a divided value, for operations of parts: call it before [`GraphBuilder::each_part`], so that exchanges
    /// have one order on all processes. Returns the value itself unless it is divided.
    pub fn all_tokens(&mut self, value: GraphValue) -> GraphValue {
        let Some(division) = self.outline.divisions[value.0].clone() else {
            return value;
        };
        if division.shared() > 0 || self.part.is_some() {
            self.fail("all tokens are for a value whose tokens are all divided, before its parts are described".to_owned());
            return value;
        }
        let node = GatherTokens {
            layer: self.outline.name.clone(),
            division,
            place: PartPlace::all(self.outline.parts),
            saved: ShardMap::new(),
        };
        let shape = self.shape(value).to_vec();
        self.add_node(Box::new(node), &[value], shape, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message of a mistake in a layer of 6 tokens of 4 elements, divided in 2 and 4 tokens among two parts.
    fn refused(describe: impl Fn(&mut GraphBuilder, GraphValue)) -> String {
        let mut layer = GraphBuilder::new("layer", &[6, 4]);
        layer.divide_input(2, &[2, 4], 0);
        let x = layer.input();
        describe(&mut layer, x);
        layer
            .finish()
            .err()
            .map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn divided_values_are_refused_where_all_tokens_are_needed() {
        let in_parts = |layer: &mut GraphBuilder, x| {
            let x = layer.all_tokens(x);
            let parts = layer.each_part(2, |layer, _| {
                let y = layer.linear_columns("up", x, (4, 1), true);
                layer.linear_rows("down", y, [4, 4])
            });
            layer.sum_parts_by_tokens(&parts, &[6])
        };
        let works = refused(|layer, x| {
            let x = layer.slice(x, 0, 2..6);
            let y = layer.layer_norm("norm", x);
            let y = layer.add(x, y);
            let y = layer.all_tokens(y);
            let parts = layer.each_part(2, |layer, _| {
                let y = layer.linear_columns("up", y, (4, 1), true);
                layer.linear_rows("down", y, [4, 4])
            });
            let y = layer.sum_parts_by_tokens(&parts, &[4]);
            let y = layer.bias("down", y);
            layer.dropout(y, 0.5);
        });
        assert_eq!(works, "");
        let message = refused(|layer, x| {
            layer.linear("up", x, 3, true);
        });
        assert!(message.contains("divided along their tokens"), "{message}");
        let message = refused(|layer, x| {
            layer.slice(x, 0, 1..6);
        });
        assert!(message.contains("expected one block"), "{message}");
        let message = refused(|layer, x| {
            layer.each_part(2, |layer, _| layer.linear_columns("up", x, (4, 1), true));
        });
        assert!(message.contains("GraphBuilder::all_tokens"), "{message}");
        // The same tokens, in other blocks.
        let message = refused(|layer, x| {
            let y = in_parts(layer, x);
            layer.add(x, y);
        });
        assert!(message.contains("divided along their tokens"), "{message}");
        let message = refused(|layer, x| {
            let x = layer.slice(x, 0, 2..6);
            let x = layer.all_tokens(x);
            let parts = layer.each_part(2, |layer, _| layer.linear_columns("up", x, (4, 1), true));
            layer.sum_parts_by_tokens(&parts, &[3]);
        });
        assert!(message.contains("blocks of [3]"), "{message}");
    }
}
