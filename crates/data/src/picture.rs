//! [`Picture`]: the format, size and orientation of an encoded image, from its header and metadata.

mod chunks;
mod jpeg_header;
mod orientation;

#[cfg(feature = "full")]
pub(crate) use jpeg_header::JpegColours;
pub(crate) use jpeg_header::JpegHeader;
pub(crate) use orientation::Orientation;

/// The format and size of an encoded image as it is shown: turned as its EXIF or XMP metadata specify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// `JPEG`, `PNG` or `WEBP`.
    pub kind: &'static str,
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
}

impl Picture {
    /// Parses the header and metadata of an image; `None` for other data. Decodes no pixels.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let stored = Self::stored(bytes)?;
        let orientation = Orientation::of_image(bytes).unwrap_or(Orientation::UPRIGHT);
        let (width, height) = orientation.shown_size((stored.width, stored.height));
        Some(Self {
            width,
            height,
            ..stored
        })
    }

    /// Returns the format and the size of the stored pixels.
    fn stored(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xd8, ..] => {
                let header = JpegHeader::parse(bytes)?;
                Some(Self {
                    kind: "JPEG",
                    width: header.width,
                    height: header.height,
                })
            }
            [0x89, b'P', b'N', b'G', ..] => {
                let width = bytes.get(16..20)?.first_chunk::<4>()?;
                let height = bytes.get(20..24)?.first_chunk::<4>()?;
                Some(Self {
                    kind: "PNG",
                    width: u32::from_be_bytes(*width),
                    height: u32::from_be_bytes(*height),
                })
            }
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
                rest @ ..,
            ] => webp(rest),
            _ => None,
        }
    }
}

impl Orientation {
    /// Returns the orientation of an encoded image; `None` if the part with its metadata may be missing.
    pub(crate) fn of_image(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xd8, ..] => JpegHeader::parse(bytes).map(|header| header.orientation()),
            [0x89, b'P', b'N', b'G', ..] => chunks::png_orientation(bytes),
            [b'R', b'I', b'F', b'F', ..] => chunks::webp_orientation(bytes),
            _ => Some(Self::UPRIGHT),
        }
    }
}

fn webp(rest: &[u8]) -> Option<Picture> {
    let little = |at: usize| {
        let four = rest.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*four))
    };
    let (width, height) = match rest.get(..4)? {
        b"VP8 " => {
            let both = little(14)?;
            (both & 0x3fff, both >> 16 & 0x3fff)
        }
        b"VP8L" => {
            let both = little(9)?;
            ((both & 0x3fff) + 1, (both >> 14 & 0x3fff) + 1)
        }
        b"VP8X" => ((little(12)? & 0xff_ffff) + 1, (little(14)? >> 8) + 1),
        _ => return None,
    };
    Some(Picture {
        kind: "WEBP",
        width,
        height,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_and_size_are_found_without_decoding() {
        let files: [(&[u8], &str); 6] = [
            (include_bytes!("../tests/vectors/pattern.jpg"), "JPEG"),
            (include_bytes!("../tests/vectors/progressive.jpg"), "JPEG"),
            (include_bytes!("../tests/vectors/cmyk.jpg"), "JPEG"),
            (include_bytes!("../tests/vectors/palette.png"), "PNG"),
            (include_bytes!("../tests/vectors/pattern.webp"), "WEBP"),
            (include_bytes!("../tests/vectors/lossless.webp"), "WEBP"),
        ];
        for (bytes, kind) in files {
            let expected = Picture {
                kind,
                width: 64,
                height: 48,
            };
            assert_eq!(Picture::of(bytes), Some(expected));
            // Damaged and truncated images must not panic.
            for at in 0..bytes.len().min(300) {
                let _ = Picture::of(&bytes[..at]);
                let mut damaged = bytes.to_vec();
                damaged[at] = 0xff;
                let _ = Picture::of(&damaged);
            }
        }
        assert_eq!(Picture::of(b"GIF89a"), None);
        assert_eq!(Picture::of(b""), None);
    }
}
