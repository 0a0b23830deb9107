//! Functions of single elements, and copies.

use ronde_kernels::ActivationFunction;

use super::operands::kernels;
use crate::context::ForwardContext;

/// A copy of a part of each row of one buffer to a part of each row of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// The number of floats of a row of the source, and the start of the part.
    pub from: [usize; 2],
    /// The number of floats of a row of the destination, and the start of the part.
    pub to: [usize; 2],
    /// The number of floats of the part.
    pub length: usize,
}

/// The same part of each row of a value, for random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnRows {
    /// The number of elements of a row of the value.
    pub row: usize,
    /// The first element of the part.
    pub first: usize,
    /// The number of elements of the part.
    pub length: usize,
}

impl DrawnRows {
    /// Returns all of a value.
    #[must_use]
    pub fn all(elements: usize) -> Self {
        Self {
            row: elements,
            first: 0,
            length: elements,
        }
    }
}

kernels! {
    /// Functions of single elements, and copies.
    ElementKernels {
        /// Copies values of the same number.
        CopyKernel as Copy, "copy" {
            read from,
            write to,
        }

        /// Sets all values.
        FillKernel as Fill, "fill" {
            write to,
            ;
            /// The value.
            value: f32,
        }

        /// Adds `x` to `y`.
        AddKernel as Add, "add" {
            update y,
            read x,
        }

        /// Adds `x` to `y` as the exact sum over shards does: a NaN becomes the canonical one.
        AddExactKernel as AddExact, "add_exact" {
            update y,
            read x,
        }

        /// Multiplies `y` by `factors`.
        MultiplyByKernel as MultiplyBy, "multiply_by" {
            update y,
            read factors,
        }

        /// Sets negative values to zero; NaN is preserved.
        RectifyKernel as Rectify, "rectify" {
            update y,
        }

        /// Writes zero where the output `y` of a rectifier is zero, else `dy`, also where `y` is NaN.
        RectifyGradientKernel as RectifyGradient, "rectify_gradient" {
            read y,
            read dy,
            write dx,
        }

        /// Writes a function of each element, and its slope if requested. Those of infinite values are limits or NaN.
        ActivateKernel as Activate, "activate" {
            read x,
            write y,
            write_optional slope,
            ;
            /// The function.
            function: ActivationFunction,
        }

        /// Writes the factors of a dropout for a part of each row of a value, one row after the other, as
        /// [`ForwardContext::draw_dropout_from`] does; in evaluation they are 1.
        DrawDropoutKernel as DrawDropout, "draw_dropout" {
            write to,
            ;
            /// The coordinates of the forward pass.
            context: ForwardContext,
            /// The probability of zero.
            probability: f64,
            /// The number of the dropout in its layer.
            index: u64,
            /// The part.
            drawn: DrawnRows,
        }

        /// Copies a part of each row.
        CopyRowsKernel as CopyRows, "copy_rows" {
            read from,
            update to,
            ;
            /// The parts.
            copy: RowCopy,
        }
    }
}
