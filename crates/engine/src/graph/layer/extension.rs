//! Continues texts in a layer: runs its operations for the next positions only.

use super::GraphLayer;
use crate::activation::Activation;
use crate::error::EngineError;
use crate::graph::{KeptPositions, KeptText, Tensors};

impl GraphLayer {
    /// Returns the output at the next positions of texts: see [`crate::Layer::extend`].
    pub(super) fn run_extension(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        self.check_positions(&input, texts.len())?;
        self.load_initial();
        let mut input = [input.on_device(self.device.as_ref())];
        self.round_value(0, &mut input);
        let mut values = vec![Vec::new(); self.outline.shapes.len()];
        values[0] = input.map(Some).into();
        let state = self.state.clone();
        let device = self.device.clone();
        for index in 0..self.outline.nodes.len() {
            if !self.computes(index) {
                values[index + 1] = vec![None];
                continue;
            }
            let inputs = self.inputs_of(index, &mut values).remove(0);
            let node = &self.outline.nodes[index];
            let tensors = Tensors::new(device.as_ref(), &state, node.tensors.start);
            let mut kept = KeptPositions {
                texts: &mut *texts,
                layer,
                operation: index,
            };
            let output = node.node.extend(inputs, tensors, &mut kept)?;
            let output = output.ok_or_else(|| EngineError::NoExtension {
                layer: self.outline.name.clone(),
            })?;
            let mut outputs = [output];
            self.round_value(index + 1, &mut outputs);
            values[index + 1] = outputs.map(Some).into();
        }
        self.check_device()?;
        let output = values.pop().and_then(|mut outputs| outputs.pop().flatten());
        Ok(output.unwrap_or_else(Activation::nothing))
    }

    /// Checks that the input has the positions of all texts: `[texts, positions, ..]`.
    fn check_positions(&self, input: &Activation, texts: usize) -> Result<(), EngineError> {
        let of_position = self.outline.shapes[0].get(1..).unwrap_or_default();
        let got = input.shape();
        if got.len() >= 2 && got[0] == texts && &got[2..] == of_position {
            return Ok(());
        }
        Err(EngineError::Shape {
            layer: self.outline.name.clone(),
            what: "input",
            got: got.to_vec(),
            expected: format!("{texts} texts of any number of positions of {of_position:?}"),
        })
    }
}
