//! Metadata in the chunks of PNG and WebP images.

use std::io::Read;

use flate2::Crc;
use flate2::read::ZlibDecoder;

use super::orientation::Orientation;

/// The maximum bytes of decompressed text.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// The keyword of XMP data in a PNG.
const XMP: &[u8] = b"XML:com.adobe.xmp";
/// The keyword with which ImageMagick stores EXIF data as text in a PNG.
const RAW_EXIF: &[u8] = b"Raw profile type exif";

/// Returns the orientation of a PNG; `None` if its end is missing, where metadata may be.
pub(super) fn png_orientation(bytes: &[u8]) -> Option<Orientation> {
    let (mut exif, mut raw, mut xmp) = (None, None, Vec::new());
    let mut rest = bytes.get(8..).unwrap_or_default();
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (chunk, sum) = after.split_at_checked(4 + u32::from_be_bytes(*length) as usize)?;
        let (kind, content) = chunk.split_at(4);
        match kind {
            b"IEND" => break,
            b"eXIf" if is_intact(chunk, sum) => exif = Some(content.to_vec()),
            b"tEXt" | b"zTXt" | b"iTXt" => match text(kind, content) {
                Some((XMP, text)) if is_intact(chunk, sum) => xmp = text,
                Some((RAW_EXIF, text)) if is_intact(chunk, sum) => raw = from_hex(&text),
                _ => {}
            },
            _ => {}
        }
        rest = sum.get(4..).unwrap_or_default();
    }
    Some(Orientation::of(&exif.or(raw).unwrap_or_default(), &xmp))
}

/// Returns whether the sum after a chunk is that of its kind and content.
fn is_intact(chunk: &[u8], sum: &[u8]) -> bool {
    let mut crc = Crc::new();
    crc.update(chunk);
    sum.starts_with(&crc.sum().to_be_bytes())
}

/// Returns keyword and text of a text chunk.
fn text<'a>(kind: &[u8], content: &'a [u8]) -> Option<(&'a [u8], Vec<u8>)> {
    let (keyword, rest) = at_zero(content)?;
    if ![XMP, RAW_EXIF].contains(&keyword) {
        return None;
    }
    let (is_compressed, text) = match (kind, rest) {
        (b"tEXt", text) => (false, text),
        (b"zTXt", [0, text @ ..]) => (true, text),
        (b"iTXt", [flag, 0, rest @ ..]) => {
            let (_, rest) = at_zero(rest)?;
            (*flag != 0, at_zero(rest)?.1)
        }
        _ => return None,
    };
    if !is_compressed {
        return Some((keyword, text.to_vec()));
    }
    let mut unpacked = Vec::new();
    let mut reader = ZlibDecoder::new(text).take(TEXT_BYTES_MAX);
    reader.read_to_end(&mut unpacked).ok()?;
    Some((keyword, unpacked))
}

/// Splits at the first zero, which belongs to neither part.
fn at_zero(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Returns the bytes of a raw profile: hexadecimal digits after three lines.
fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.split(|byte| *byte == b'\n').skip(3);
    let digits: Vec<u8> = lines
        .flatten()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| (*byte as char).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| high << 4 | low);
    rest.is_empty().then(|| bytes.collect())
}

/// Returns the orientation of a WebP; `None` if its end is missing with metadata that its header announces. Other metadata do
/// not count, as in libwebp.
pub(super) fn webp_orientation(bytes: &[u8]) -> Option<Orientation> {
    const EXIF_FLAG: u8 = 0x08;
    const XMP_FLAG: u8 = 0x04;
    let (mut exif, mut xmp): (Option<&[u8]>, Option<&[u8]>) = (None, None);
    let mut flags = 0;
    let mut rest = bytes.get(12..).unwrap_or_default();
    while let Some((header, after)) = rest.split_first_chunk::<8>() {
        let (kind, length) = header.split_at(4);
        let length = length
            .first_chunk()
            .map_or(0, |four| u32::from_le_bytes(*four)) as usize;
        let Some(content) = after.get(..length) else {
            break;
        };
        match kind {
            b"VP8X" => flags = content.first().copied().unwrap_or(0),
            b"EXIF" if flags & EXIF_FLAG != 0 => exif = exif.or(Some(content)),
            b"XMP " if flags & XMP_FLAG != 0 => xmp = xmp.or(Some(content)),
            _ => {}
        }
        // Chunks are padded to even lengths.
        rest = after.get(length + length % 2..).unwrap_or_default();
    }
    let is_missing =
        flags & EXIF_FLAG != 0 && exif.is_none() || flags & XMP_FLAG != 0 && xmp.is_none();
    let length = u32::from_le_bytes(*bytes.get(4..)?.first_chunk::<4>()?);
    let is_cut_off = (bytes.len() as u64) < u64::from(length) + 8;
    (!is_missing || !is_cut_off)
        .then(|| Orientation::of(exif.unwrap_or_default(), xmp.unwrap_or_default()))
}
