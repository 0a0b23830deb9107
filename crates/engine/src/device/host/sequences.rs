//! Attention and embeddings on the host.

use std::ops::Range;

use ronde_kernels::{Attention, ShortFormat, add_to};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::{DeviceSlice, DeviceSliceMut, SequenceKernels, TableRows};

/// Returns the number of a token in a table of a number of rows; one outside counts as the nearest one inside.
fn token(value: f32, rows: usize) -> usize {
    (value as usize).min(rows.saturating_sub(1))
}

/// Returns the work of an attention, in floats read or written.
fn work(shape: &Attention) -> usize {
    let [queries, keys_values, _] = shape.elements();
    queries + keys_values + shape.pairs() * shape.width / 8
}

/// Returns the shape of some sequences of a batch.
fn of_sequences(shape: &Attention, sequences: &Range<usize>) -> Attention {
    Attention {
        batch: sequences.len(),
        ..*shape
    }
}

/// Returns the lengths of some sequences, if there are any.
fn lengths_of<'a>(lengths: &'a [usize], sequences: &Range<usize>) -> &'a [usize] {
    lengths.get(sequences.clone()).unwrap_or_default()
}

impl SequenceKernels for HostDevice {
    fn attend(
        &self,
        shape: &Attention,
        [queries, keys_values]: [DeviceSlice<'_>; 2],
        lengths: &[usize],
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    ) {
        let (q, kv) = (queries.host(), keys_values.host());
        let batch = shape.batch;
        let ranges = self.threads.ranges(batch, work(shape));
        let parts = split(y.host(), batch, &ranges).into_iter();
        let parts = parts.zip(split(statistics.host(), batch, &ranges));
        self.threads.each(
            ranges.iter().zip(parts).collect(),
            |(range, (y, statistics))| {
                let (q, kv) = (part(q, batch, range), part(kv, batch, range));
                let lengths = lengths_of(lengths, range);
                of_sequences(shape, range).forward(q, kv, lengths, y, statistics);
            },
        );
    }

    fn attend_gradient(
        &self,
        shape: &Attention,
        format: Option<ShortFormat>,
        inputs: [DeviceSlice<'_>; 4],
        lengths: &[usize],
        gradients: [DeviceSliceMut<'_>; 2],
    ) {
        let [dq, dkv] = gradients.map(DeviceSliceMut::host);
        let inputs = inputs.map(DeviceSlice::host);
        let batch = shape.batch;
        let ranges = self.threads.ranges(batch, work(shape));
        let parts = split(dq, batch, &ranges).into_iter();
        let parts = parts.zip(split(dkv, batch, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (dq, dkv))| {
                let lengths = lengths_of(lengths, range);
                let [q, kv, statistics, dy] = inputs.map(|values| part(values, batch, range));
                let known = (statistics, format);
                let shape = of_sequences(shape, range);
                shape.backward([q, kv], lengths, known, dy, [dq, dkv]);
            });
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

    fn embed_rows(
        &self,
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        table: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    ) {
        let (width, table) = (rows.width.max(1), table.host());
        let own = rows.first..rows.first + table.len() / width;
        let to = y.host().chunks_exact_mut(width);
        for (to, value) in to.zip(tokens.host()) {
            let number = token(*value, rows.count);
            if own.contains(&number) {
                to.copy_from_slice(&table[(number - own.start) * width..][..width]);
            } else {
                to.fill(0.0);
            }
        }
    }

    fn embed_rows_gradient(
        &self,
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradient: DeviceSliceMut<'_>,
    ) {
        let (width, gradient) = (rows.width.max(1), gradient.host());
        gradient.fill(0.0);
        let own = rows.first..rows.first + gradient.len() / width;
        for (value, row) in tokens.host().iter().zip(dy.host().chunks_exact(width)) {
            let number = token(*value, rows.count);
            if own.contains(&number) {
                add_to(&mut gradient[(number - own.start) * width..][..width], row);
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
