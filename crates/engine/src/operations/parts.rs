//! [`CombineParts`]: values that parts of a layer make together; and undivided values.

use ronde_core::Shard;

use super::only;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::Device;
use crate::device::kernel::{
    AddKernel, CopyRowsKernel, EmbedRowsGradientKernel, EmbedRowsKernel, FillKernel,
    RepeatRowKernel, RowCopy, SumRowsKernel, TableRows,
};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{
    GraphNode, GraphOperation, KeptPositions, KeptValues, NodeGradient, PartPlace, TensorGradients,
    Tensors, TokenDivision, taken_run,
};
use crate::lock_step::{NotSummed, ShardSums};
use crate::operations::TiedTable;

/// How the values of parts become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartsForm {
    /// Their sum.
    Sum,
    /// Their concatenation along the last dimension.
    Joined,
}

/// One value from those of all parts, wherever these are computed. It has an input for each part.
pub(crate) struct CombineParts {
    pub(crate) layer: String,
    pub(crate) form: PartsForm,
    /// The length of the last dimension of each input.
    pub(crate) widths: Vec<usize>,
    pub(crate) place: PartPlace,
    /// Whether the output in training is that of the own parts alone.
    pub(crate) is_apart: bool,
    /// The division of the output along its tokens in training; only for a sum.
    pub(crate) division: Option<TokenDivision>,
}

impl CombineParts {
    fn not_summed(&self) -> EngineError {
        EngineError::NotSummed {
            layer: self.layer.clone(),
        }
    }

    fn combine(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        mode: Mode,
    ) -> Result<Activation, EngineError> {
        let own = self.place.own();
        let first = own.start as usize;
        let values = inputs.into_iter().skip(first).take(own.len()).collect();
        let device = tensors.device();
        let found = match (self.form, &self.division) {
            (PartsForm::Joined, _) if self.is_apart && mode == Mode::Train => {
                Ok(self.place.own_joined(device, values, &self.widths))
            }
            (PartsForm::Joined, _) => self.place.join(device, values, &self.widths),
            (PartsForm::Sum, Some(division)) if mode == Mode::Train => {
                self.place.sum_by_tokens(device, values, division)
            }
            (PartsForm::Sum, _) => self.place.sum(device, values),
        };
        found.map_err(|NotSummed| self.not_summed())
    }

    /// Returns the gradients of the inputs of the own parts from that of the output.
    fn gradients(
        &self,
        gradient: Activation,
        device: &dyn Device,
    ) -> Result<Vec<Activation>, EngineError> {
        let own = self.place.own().len();
        Ok(match (self.form, &self.division) {
            (PartsForm::Sum, None) => vec![gradient; own],
            (PartsForm::Sum, Some(division)) => {
                let whole = self.place.with_all_tokens(device, gradient, division);
                vec![whole.map_err(|NotSummed| self.not_summed())?; own]
            }
            (PartsForm::Joined, _) => {
                (self.place).columns(device, &gradient, &self.widths, self.is_apart)
            }
        })
    }
}

impl GraphNode for CombineParts {
    fn computation(&self) -> Computation {
        match self.form {
            PartsForm::Sum => Computation::SumParts,
            PartsForm::Joined => Computation::JoinParts,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn each_saved(&mut self, _shard: Shard, _visit: &mut dyn FnMut(&mut Activation)) {}

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let each = inputs.into_iter().zip(contexts);
        each.map(|(inputs, context)| self.combine(inputs, tensors, context.mode))
            .collect()
    }

    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        self.combine(inputs, tensors, Mode::Evaluate).map(Some)
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let of_shard = |given: NodeGradient<'_>| {
            let mut found = vec![None; wanted.len()];
            let gradients = self.gradients(given.gradient, given.tensors.device())?;
            for (part, gradient) in self.place.own().zip(gradients) {
                found[part as usize] = Some(gradient);
            }
            Ok(found)
        };
        shards.into_iter().map(of_shard).collect()
    }

    fn backward_weights(
        &mut self,
        _given: &NodeGradient<'_>,
        _to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    fn end(&mut self, _shard: Shard) {}

    fn discard(&mut self) {}

    fn set_parts(&mut self, place: &PartPlace) {
        self.place = place.clone();
    }

    fn output_parts(&self) -> Option<&[usize]> {
        (self.form == PartsForm::Joined).then_some(&self.widths)
    }

    fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }
}

/// The sum of a value and a tensor of the last dimensions, which all rows share: a bias, or the vectors of positions.
pub(crate) struct AddRow {
    /// The number of elements of the tensor.
    pub(crate) elements: usize,
    /// The width of one position, if the tensor has a row for each.
    pub(crate) of_positions: Option<usize>,
}

impl GraphOperation for AddRow {
    type Saved = ();

    fn computation(&self) -> Computation {
        Computation::AddTensor
    }

    fn is_per_position(&self) -> bool {
        self.of_positions.is_none()
    }

    fn computes_own_tokens(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, ()), EngineError> {
        let x = only(inputs);
        let device = tensors.device();
        let mut y = tensors.unwritten(x.shape());
        match (tensors.tokens(), self.of_positions) {
            (Some(tokens), Some(width)) => {
                for piece in tokens.pieces() {
                    let length = piece.tokens.len() * width;
                    for sample in 0..x.samples() {
                        let start = piece.before * x.samples() * width + sample * length;
                        let copy = RowCopy {
                            from: [self.elements, piece.tokens.start * width],
                            to: [x.elements(), start],
                            length,
                        };
                        if length > 0 {
                            CopyRowsKernel {
                                copy,
                                from: tensors.get(0),
                                to: y.values_mut(device),
                            }
                            .run_on(device);
                        }
                    }
                }
            }
            _ => RepeatRowKernel {
                row: tensors.get(0),
                to: y.values_mut(device),
            }
            .run_on(device),
        }
        AddKernel {
            y: y.values_mut(device),
            x: x.values(),
        }
        .run_on(device);
        Ok((y, ()))
    }

    /// Begins with the position after the kept tokens of each text.
    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        let Some(width) = self.of_positions else {
            let (output, ()) = self.forward(inputs, tensors, &ForwardContext::evaluate())?;
            return Ok(Some(output));
        };
        let x = only(inputs);
        let (texts, more) = (x.samples(), x.shape()[1]);
        kept.check_length(more, self.elements / width.max(1))?;
        let device = tensors.device();
        let mut y = tensors.unwritten(x.shape());
        for (text, kept) in kept.texts.iter().enumerate() {
            let rows = RowCopy {
                from: [self.elements, kept.tokens() * width],
                to: [texts * more * width, text * more * width],
                length: more * width,
            };
            CopyRowsKernel {
                copy: rows,
                from: tensors.get(0),
                to: y.values_mut(device),
            }
            .run_on(device);
        }
        AddKernel {
            y: y.values_mut(device),
            x: x.values(),
        }
        .run_on(device);
        Ok(Some(y))
    }

    fn backward_input(
        &self,
        (): &mut (),
        gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![Some(gradient)]
    }

    fn backward_weights(
        &self,
        (): &(),
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        let Some((part, tokens)) = tensors.tokens_of_part() else {
            SumRowsKernel {
                rows: gradient.values(),
                to: to.get(0),
            }
            .run_on(device);
            return Ok(());
        };
        let samples = gradient.samples();
        let own = tokens.of_part(part);
        let Some(width) = self.of_positions else {
            let shape = [own.len() * samples, self.elements];
            let first = own.start * samples * self.elements;
            let rows = taken_run(device, gradient, first, &shape);
            SumRowsKernel {
                rows: rows.values(),
                to: to.get(0),
            }
            .run_on(device);
            return Ok(());
        };
        // A position belongs to one part.
        FillKernel {
            to: to.get(0),
            value: 0.0,
        }
        .run_on(device);
        let mut first = own.start * samples * width;
        for segment in tokens.segments(part) {
            let length = segment.len() * width;
            let rows = taken_run(device, gradient, first, &[samples, length]);
            first += rows.elements();
            let mut sum = tensors.unwritten(&[length]);
            SumRowsKernel {
                rows: rows.values(),
                to: sum.values_mut(device),
            }
            .run_on(device);
            let copy = RowCopy {
                from: [length, 0],
                to: [self.elements, segment.start * width],
                length,
            };
            if length > 0 {
                CopyRowsKernel {
                    copy,
                    from: sum.values(),
                    to: to.get(0),
                }
                .run_on(device);
            }
        }
        Ok(())
    }
}

/// The vectors of the tokens whose rows of the table this part has, and zeros for other tokens. Takes token numbers `[N, T]`.
pub(crate) struct EmbedRows {
    pub(crate) rows: TableRows,
    pub(crate) tied: Option<TiedTable>,
}

/// The values kept of one shard.
pub(crate) struct SavedTokens {
    tokens: Activation,
    shard: Shard,
}

impl GraphOperation for EmbedRows {
    type Saved = SavedTokens;

    fn computation(&self) -> Computation {
        Computation::EmbedRows
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

    fn is_per_position(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedTokens), EngineError> {
        let tokens = only(inputs);
        let shape = [tokens.shape(), &[self.rows.width]].concat();
        let mut y = tensors.unwritten(&shape);
        let device = tensors.device();
        let to = y.values_mut(device);
        EmbedRowsKernel {
            rows: self.rows,
            tokens: tokens.values(),
            table: tensors.get(0),
            y: to,
        }
        .run_on(device);
        if let Some(table) = &self.tied {
            table.offer(context.shard, tensors.share(0));
        }
        let shard = context.shard;
        Ok((y, SavedTokens { tokens, shard }))
    }

    /// Token numbers have no gradient.
    fn backward_input(
        &self,
        _saved: &mut SavedTokens,
        _gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![None]
    }

    fn backward_weights(
        &self,
        saved: &SavedTokens,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        let (tokens, given) = (saved.tokens.values(), gradient.values());
        EmbedRowsGradientKernel {
            rows: self.rows,
            tokens,
            dy: given,
            gradient: to.get(0),
        }
        .run_on(device);
        match &self.tied {
            Some(table) => table.add_gradient(saved.shard, device, to.get(0)),
            None => Ok(()),
        }
    }
}
