//! Layers that are divided into parts: groups of heads, columns and rows of matrices, rows of tables.
//!
//! Two nodes and one rule connect the parts: the sum over all parts, their concatenation, and the gradient of a value that several
//! parts read, which is the sum of the gradients of the parts.

use std::ops::Range;

use ronde_core::layout::{Role, TensorEntry, TensorPart};

use super::{GraphBuilder, GraphValue};
use crate::device::kernel::TableRows;
use crate::graph::parts::share;
use crate::graph::{OwnTensor, PartPlace, TokenDivision};
use crate::initial::Initial;
use crate::operations::TiedTable;
use crate::operations::{AddRow, CombineParts, EmbedRows, Linear, PartsForm};

impl GraphBuilder {
    /// Describes operations once for each of `parts` parts, which may be computed by different workers, and returns the value
    /// of each. These operations read values of their own part and values that belong to none.
    pub fn each_part(
        &mut self,
        parts: u32,
        mut describe: impl FnMut(&mut Self, u32) -> GraphValue,
    ) -> Vec<GraphValue> {
        self.outline.parts = parts;
        let mut values = Vec::with_capacity(parts as usize);
        for part in 0..parts {
            self.part = Some(part);
            values.push(describe(self, part));
        }
        self.part = None;
        values
    }

    /// Returns a tensor of the current part.
    fn part_tensor(
        &mut self,
        names: [&str; 2],
        shape: &[usize],
        (dim, ranges): (usize, Vec<Range<usize>>),
        initial: Initial,
    ) -> OwnTensor {
        let whole = self.tensor(names[0], names[1], shape, initial).entry;
        let part = TensorPart {
            name: whole.name,
            shape: shape.to_vec(),
            index: self.part.unwrap_or(0),
            parts: self.outline.parts,
            dim,
            ranges,
        };
        OwnTensor {
            entry: TensorEntry::f32_part(part, Role::Parameter),
            initial,
        }
    }

    /// Adds `x * weight + bias` with the part's share of the columns of each of `groups` groups of outputs, side by side: of a
    /// matrix `[inputs, outputs]` for all parts. The shares of a group differ by at most one.
    pub fn linear_columns(
        &mut self,
        name: &str,
        x: GraphValue,
        (outputs, groups): (usize, usize),
        has_bias: bool,
    ) -> GraphValue {
        let (part, parts) = (self.part.unwrap_or(0), self.outline.parts);
        let each = outputs / groups.max(1);
        if each < parts as usize {
            self.fail(format!(
                "{name}: {each} outputs cannot be divided into {parts} parts"
            ));
            return x;
        }
        let own = share(each, part, parts);
        let group = |group: usize| group * each + own.start..group * each + own.end;
        let ranges: Vec<Range<usize>> = (0..groups).map(group).collect();
        let mut shape = self.shape(x).to_vec();
        let Some(last) = shape.last_mut() else {
            self.fail(format!("{name}: invalid input without dimensions"));
            return x;
        };
        let inputs = std::mem::replace(last, own.len() * groups);
        let operation = Linear {
            inputs,
            outputs: own.len() * groups,
            has_bias,
        };
        let initial = self.initial;
        let columns = (1, ranges.clone());
        let mut tensors =
            vec![self.part_tensor([name, "weight"], &[inputs, outputs], columns, initial)];
        if has_bias {
            let zeros = Initial::Constant(0.0);
            tensors.push(self.part_tensor([name, "bias"], &[outputs], (0, ranges), zeros));
        }
        self.add_operation(operation, &[x], shape, tensors)
    }

    /// Adds `x * weight` with the part's share of the rows of a matrix `[inputs, outputs]` for all parts, where `x` has the
    /// part's inputs. The sum over the parts is the product: see [`GraphBuilder::sum_parts`].
    pub fn linear_rows(
        &mut self,
        name: &str,
        x: GraphValue,
        [inputs, outputs]: [usize; 2],
    ) -> GraphValue {
        let (part, parts) = (self.part.unwrap_or(0), self.outline.parts);
        let rows = share(inputs, part, parts);
        let mut shape = self.shape(x).to_vec();
        let Some(last) = shape.last_mut() else {
            self.fail(format!("{name}: invalid input without dimensions"));
            return x;
        };
        let own = std::mem::replace(last, outputs);
        if own != rows.len() {
            self.fail(format!(
                "{name}: a part has {own} inputs, but its share of {inputs} is {}",
                rows.len()
            ));
            return x;
        }
        let operation = Linear {
            inputs: own,
            outputs,
            has_bias: false,
        };
        let (initial, rows) = (self.initial, (0, vec![rows]));
        let weight = self.part_tensor([name, "weight"], &[inputs, outputs], rows, initial);
        self.add_operation(operation, &[x], shape, vec![weight])
    }

    /// Adds the vectors of the tokens of the part's share of a table; other tokens have zeros. The sum over the parts are the
    /// vectors of all tokens. `tied` is the table of the part: see [`GraphBuilder::embedding`].
    pub fn embedding_rows(
        &mut self,
        x: GraphValue,
        tokens: usize,
        width: usize,
        tied: Option<&TiedTable>,
    ) -> GraphValue {
        let (part, parts) = (self.part.unwrap_or(0), self.outline.parts);
        if tokens < parts as usize {
            self.fail(format!(
                "{tokens} tokens cannot be divided into {parts} parts"
            ));
            return x;
        }
        let own = share(tokens, part, parts);
        if let Some(table) = tied {
            table.set_size([own.len(), width]);
        }
        let shape = [self.shape(x), &[width]].concat();
        let (initial, rows) = (self.initial, (0, vec![own.clone()]));
        let table = self.part_tensor(["", "token"], &[tokens, width], rows, initial);
        let operation = EmbedRows {
            rows: TableRows {
                width,
                first: own.start,
                count: tokens,
            },
            tied: tied.cloned(),
        };
        self.add_operation(operation, &[x], shape, vec![table])
    }

    /// Adds the sum of the values of all parts, in their order.
    pub fn sum_parts(&mut self, values: &[GraphValue]) -> GraphValue {
        self.combine_parts(values, PartsForm::Sum, None)
    }

    /// Adds the concatenation of the values of all parts, in their order, along the last dimension.
    pub fn join_parts(&mut self, values: &[GraphValue]) -> GraphValue {
        self.combine_parts(values, PartsForm::Joined, None)
    }

    pub(super) fn combine_parts(
        &mut self,
        values: &[GraphValue],
        form: PartsForm,
        division: Option<TokenDivision>,
    ) -> GraphValue {
        let parts = self.outline.parts;
        let Some(&first) = values.first() else {
            return self.input();
        };
        let mut shape = self.shape(first).to_vec();
        let mut widths = Vec::with_capacity(values.len());
        let mut fits = values.len() == parts as usize;
        for value in values {
            let of_part = self.shape(*value);
            let width = of_part.last().copied().unwrap_or(1);
            let mut expected = shape.clone();
            if let (PartsForm::Joined, Some(last)) = (form, expected.last_mut()) {
                *last = width;
            }
            fits &= *of_part == *expected;
            widths.push(width);
        }
        if !fits {
            self.fail(format!(
                "expected values of one shape from each of {parts} parts"
            ));
            return first;
        }
        if let (PartsForm::Joined, Some(last)) = (form, shape.last_mut()) {
            *last = widths.iter().sum();
        }
        let node = CombineParts {
            layer: self.outline.name.clone(),
            form,
            widths,
            place: PartPlace::all(parts),
            is_apart: false,
            division: division.clone(),
        };
        let found = self.add_node(Box::new(node), values, shape, Vec::new());
        self.divide(found, division);
        found
    }

    /// Adds a bias of the last dimension, called `{name}.bias`.
    pub fn bias(&mut self, name: &str, x: GraphValue) -> GraphValue {
        let shape = self.shape(x).to_vec();
        let elements = shape.last().copied().unwrap_or(1);
        let bias = self.tensor(name, "bias", &[elements], Initial::Constant(0.0));
        let operation = AddRow {
            elements,
            of_positions: None,
        };
        self.add_operation(operation, &[x], shape, vec![bias])
    }

    /// Adds a vector for each position to `[positions, width]`, as [`GraphBuilder::embedding`] does. The tensor is `position`.
    pub fn positions(&mut self, x: GraphValue) -> GraphValue {
        let shape = self.shape(x).to_vec();
        let initial = self.initial;
        let vectors = self.tensor("", "position", &shape, initial);
        let operation = AddRow {
            elements: shape.iter().product(),
            of_positions: shape.last().copied(),
        };
        self.add_operation(operation, &[x], shape, vec![vectors])
    }
}
