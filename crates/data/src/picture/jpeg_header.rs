//! [`JpegHeader`]: the segments of a JPEG before its pixels.

use super::orientation::Orientation;

/// The frame and the metadata of a JPEG.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JpegHeader {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// The identifiers of the components.
    pub(crate) components: Vec<u8>,
    /// Whether a JFIF segment exists.
    pub(crate) is_jfif: bool,
    /// Adobe's number of the transformation of colours, and the positions of the markers of Adobe's segments.
    pub(crate) adobe: Option<u8>,
    pub(crate) adobe_at: Vec<usize>,
    exif: Vec<u8>,
    xmp: Vec<u8>,
}

/// The meaning of the components of a JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JpegColours {
    Grey,
    YCbCr,
    Rgb,
    Cmyk,
    /// CMYK whose first three components are stored as YCbCr.
    Ycck,
}

impl JpegHeader {
    /// Parses the segments up to the pixels; `None` if no frame is found.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        let mut at = 2;
        loop {
            // Decoders skip other bytes before a marker, and padding.
            while *bytes.get(at)? != 0xff {
                at += 1;
            }
            while *bytes.get(at)? == 0xff {
                at += 1;
            }
            let (marker, kind) = (at - 1, bytes[at]);
            at += 1;
            match kind {
                0x00 | 0x01 | 0xd0..=0xd8 => continue,
                0xd9 | 0xda => return header.found(),
                _ => {}
            }
            let length = bytes.get(at..)?.first_chunk::<2>();
            let end = length.map(|length| at + usize::from(u16::from_be_bytes(*length)));
            match end.and_then(|end| bytes.get(at + 2..end)) {
                Some(segment) => header.add(marker, kind, segment)?,
                // The last segment is incomplete.
                None => return header.found(),
            }
            at = end?;
        }
    }

    fn found(self) -> Option<Self> {
        (!self.components.is_empty()).then_some(self)
    }

    fn add(&mut self, marker: usize, kind: u8, segment: &[u8]) -> Option<()> {
        const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
        match kind {
            0xe0 if segment.starts_with(b"JFIF\0") => self.is_jfif = true,
            // Long metadata are continued in further segments.
            0xe1 if segment.starts_with(b"Exif\0\0") => self.exif.extend(&segment[6..]),
            0xe1 if segment.starts_with(XMP) => self.xmp = segment[XMP.len()..].to_vec(),
            0xee if segment.starts_with(b"Adobe") && segment.len() >= 12 => {
                self.adobe = Some(segment[11]);
                self.adobe_at.push(marker);
            }
            0xc0..=0xcf if !matches!(kind, 0xc4 | 0xc8 | 0xcc) => {
                let (&[_, h1, h0, w1, w0, _], components) = segment.split_first_chunk::<6>()?;
                self.height = u32::from(u16::from_be_bytes([h1, h0]));
                self.width = u32::from(u16::from_be_bytes([w1, w0]));
                self.components = components.chunks(3).map(|component| component[0]).collect();
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the orientation in the metadata.
    pub(crate) fn orientation(&self) -> Orientation {
        Orientation::of(&self.exif, &self.xmp)
    }

    /// Returns the meaning of the components, by the rules of libjpeg (`default_decompress_parms`); `None` for other numbers of
    /// components.
    #[cfg_attr(
        not(feature = "full"),
        expect(dead_code, reason = "only the decoder of images uses it")
    )]
    pub(crate) fn colours(&self) -> Option<JpegColours> {
        match (self.components.len(), self.adobe) {
            (1, _) => Some(JpegColours::Grey),
            (3, _) if self.is_jfif => Some(JpegColours::YCbCr),
            (3, Some(0)) => Some(JpegColours::Rgb),
            (3, Some(_)) => Some(JpegColours::YCbCr),
            (3, None) if self.components == *b"RGB" => Some(JpegColours::Rgb),
            (3, None) => Some(JpegColours::YCbCr),
            (4, None | Some(0)) => Some(JpegColours::Cmyk),
            (4, Some(_)) => Some(JpegColours::Ycck),
            _ => None,
        }
    }
}
