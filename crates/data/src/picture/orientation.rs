//! [`Orientation`]: how the pixels of an image are turned, from its EXIF or XMP metadata.
//!
//! Source: CIPA DC-008 (EXIF 2.32), section 4.6.4, tag 274, and TIFF 6.0. What Pillow's `exif_transpose` accepts is accepted.
//!
//! One number is read from one directory. The crate `image` refuses the kinds of numbers, XMP and PNG texts that Pillow accepts.

/// The tag of the orientation in the first directory.
const TAG: u16 = 274;
/// The bytes of an entry of a directory.
const ENTRY_BYTES: usize = 12;
/// The identifier that precedes a TIFF structure in some files.
const IDENTIFIER: &[u8] = b"Exif\0\0";

/// The orientation of an image, 1 to 8, as EXIF counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

impl Orientation {
    /// Pixels that are stored as they are shown.
    pub(crate) const UPRIGHT: Self = Self(1);

    /// Returns the orientation with this number. Other numbers than 1 to 8 mean upright, as in Pillow.
    pub(crate) fn new(number: i64) -> Self {
        match number {
            1..=8 => Self(number as u8),
            _ => Self::UPRIGHT,
        }
    }

    /// Returns the orientation that metadata specify. XMP counts only without the tag in EXIF. Damaged metadata are ignored.
    pub(super) fn of(exif: &[u8], xmp: &[u8]) -> Self {
        exif_number(exif)
            .or_else(|| xmp_number(xmp))
            .map_or(Self::UPRIGHT, Self::new)
    }

    /// Returns whether rows of the stored image are shown as columns.
    pub(crate) fn swaps_sides(self) -> bool {
        self.0 >= 5
    }

    /// Returns whether the last stored row is shown first.
    #[cfg_attr(
        not(feature = "full"),
        expect(dead_code, reason = "only the decoder of images uses it")
    )]
    pub(crate) fn flips_rows(self) -> bool {
        matches!(self.0, 3 | 4 | 6 | 7)
    }

    /// Returns whether the last stored column is shown first.
    #[cfg_attr(
        not(feature = "full"),
        expect(dead_code, reason = "only the decoder of images uses it")
    )]
    pub(crate) fn flips_columns(self) -> bool {
        matches!(self.0, 2 | 3 | 7 | 8)
    }

    /// Returns width and height of the shown image.
    pub(crate) fn shown_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        match self.swaps_sides() {
            true => (height, width),
            false => (width, height),
        }
    }
}

/// The bytes of a TIFF structure with their order.
struct Tiff<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> Tiff<'a> {
    /// Checks the header. The two wrong ones that Pillow accepts are accepted.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let is_big_endian = match bytes.first_chunk::<4>()? {
            b"MM\0*" | b"MM*\0" => true,
            b"II*\0" | b"II\0*" => false,
            _ => return None,
        };
        Some(Self {
            bytes,
            is_big_endian,
        })
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = *self.bytes.get(at..)?.first_chunk::<N>()?;
        if !self.is_big_endian {
            bytes.reverse();
        }
        Some(bytes)
    }

    fn short(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn long(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// Returns the value of an entry: the first integer; 0 for a value of another type, which is no orientation. `None` without
    /// a value.
    fn value(&self, entry: usize) -> Option<i64> {
        let kind = self.short(entry + 2)?;
        let width: usize = match kind {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16 => 8,
            _ => return None,
        };
        let bytes = width.checked_mul(self.long(entry + 4)? as usize)?;
        let at = match bytes {
            0 => return None,
            1..=4 => entry + 8,
            _ => self.long(entry + 8)? as usize,
        };
        self.bytes.get(at..at.checked_add(bytes)?)?;
        match kind {
            3 => self.short(at).map(i64::from),
            4 | 13 => self.long(at).map(i64::from),
            6 => self
                .array(at)
                .map(|bytes| i64::from(i8::from_be_bytes(bytes))),
            8 => self
                .array(at)
                .map(|bytes| i64::from(i16::from_be_bytes(bytes))),
            9 => self
                .array(at)
                .map(|bytes| i64::from(i32::from_be_bytes(bytes))),
            _ => Some(0),
        }
    }
}

/// Returns the number of the tag in EXIF data. The last of several entries counts; bytes after a truncation do not.
fn exif_number(mut exif: &[u8]) -> Option<i64> {
    for _ in 0..2 {
        exif = exif.strip_prefix(IDENTIFIER).unwrap_or(exif);
    }
    let tiff = Tiff::new(exif)?;
    let directory = tiff.long(4)? as usize;
    let entries = usize::from(tiff.short(directory)?);
    let mut found = None;
    for number in 0..entries {
        let entry = directory + 2 + number * ENTRY_BYTES;
        if exif.len() < entry.saturating_add(ENTRY_BYTES) {
            break;
        }
        if tiff.short(entry) == Some(TAG) {
            found = tiff.value(entry).or(found);
        }
    }
    found
}

/// Returns the digit of the property in XMP data, as an attribute or an element.
fn xmp_number(xmp: &[u8]) -> Option<i64> {
    const NAME: &[u8] = b"tiff:Orientation";
    let mut rest = xmp;
    while let Some(at) = rest.windows(NAME.len()).position(|part| part == NAME) {
        rest = &rest[at + NAME.len()..];
        let value = rest.strip_prefix(b"=\"").or(rest.strip_prefix(b">"));
        if let Some(digit @ b'0'..=b'9') = value.and_then(|value| value.first()) {
            return Some(i64::from(digit - b'0'));
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns EXIF data with one entry of a type and value in both byte orders.
    pub(crate) fn exif(kind: u16, count: u32, value: [u8; 4], is_big_endian: bool) -> Vec<u8> {
        let mut bytes = IDENTIFIER.to_vec();
        let mut put = |field: &[u8]| match is_big_endian {
            true => bytes.extend(field),
            false => bytes.extend(field.iter().rev()),
        };
        match is_big_endian {
            true => put(b"MM"),
            false => put(b"II"),
        }
        put(&42_u16.to_be_bytes());
        put(&8_u32.to_be_bytes());
        put(&1_u16.to_be_bytes());
        put(&TAG.to_be_bytes());
        put(&kind.to_be_bytes());
        put(&count.to_be_bytes());
        bytes.extend(value);
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn the_tag_is_read_in_both_byte_orders_and_other_values_mean_upright() {
        let of = |exif: &[u8]| Orientation::of(exif, b"").0;
        for number in 0..=9_u8 {
            let expected = if (1..=8).contains(&number) { number } else { 1 };
            assert_eq!(of(&exif(3, 1, [0, number, 0, 0], true)), expected);
            assert_eq!(of(&exif(3, 1, [number, 0, 0, 0], false)), expected);
            assert_eq!(of(&exif(4, 1, [number, 0, 0, 0], false)), expected);
            assert_eq!(of(&exif(9, 1, [0, 0, 0, number], true)), expected);
        }
        // A byte, a text, no value, a negative value, and a value beyond the end.
        assert_eq!(of(&exif(1, 1, [6, 0, 0, 0], false)), 1);
        assert_eq!(of(&exif(2, 2, [b'6', 0, 0, 0], false)), 1);
        assert_eq!(of(&exif(3, 0, [6, 0, 0, 0], false)), 1);
        assert_eq!(of(&exif(8, 1, [0xfa, 0xff, 0, 0], false)), 1);
        assert_eq!(of(&exif(3, 9000, [6, 0, 0, 0], false)), 1);
        assert_eq!(of(&exif(99, 1, [6, 0, 0, 0], false)), 1);
        // The first of several numbers, without the identifier and with two.
        let two = exif(3, 2, [6, 0, 3, 0], false);
        let doubled = [IDENTIFIER, &two[..]].concat();
        assert_eq!([of(&two), of(&two[6..]), of(&doubled)], [6; 3]);
    }

    #[test]
    fn damaged_metadata_are_ignored() {
        let whole = exif(3, 1, [6, 0, 0, 0], false);
        for at in 0..whole.len() {
            let cut = Orientation::of(&whole[..at], b"").0;
            assert_eq!(cut, if at >= 28 { 6 } else { 1 }, "{at}");
            for value in 0..=255 {
                let mut damaged = whole.clone();
                damaged[at] = value;
                assert!((1..=8).contains(&Orientation::of(&damaged, b"").0));
            }
        }
    }

    #[test]
    fn xmp_counts_without_the_tag() {
        let xmp = b"<rdf tiff:Orientation='x' tiff:Orientation=\"6\"/>";
        assert_eq!(Orientation::of(b"", xmp).0, 6);
        assert_eq!(
            Orientation::of(b"", b"<tiff:Orientation>8</tiff:Orientation>").0,
            8
        );
        assert_eq!(Orientation::of(&exif(3, 1, [3, 0, 0, 0], false), xmp).0, 3);
        assert_eq!(Orientation::of(&exif(3, 1, [0, 0, 0, 0], false), xmp).0, 1);
    }
}
