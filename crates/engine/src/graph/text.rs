//! [`KeptText`]: a model's state of a text to continue it without computing its earlier tokens again.

use std::collections::BTreeMap;

use crate::device::kernel::{CopyRowsKernel, RowCopy};
use crate::device::{Device, DeviceBuffer, DeviceSlice};
use crate::error::EngineError;

/// The keys and values of a text's tokens in all attentions of a model, from which
/// [`Chain::extend_texts`](crate::Chain::extend_texts) computes the outputs of the next tokens.
#[derive(Debug, Default)]
pub struct KeptText {
    tokens: usize,
    /// By layer and operation.
    rows: BTreeMap<(u32, usize), KeptRows>,
}

impl KeptText {
    /// Creates a text without tokens. Memory grows with the text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Counts tokens that all layers have kept.
    pub(crate) fn add(&mut self, tokens: usize) {
        self.tokens += tokens;
    }
}

/// Rows of a text that an operation keeps, one for each token, in the memory of its device.
#[derive(Debug)]
pub(crate) struct KeptRows {
    buffer: DeviceBuffer,
    capacity: usize,
}

impl KeptRows {
    /// Returns memory for [`KeptRows::capacity`] rows, with the first ones written.
    pub(crate) fn values(&self) -> DeviceSlice<'_> {
        self.buffer.slice()
    }

    /// Returns the number of rows for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `needed` rows, and keeps the first `written` ones. Memory doubles, so that a row is copied once on
    /// average.
    fn reserve(&mut self, device: &dyn Device, written: usize, needed: usize, width: usize) {
        if needed <= self.capacity {
            return;
        }
        let capacity = needed.next_power_of_two();
        let mut buffer = device.allocate(capacity * width);
        if written > 0 {
            let copy = RowCopy {
                from: [self.capacity * width, 0],
                to: [capacity * width, 0],
                length: written * width,
            };
            CopyRowsKernel {
                copy,
                from: self.buffer.slice(),
                to: buffer.slice_mut(),
            }
            .run_on(device);
        }
        *self = Self { buffer, capacity };
    }
}

/// The texts that an operation continues.
pub(crate) struct KeptPositions<'a, 'b> {
    /// The texts.
    pub(crate) texts: &'a mut [&'b mut KeptText],
    /// The number of the layer in the model.
    pub(crate) layer: u32,
    /// The number of the operation in the layer.
    pub(crate) operation: usize,
}

impl KeptPositions<'_, '_> {
    /// Checks that texts have at most `positions` tokens after `more` have been added.
    ///
    /// # Errors
    /// When one has more.
    pub(crate) fn check_length(&self, more: usize, positions: usize) -> Result<(), EngineError> {
        let most = self.texts.iter().map(|text| text.tokens).max();
        match most {
            Some(kept) if kept + more > positions => Err(EngineError::TextTooLong {
                kept,
                more,
                positions,
            }),
            _ => Ok(()),
        }
    }

    /// Adds `more` rows of `width` floats to those kept of text `index`: the rows of this text in `rows`, which has as many
    /// of each text. Returns all rows of the text.
    pub(crate) fn push(
        &mut self,
        device: &dyn Device,
        index: usize,
        (rows, more, width): (DeviceSlice<'_>, usize, usize),
    ) -> &KeptRows {
        let text = &mut self.texts[index];
        let tokens = text.tokens;
        let kept = text
            .rows
            .entry((self.layer, self.operation))
            .or_insert_with(|| KeptRows {
                buffer: device.allocate(0),
                capacity: 0,
            });
        kept.reserve(device, tokens, tokens + more, width);
        let copy = RowCopy {
            from: [rows.length(), index * more * width],
            to: [kept.capacity * width, tokens * width],
            length: more * width,
        };
        CopyRowsKernel {
            copy,
            from: rows,
            to: kept.buffer.slice_mut(),
        }
        .run_on(device);
        kept
    }
}
