//! [`Picture`]: the format and size of an encoded image, from its first bytes.

/// The format and size of an encoded image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// `JPEG`, `PNG` or `WEBP`.
    pub kind: &'static str,
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
}

fn big_endian(bytes: &[u8], at: usize) -> Option<u32> {
    let two = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u32::from(u16::from_be_bytes(*two)))
}

impl Picture {
    /// Parses the header of an image; `None` for other data. Decodes no pixels.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xd8, rest @ ..] => jpeg(rest),
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

/// Skips segments up to the one with the size.
fn jpeg(mut rest: &[u8]) -> Option<Picture> {
    loop {
        let (&[mark, kind], after) = rest.split_first_chunk::<2>()?;
        if mark != 0xff {
            return None;
        }
        match kind {
            // Padding bytes, and markers without a segment.
            0xff => rest = &rest[1..],
            0x01 | 0xd0..=0xd7 => rest = after,
            0xd9 | 0xda => return None,
            0xc0..=0xcf if !matches!(kind, 0xc4 | 0xc8 | 0xcc) => {
                return Some(Picture {
                    kind: "JPEG",
                    height: big_endian(after, 3)?,
                    width: big_endian(after, 5)?,
                });
            }
            _ => rest = after.get(big_endian(after, 0)? as usize..)?,
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
