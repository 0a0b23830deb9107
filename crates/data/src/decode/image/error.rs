//! [`ImageError`]: why an image cannot be decoded.

/// The reason why an image cannot be decoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The buffer has another length than the features.
    #[error("a buffer of {elements} elements does not fit {features} features")]
    Buffer {
        /// The elements of the buffer.
        elements: usize,
        /// The features of an image.
        features: usize,
    },
    /// The first bytes are those of no supported format.
    #[error("not a JPEG, PNG or WebP image")]
    UnknownFormat,
    /// The image has no pixels or too many.
    #[error(
        "cannot decode an image of {width} x {height} pixels: the limits are {pixels_max} pixels and {side_max} per side"
    )]
    Size {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The largest number of pixels.
        pixels_max: u64,
        /// The largest side, in pixels.
        side_max: u32,
    },
    /// The image is damaged, or of a kind that is not supported.
    #[error("cannot decode the {kind}: {cause}")]
    Undecodable {
        /// The kind of image.
        kind: &'static str,
        /// The cause.
        cause: String,
    },
    /// The pixels cannot be resized.
    #[error("cannot resize the image of {width} x {height} pixels: {cause}")]
    Resize {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
        /// The cause.
        cause: String,
    },
}
