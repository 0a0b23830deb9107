//! Attention and embeddings on the host.

use ronde_kernels::{Attention, add_to};

use super::HostDevice;
use crate::device::{DeviceSlice, DeviceSliceMut, SequenceKernels};

/// Returns the number of a token in a table of a number of rows; one outside counts as the nearest one inside.
fn token(value: f32, rows: usize) -> usize {
    (value as usize).min(rows.saturating_sub(1))
}

impl SequenceKernels for HostDevice {
    fn attend(
        &self,
        shape: &Attention,
        [queries, keys_values]: [DeviceSlice<'_>; 2],
        lengths: &[usize],
        y: DeviceSliceMut<'_>,
        weights: DeviceSliceMut<'_>,
    ) {
        let (q, kv) = (queries.host(), keys_values.host());
        shape.forward(q, kv, lengths, y.host(), weights.host());
    }

    fn attend_gradient(
        &self,
        shape: &Attention,
        inputs: [DeviceSlice<'_>; 2],
        lengths: &[usize],
        weights: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 2],
    ) {
        let gradients = gradients.map(DeviceSliceMut::host);
        let inputs = inputs.map(DeviceSlice::host);
        shape.backward(inputs, lengths, weights.host(), dy.host(), gradients);
    }

    fn embed(
        &self,
        width: usize,
        tokens: DeviceSlice<'_>,
        [vectors, positions]: [DeviceSlice<'_>; 2],
        y: DeviceSliceMut<'_>,
    ) {
        let (width, vectors) = (width.max(1), vectors.host());
        let count = vectors.len() / width;
        let rows = y.host().chunks_exact_mut(width);
        let positions = positions.host().chunks_exact(width).cycle();
        for ((to, value), position) in rows.zip(tokens.host()).zip(positions) {
            let vector = &vectors[token(*value, count) * width..][..width];
            for ((to, vector), position) in to.iter_mut().zip(vector).zip(position) {
                *to = vector + position;
            }
        }
    }

    fn embed_gradient(
        &self,
        width: usize,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        [of_vectors, of_positions]: [DeviceSliceMut<'_>; 2],
    ) {
        let (dy, width) = (dy.host(), width.max(1));
        let of_positions = of_positions.host();
        of_positions.fill(0.0);
        for sample in dy.chunks_exact(of_positions.len().max(1)) {
            add_to(of_positions, sample);
        }
        let of_vectors = of_vectors.host();
        of_vectors.fill(0.0);
        let count = of_vectors.len() / width;
        for (value, row) in tokens.host().iter().zip(dy.chunks_exact(width)) {
            let to = &mut of_vectors[token(*value, count) * width..][..width];
            to.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
    }
}
