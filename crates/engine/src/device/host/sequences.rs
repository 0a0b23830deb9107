//! Attention and embeddings on the host.

use std::ops::Range;

use ronde_kernels::{Attention, add_to};

use super::HostDevice;
use super::threads::{part, split};
use crate::device::kernel::{
    AttendGradientKernel, AttendKernel, EmbedGradientKernel, EmbedKernel, EmbedRowsGradientKernel,
    EmbedRowsKernel, OnHost, SequenceKernels,
};

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

impl HostDevice {
    pub(super) fn run_sequence(&self, kernel: SequenceKernels<OnHost<'_>>) {
        match kernel {
            SequenceKernels::Attend(kernel) => self.attend(kernel),
            SequenceKernels::AttendGradient(kernel) => self.attend_gradient(kernel),
            SequenceKernels::Embed(kernel) => self.embed(kernel),
            SequenceKernels::EmbedRows(kernel) => self.embed_rows(kernel),
            SequenceKernels::EmbedRowsGradient(kernel) => self.embed_rows_gradient(kernel),
            SequenceKernels::EmbedGradient(kernel) => self.embed_gradient(kernel),
        }
    }

    fn attend(
        &self,
        AttendKernel {
            queries: q,
            keys_values: kv,
            y,
            statistics,
            shape,
            lengths,
        }: AttendKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let batch = shape.batch;
        let ranges = self.threads.ranges(batch, work(shape));
        let parts = split(y, batch, &ranges).into_iter();
        let parts = parts.zip(split(statistics, batch, &ranges));
        self.threads.each(
            ranges.iter().zip(parts).collect(),
            |(range, (y, statistics))| {
                let (q, kv) = (part(q, batch, range), part(kv, batch, range));
                let lengths = lengths_of(&lengths, range);
                of_sequences(shape, range).forward(q, kv, lengths, y, statistics);
            },
        );
    }

    fn attend_gradient(
        &self,
        AttendGradientKernel {
            queries,
            keys_values,
            statistics,
            dy,
            of_queries: dq,
            of_keys_values: dkv,
            shape,
            format,
            lengths,
        }: AttendGradientKernel<OnHost<'_>>,
    ) {
        let shape = &shape;
        let inputs = [queries, keys_values, statistics, dy];
        let batch = shape.batch;
        let ranges = self.threads.ranges(batch, work(shape));
        let parts = split(dq, batch, &ranges).into_iter();
        let parts = parts.zip(split(dkv, batch, &ranges));
        self.threads
            .each(ranges.iter().zip(parts).collect(), |(range, (dq, dkv))| {
                let lengths = lengths_of(&lengths, range);
                let [q, kv, statistics, dy] = inputs.map(|values| part(values, batch, range));
                let known = (statistics, format);
                let shape = of_sequences(shape, range);
                shape.backward([q, kv], lengths, known, dy, [dq, dkv]);
            });
    }

    fn embed(
        &self,
        EmbedKernel {
            tokens,
            vectors,
            positions,
            y,
            width,
        }: EmbedKernel<OnHost<'_>>,
    ) {
        let width = width.max(1);
        let count = vectors.len() / width;
        let rows = y.chunks_exact_mut(width);
        let positions = positions.chunks_exact(width).cycle();
        for ((to, value), position) in rows.zip(tokens).zip(positions) {
            let vector = &vectors[token(*value, count) * width..][..width];
            for ((to, vector), position) in to.iter_mut().zip(vector).zip(position) {
                *to = vector + position;
            }
        }
    }

    fn embed_rows(
        &self,
        EmbedRowsKernel {
            tokens,
            table,
            y,
            rows,
        }: EmbedRowsKernel<OnHost<'_>>,
    ) {
        let width = rows.width.max(1);
        let own = rows.first..rows.first + table.len() / width;
        let to = y.chunks_exact_mut(width);
        for (to, value) in to.zip(tokens) {
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
        EmbedRowsGradientKernel {
            tokens,
            dy,
            gradient,
            rows,
        }: EmbedRowsGradientKernel<OnHost<'_>>,
    ) {
        let width = rows.width.max(1);
        gradient.fill(0.0);
        let own = rows.first..rows.first + gradient.len() / width;
        for (value, row) in tokens.iter().zip(dy.chunks_exact(width)) {
            let number = token(*value, rows.count);
            if own.contains(&number) {
                add_to(&mut gradient[(number - own.start) * width..][..width], row);
            }
        }
    }

    fn embed_gradient(
        &self,
        EmbedGradientKernel {
            tokens,
            dy,
            of_vectors,
            of_positions,
            width,
        }: EmbedGradientKernel<OnHost<'_>>,
    ) {
        let width = width.max(1);
        of_positions.fill(0.0);
        for sample in dy.chunks_exact(of_positions.len().max(1)) {
            add_to(of_positions, sample);
        }
        of_vectors.fill(0.0);
        let count = of_vectors.len() / width;
        for (value, row) in tokens.iter().zip(dy.chunks_exact(width)) {
            let to = &mut of_vectors[token(*value, count) * width..][..width];
            to.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
    }
}
