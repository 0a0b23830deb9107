//! Rounding to short formats, and storage in 2 bytes.

use ronde_kernels::ShortFormat;

use super::operands::kernels;

kernels! {
    /// Rounding to short formats, and storage in 2 bytes.
    FormatKernels {
        /// Rounds values in place. Values beyond the greatest of the format become infinite; NaN remains NaN.
        RoundKernel as Round, "round" {
            update values,
            ;
            /// The format.
            format: ShortFormat,
        }

        /// Packs values, rounded, in [`ShortFormat::packed_length`] floats, whose bits have an order that the device chooses
        /// within each [`ShortFormat::GROUP`]: ranges of whole groups, and the last one, are packed and unpacked apart.
        PackKernel as Pack, "pack" {
            read values,
            write packed,
            ;
            /// The format.
            format: ShortFormat,
        }

        /// Writes packed values as f32.
        UnpackKernel as Unpack, "unpack" {
            read packed,
            write values,
            ;
            /// The format.
            format: ShortFormat,
        }
    }
}
