//! [`PixelSize`]: decodes JPEG, PNG and WebP within limits.

use std::io::Cursor;

use fast_image_resize::PixelType;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The largest number of pixels of an image: 192 MiB in colour.
pub(in crate::decode) const PIXELS_MAX: u64 = 1 << 26;
/// The largest side of an image, in pixels.
const SIDE_MAX: u32 = 1 << 15;
/// The largest number of passes of a progressive JPEG, each of which costs time.
const SCANS_MAX: usize = 64;
/// The number of last bytes that are searched for the end marker of a JPEG.
const END_WITHIN: usize = 64 << 10;

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
    /// Decodes an image of at most `pixels_max` pixels into `out`. Its first bytes determine the file format.
    pub(in crate::decode) fn decode(
        encoded: &[u8],
        channels: Channels,
        pixels_max: u64,
        out: &mut Vec<u8>,
    ) -> Result<Self, String> {
        let form = (channels, pixels_max);
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
            _ => Err("not a JPEG, PNG or WebP image".to_owned()),
        }
    }
}

fn within(width: u32, height: u32, pixels_max: u64) -> Result<PixelSize, String> {
    let is_within = width <= SIDE_MAX && height <= SIDE_MAX;
    if u64::from(width) * u64::from(height) > pixels_max || !is_within || width * height == 0 {
        return Err(format!(
            "cannot decode an image of {width} x {height} pixels: the limits are {pixels_max} pixels and {SIDE_MAX} per side"
        ));
    }
    Ok(PixelSize { width, height })
}

fn jpeg(
    encoded: &[u8],
    (channels, pixels_max): (Channels, u64),
    out: &mut Vec<u8>,
) -> Result<PixelSize, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot decode the JPEG image: {error}");
    let colours = match channels {
        Channels::Grey => ColorSpace::Luma,
        Channels::Rgb => ColorSpace::RGB,
    };
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(colours)
        .jpeg_set_max_scans(SCANS_MAX)
        .set_max_width(SIDE_MAX as usize)
        .set_max_height(SIDE_MAX as usize);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(encoded), options);
    decoder.decode_headers().map_err(|error| failed(&error))?;
    let info = decoder
        .info()
        .ok_or_else(|| failed(&"the header is missing"))?;
    let pixels = within(u32::from(info.width), u32::from(info.height), pixels_max)?;
    // The decoder fills missing parts with grey.
    let end = &encoded[encoded.len().saturating_sub(END_WITHIN)..];
    if !end.windows(2).rev().any(|pair| pair == [0xff, 0xd9]) {
        return Err(failed(&"the end marker is missing"));
    }
    let bytes = pixels.width as usize * pixels.height as usize * channels.count();
    if decoder.output_buffer_size() != Some(bytes) {
        return Err(failed(&"unsupported colours"));
    }
    out.resize(bytes, 0);
    decoder.decode_into(out).map_err(|error| failed(&error))?;
    Ok(pixels)
}

/// Converts to grey levels with the weights that JPEG and Pillow use (ITU-R BT.601).
fn grey(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_color() {
        return image.into_luma8().into_raw();
    }
    let rgb = image.into_rgb8().into_raw();
    let level = |pixel: &[u8; 3]| {
        let [red, green, blue] = pixel.map(u32::from);
        ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
    };
    rgb.as_chunks::<3>().0.iter().map(level).collect()
}

fn other(
    encoded: &[u8],
    format: ImageFormat,
    (channels, pixels_max): (Channels, u64),
    out: &mut Vec<u8>,
) -> Result<PixelSize, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot decode the image: {error}");
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
    let image = DynamicImage::from_decoder(decoder).map_err(|error| failed(&error))?;
    *out = match channels {
        Channels::Grey => grey(image),
        Channels::Rgb => image.into_rgb8().into_raw(),
    };
    Ok(pixels)
}
