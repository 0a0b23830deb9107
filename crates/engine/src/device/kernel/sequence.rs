//! Attention and embeddings.

use ronde_kernels::{Attention, ShortFormat};

use super::operands::kernels;

/// A part of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRows {
    /// The number of elements of a row.
    pub width: usize,
    /// The first row of the part.
    pub first: usize,
    /// The number of rows of the whole table.
    pub count: usize,
}

kernels! {
    /// Attention and embeddings.
    SequenceKernels {
        /// Computes the attention of several heads from queries, and keys and values side by side; writes the statistics of each
        /// query that backward needs, of [`Attention::elements`], whose meaning the device chooses. It keeps no matrix of all
        /// pairs. Without keys the output is zero.
        ///
        /// A score of -infinity has a weight of zero. A score of NaN or infinity, and scores that are all -infinity, make all
        /// weights of their query NaN. Keys and values beyond the length have no effect, whatever they are; those after the
        /// query's token in causal attention have a weight of zero, which may multiply them.
        AttendKernel as Attend, "attend" {
            read queries,
            read keys_values,
            write y,
            write statistics,
            ;
            /// The shape of the attention.
            shape: Attention,
            /// The number of attended keys of each sequence; empty: all.
            lengths: Vec<usize>,
        }

        /// Computes the gradients of queries, and of keys and values, of [`AttendKernel`]. With a format, the weights that are
        /// computed again are rounded to it.
        AttendGradientKernel as AttendGradient, "attend_gradient" {
            read queries,
            read keys_values,
            read statistics,
            read dy,
            write of_queries,
            write of_keys_values,
            ;
            /// The shape of the attention.
            shape: Attention,
            /// The format of the weights.
            format: Option<ShortFormat>,
            /// The number of attended keys of each sequence; empty: all.
            lengths: Vec<usize>,
        }

        /// Writes the sum of the vector of each token and that of its position. Tokens are `[N, T]`, the output `[N, T, width]`.
        /// A number outside the table counts as the nearest one inside, and NaN as 0.
        EmbedKernel as Embed, "embed" {
            read tokens,
            read vectors,
            read positions,
            write y,
            ;
            /// The number of floats of a vector.
            width: usize,
        }

        /// Writes the vector of each token whose row is in a part of a table, and zeros for other tokens. `table` has the rows of
        /// the part. Numbers outside the whole table count as in [`EmbedKernel`].
        EmbedRowsKernel as EmbedRows, "embed_rows" {
            read tokens,
            read table,
            write y,
            ;
            /// The part.
            rows: TableRows,
        }

        /// Writes the gradient of the rows of [`EmbedRowsKernel`], summed in the order of the tokens.
        EmbedRowsGradientKernel as EmbedRowsGradient, "embed_rows_gradient" {
            read tokens,
            read dy,
            write gradient,
            ;
            /// The part.
            rows: TableRows,
        }

        /// Writes the gradients of the vectors and positions of [`EmbedKernel`], summed in the order of the tokens.
        EmbedGradientKernel as EmbedGradient, "embed_gradient" {
            read tokens,
            read dy,
            write of_vectors,
            write of_positions,
            ;
            /// The number of floats of a vector.
            width: usize,
        }
    }
}
