//! Decodes JPEG: YCbCr and grey levels by zune-jpeg alone, other colours from its components, as libjpeg and Pillow do.

use std::borrow::Cow;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::error::ImageError;
use super::pixels::{Channels, PixelSize, SIDE_MAX, level, within};
use crate::picture::{JpegColours, JpegHeader, Orientation};

/// The largest number of passes of a progressive JPEG, which cost time.
const SCANS_MAX: usize = 64;
/// The number of last bytes that are searched for the end marker of a JPEG.
const END_WITHIN: usize = 64 << 10;
/// The marker of a comment, which decoders skip.
const COMMENT: u8 = 0xfe;

/// Decodes a JPEG, and returns its size and orientation.
pub(super) fn jpeg(
    encoded: &[u8],
    (channels, pixels_max): (Channels, u64),
    out: &mut Vec<u8>,
) -> Result<(PixelSize, Orientation), ImageError> {
    let header = JpegHeader::parse(encoded).ok_or_else(|| failed(&"the header is missing"))?;
    let colours = header
        .colours()
        .ok_or_else(|| failed(&"unsupported colours"))?;
    let size = match is_known(&header, colours) {
        true => {
            let space = match channels {
                Channels::Grey => ColorSpace::Luma,
                Channels::Rgb => ColorSpace::RGB,
            };
            decode(encoded, space, pixels_max, out)?
        }
        false => {
            let size = decode(&plain(encoded, &header), space(&header), pixels_max, out)?;
            convert(out, colours, channels);
            size
        }
    };
    Ok((size, header.orientation()))
}

fn failed(cause: &dyn std::fmt::Display) -> ImageError {
    ImageError::Undecodable {
        kind: "JPEG image",
        cause: cause.to_string(),
    }
}

/// Returns whether zune-jpeg finds the same colours and converts them. It knows no other transformation than 1 for three
/// components, and gives the components the meaning of their names even in JFIF files.
fn is_known(header: &JpegHeader, colours: JpegColours) -> bool {
    match colours {
        JpegColours::Grey => header.adobe.is_none(),
        JpegColours::YCbCr => {
            matches!(header.adobe, None | Some(1)) && header.components != *b"RGB"
        }
        JpegColours::Rgb | JpegColours::Cmyk | JpegColours::Ycck => false,
    }
}

/// Returns the image without Adobe's segments, which change the meaning of the components.
fn plain<'a>(encoded: &'a [u8], header: &JpegHeader) -> Cow<'a, [u8]> {
    let mut encoded = Cow::Borrowed(encoded);
    for &marker in &header.adobe_at {
        encoded.to_mut()[marker + 1] = COMMENT;
    }
    encoded
}

/// Returns the colours that the decoder supposes without Adobe's segments, and therefore does not convert.
fn space(header: &JpegHeader) -> ColorSpace {
    match &header.components[..] {
        [_] => ColorSpace::Luma,
        b"RGB" => ColorSpace::RGB,
        [_, _, _] => ColorSpace::YCbCr,
        _ => ColorSpace::CMYK,
    }
}

fn decode(
    encoded: &[u8],
    space: ColorSpace,
    pixels_max: u64,
    out: &mut Vec<u8>,
) -> Result<PixelSize, ImageError> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(space)
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
    let bytes = pixels.width as usize * pixels.height as usize * space.num_components();
    if decoder.output_buffer_size() != Some(bytes) {
        return Err(failed(&"unsupported colours"));
    }
    out.resize(bytes, 0);
    decoder.decode_into(out).map_err(|error| failed(&error))?;
    Ok(pixels)
}

/// Converts components to colours or grey levels, in the same memory.
fn convert(out: &mut Vec<u8>, colours: JpegColours, channels: Channels) {
    match colours {
        JpegColours::Grey => match channels {
            Channels::Grey => {}
            Channels::Rgb => *out = out.iter().flat_map(|grey| [*grey; 3]).collect(),
        },
        JpegColours::Rgb => each_pixel(out, channels, |rgb: &[u8; 3]| *rgb),
        JpegColours::YCbCr => each_pixel(out, channels, |stored: &[u8; 3]| rgb_of_ycbcr(*stored)),
        JpegColours::Cmyk => each_pixel(out, channels, |stored: &[u8; 4]| rgb_of_cmyk(*stored)),
        JpegColours::Ycck => each_pixel(out, channels, |&[y, cb, cr, black]: &[u8; 4]| {
            let [red, green, blue] = rgb_of_ycbcr([y, cb, cr]);
            rgb_of_cmyk([255 - red, 255 - green, 255 - blue, black])
        }),
    }
}

/// Replaces pixels of `N` components by pixels of as many or fewer.
fn each_pixel<const N: usize>(
    out: &mut Vec<u8>,
    channels: Channels,
    rgb: impl Fn(&[u8; N]) -> [u8; 3],
) {
    let (pixels, each) = (out.len() / N, channels.count());
    for pixel in 0..pixels {
        let mut stored = [0; N];
        stored.copy_from_slice(&out[pixel * N..][..N]);
        let rgb = rgb(&stored);
        let grey = [level(&rgb)];
        out[pixel * each..][..each].copy_from_slice(match channels {
            Channels::Grey => &grey,
            Channels::Rgb => &rgb,
        });
    }
    out.truncate(pixels * each);
}

/// Returns the colour of YCbCr components (ITU-T T.871, section 7), rounded as libjpeg does.
fn rgb_of_ycbcr(stored: [u8; 3]) -> [u8; 3] {
    let [y, cb, cr] = stored.map(i32::from);
    let (cb, cr) = (cb - 128, cr - 128);
    let half = 1 << 15;
    let red = y + ((91_881 * cr + half) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
    let blue = y + ((116_130 * cb + half) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

/// Returns the colour of stored CMYK components as Pillow does: inverted, as Adobe's programs store them.
fn rgb_of_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = i32::from(black);
    [cyan, magenta, yellow].map(|stored| {
        let product = (255 - i32::from(stored)) * light + 128;
        let ink = ((product >> 8) + product) >> 8;
        (light - ink).clamp(0, 255) as u8
    })
}
