//! [`PixelSize`]: decodes JPEG, PNG and WebP within limits, and turns the pixels as they are shown.

use std::io::Cursor;

use fast_image_resize::PixelType;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::error::ImageError;
use super::jpeg::jpeg;
use super::turn::turn;
use crate::picture::Orientation;

/// The largest number of pixels of an image: 192 MiB in colour.
pub(in crate::decode) const PIXELS_MAX: u64 = 1 << 26;
/// The largest side of an image, in pixels.
pub(super) const SIDE_MAX: u32 = 1 << 15;

/// The channels of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) enum Channels {
    /// One grey level.
    Grey,
    /// Red, green, blue.
    Rgb,
}

impl Channels {
    pub(in crate::decode) fn count(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }

    pub(super) fn pixel_type(self) -> PixelType {
        match self {
            Self::Grey => PixelType::U8,
            Self::Rgb => PixelType::U8x3,
        }
    }
}

/// The size of a decoded image, whose bytes are in reusable memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) struct PixelSize {
    pub(in crate::decode) width: u32,
    pub(in crate::decode) height: u32,
}

impl PixelSize {
    /// Decodes an image of at most `pixels_max` pixels into `out`, as it is shown. Its first bytes determine the file format.
    /// `turned` is memory for images that are stored in another orientation.
    pub(in crate::decode) fn decode(
        encoded: &[u8],
        channels: Channels,
        pixels_max: u64,
        out: &mut Vec<u8>,
        turned: &mut Vec<u8>,
    ) -> Result<Self, ImageError> {
        let form = (channels, pixels_max);
        let (stored, orientation) = Self::decode_stored(encoded, form, out)?;
        if orientation == Orientation::UPRIGHT {
            return Ok(stored);
        }
        turn(out, stored, channels, orientation, turned);
        std::mem::swap(out, turned);
        let (width, height) = orientation.shown_size((stored.width, stored.height));
        Ok(Self { width, height })
    }

    /// Decodes the stored pixels, and returns their orientation.
    fn decode_stored(
        encoded: &[u8],
        form: (Channels, u64),
        out: &mut Vec<u8>,
    ) -> Result<(Self, Orientation), ImageError> {
        match encoded {
            [0xff, 0xd8, ..] => jpeg(encoded, form, out),
            [0x89, b'P', b'N', b'G', ..] => other(encoded, ImageFormat::Png, form, out),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => other(encoded, ImageFormat::WebP, form, out),
            _ => Err(ImageError::UnknownFormat),
        }
    }
}

/// Checks the size of an image.
pub(super) fn within(width: u32, height: u32, pixels_max: u64) -> Result<PixelSize, ImageError> {
    let is_within = width <= SIDE_MAX && height <= SIDE_MAX;
    if u64::from(width) * u64::from(height) > pixels_max || !is_within || width * height == 0 {
        return Err(ImageError::Size {
            width,
            height,
            pixels_max,
            side_max: SIDE_MAX,
        });
    }
    Ok(PixelSize { width, height })
}

/// Converts to grey levels with the weights that JPEG and Pillow use (ITU-R BT.601).
fn grey(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_color() {
        return image.into_luma8().into_raw();
    }
    let rgb = image.into_rgb8().into_raw();
    rgb.as_chunks::<3>().0.iter().map(level).collect()
}

/// Returns the grey level of a colour.
pub(super) fn level(pixel: &[u8; 3]) -> u8 {
    let [red, green, blue] = pixel.map(u32::from);
    ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
}

fn other(
    encoded: &[u8],
    format: ImageFormat,
    (channels, pixels_max): (Channels, u64),
    out: &mut Vec<u8>,
) -> Result<(PixelSize, Orientation), ImageError> {
    let failed = |cause: &dyn std::fmt::Display| ImageError::Undecodable {
        kind: "image",
        cause: cause.to_string(),
    };
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    // Room for four channels of 16 bits, twice.
    limits.max_alloc = Some(pixels_max.saturating_mul(16));
    let mut reader = ImageReader::with_format(Cursor::new(encoded), format);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|error| failed(&error))?;
    let (width, height) = decoder.dimensions();
    let pixels = within(width, height, pixels_max)?;
    let orientation =
        Orientation::of_image(encoded).ok_or_else(|| failed(&"the end of the file is missing"))?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| failed(&error))?;
    *out = match channels {
        Channels::Grey => grey(image),
        Channels::Rgb => image.into_rgb8().into_raw(),
    };
    Ok((pixels, orientation))
}
