//! [`NpyHeader`]: the header of a `.npy` file.
//!
//! The header is one line of text. A parser of our own, because existing crates read whole arrays.

use std::borrow::Cow;

use ronde_store::StoredObject;

use super::super::record::NumberType;
use super::error::NpyError;
use crate::error::DataError;

/// The largest number of bytes before a header's text.
const BEFORE_HEADER: usize = 12;
const MAGIC: &[u8] = b"\x93NUMPY";
/// The largest size of a header, in bytes.
pub(super) const HEADER_BYTES_MAX: usize = 64 << 10;
/// The largest number of axes.
pub(super) const AXES_MAX: usize = 32;

/// Returns the numbers of a complete `.npy` file.
pub(crate) fn numbers(file: &[u8]) -> Result<(NumberType, Cow<'_, [u8]>), NpyError> {
    let header = NpyHeader::read(file)?;
    let bytes = header.elements()?.checked_mul(header.dtype.bytes() as u64);
    let numbers = bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .and_then(|bytes| file[header.bytes..].get(..bytes));
    let numbers = numbers.ok_or(NpyError::NumbersCutOff)?;
    Ok((header.dtype, numbers.into()))
}

/// The header of a `.npy` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    /// The type of the numbers.
    pub(crate) dtype: NumberType,
    pub(crate) shape: Vec<u64>,
    /// The number of bytes before the first number.
    pub(crate) bytes: usize,
}

impl NpyHeader {
    /// Parses the header that `file` starts with.
    pub(crate) fn read(file: &[u8]) -> Result<Self, NpyError> {
        let ends = || NpyError::HeaderCutOff;
        let rest = file.strip_prefix(MAGIC).ok_or(NpyError::NotNpy)?;
        let (&[major, _], rest) = rest.split_first_chunk::<2>().ok_or_else(ends)?;
        let (length, before) = match major {
            1 => {
                let (length, _) = rest.split_first_chunk::<2>().ok_or_else(ends)?;
                (usize::from(u16::from_le_bytes(*length)), 2)
            }
            2 | 3 => {
                let (length, _) = rest.split_first_chunk::<4>().ok_or_else(ends)?;
                (u32::from_le_bytes(*length) as usize, 4)
            }
            _ => return Err(NpyError::Version { major }),
        };
        if length > HEADER_BYTES_MAX {
            return Err(NpyError::HeaderLength { bytes: length });
        }
        let text = rest.get(before..before + length).ok_or_else(ends)?;
        let text = std::str::from_utf8(text).map_err(|_| NpyError::HeaderEncoding)?;
        let (dtype, shape) = HeaderParser(text).read()?;
        Ok(Self {
            dtype,
            shape,
            bytes: MAGIC.len() + 2 + before + length,
        })
    }

    /// Reads the header of an array that starts at `start` and occupies at most `bytes` bytes.
    pub(super) fn read_at(
        file: &dyn StoredObject,
        start: u64,
        bytes: u64,
    ) -> Result<Self, DataError> {
        let refused = |problem: NpyError| DataError::format(file.location(), problem);
        let most = (BEFORE_HEADER + HEADER_BYTES_MAX) as u64;
        // Most headers have 128 bytes.
        let mut head = vec![0; bytes.min(256) as usize];
        file.read_at(start, &mut head)?;
        let header = match Self::read(&head) {
            Err(_) if bytes > 256 => {
                head.resize(bytes.min(most) as usize, 0);
                file.read_at(start, &mut head)?;
                Self::read(&head)
            }
            other => other,
        };
        let header = header.map_err(refused)?;
        let numbers = header.elements().map_err(refused)?;
        let needed = numbers.checked_mul(header.dtype.bytes() as u64);
        let needed = needed.and_then(|needed| needed.checked_add(header.bytes as u64));
        if needed != Some(bytes) {
            return Err(refused(NpyError::Length {
                shape: header.shape,
                dtype: header.dtype.name(),
                bytes,
            }));
        }
        Ok(header)
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> Result<u64, NpyError> {
        let mut all = self.shape.iter();
        all.try_fold(1_u64, |product, &axis| product.checked_mul(axis))
            .ok_or_else(|| NpyError::TooManyElements {
                shape: self.shape.clone(),
            })
    }
}

/// The Python dictionary in a header, which always has the form
/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
struct HeaderParser<'a>(&'a str);

impl<'a> HeaderParser<'a> {
    fn read(mut self) -> Result<(NumberType, Vec<u64>), NpyError> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.accept('}') {
            let key = self.text()?;
            self.expect(':')?;
            match key {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => order = Some(self.word()),
                "shape" => shape = Some(self.shape()?),
                key => {
                    let key = key.to_owned();
                    return Err(NpyError::UnknownKey { key });
                }
            }
            if !self.accept(',') {
                self.expect('}')?;
                break;
            }
        }
        match (descr, order, shape) {
            (Some(descr), Some("False"), Some(shape)) => Ok((descr, shape)),
            (_, Some("True"), _) => Err(NpyError::ColumnMajor),
            _ => Err(NpyError::MissingKey),
        }
    }

    fn accept(&mut self, sign: char) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(sign) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, sign: char) -> Result<(), NpyError> {
        match self.accept(sign) {
            true => Ok(()),
            false => Err(NpyError::MissingSign { sign }),
        }
    }

    fn text(&mut self) -> Result<&'a str, NpyError> {
        self.expect('\'')?;
        let (text, rest) = self.0.split_once('\'').ok_or(NpyError::Unterminated)?;
        self.0 = rest;
        Ok(text)
    }

    /// Takes letters and digits.
    fn word(&mut self) -> &'a str {
        let text = self.0.trim_start();
        let end = text.find(|sign: char| !sign.is_ascii_alphanumeric());
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        self.0 = rest;
        word
    }

    fn descr(&mut self) -> Result<NumberType, NpyError> {
        self.0 = self.0.trim_start();
        if !self.0.starts_with('\'') {
            return Err(NpyError::Structured);
        }
        let descr = self.text()?;
        match descr {
            "|b1" | "<b1" => Ok(NumberType::Bool),
            "|u1" | "<u1" => Ok(NumberType::U8),
            "|i1" | "<i1" => Ok(NumberType::I8),
            "<u2" => Ok(NumberType::U16),
            "<i2" => Ok(NumberType::I16),
            "<u4" => Ok(NumberType::U32),
            "<i4" => Ok(NumberType::I32),
            "<u8" => Ok(NumberType::U64),
            "<i8" => Ok(NumberType::I64),
            "<f2" => Ok(NumberType::F16),
            "<f4" => Ok(NumberType::F32),
            "<f8" => Ok(NumberType::F64),
            other => Err(NpyError::Type {
                descr: other.to_owned(),
            }),
        }
    }

    fn shape(&mut self) -> Result<Vec<u64>, NpyError> {
        self.expect('(')?;
        let mut shape = Vec::new();
        while !self.accept(')') {
            let number = self.word().parse();
            shape.push(number.map_err(|_| NpyError::Shape)?);
            if shape.len() > AXES_MAX {
                return Err(NpyError::TooManyAxes);
            }
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&[version, 0]);
        match version {
            1 => file.extend_from_slice(&(text.len() as u16).to_le_bytes()),
            _ => file.extend_from_slice(&(text.len() as u32).to_le_bytes()),
        }
        file.extend_from_slice(text.as_bytes());
        file
    }

    #[test]
    fn headers_are_read() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }     \n";
        for version in [1, 2, 3] {
            let header = NpyHeader::read(&file(version, text)).unwrap();
            assert_eq!(
                (header.dtype, &header.shape[..]),
                (NumberType::F32, &[3, 4][..])
            );
            assert_eq!(header.bytes, file(version, text).len());
            assert_eq!(header.elements(), Ok(12));
        }
        let scalar = "{'shape': (), 'fortran_order': False, 'descr': '|b1'}";
        assert_eq!(NpyHeader::read(&file(1, scalar)).unwrap().elements(), Ok(1));
        let one = "{'descr': '<u2', 'fortran_order': False, 'shape': (5,)}";
        assert_eq!(NpyHeader::read(&file(1, one)).unwrap().shape, [5]);
    }

    #[test]
    fn unsupported_headers_are_refused_by_name() {
        let with = |descr: &str, order: &str, shape: &str| {
            let text =
                format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
            NpyHeader::read(&file(1, &text)).and_then(|header| header.elements())
        };
        assert_eq!(with("'<f4'", "False", "(2, 3)"), Ok(6));
        for (descr, order, shape, word) in [
            ("'>f4'", "False", "(2,)", "little-endian"),
            ("'|O'", "False", "(2,)", "little-endian"),
            ("[('a', '<f4')]", "False", "(2,)", "structured"),
            ("'<f4'", "True", "(2,)", "Fortran"),
            ("'<f4'", "False", "(-2,)", "shape"),
            ("'<f4'", "False", "(99999999999999999999,)", "shape"),
            ("'<f4'", "False", "(4294967296, 4294967296)", "too many"),
            ("'<f4'", "False", "(2", "'('"),
        ] {
            let error = with(descr, order, shape).unwrap_err().to_string();
            assert!(error.contains(word) || word == "'('", "{error}");
        }
        let sound = file(
            1,
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
        );
        for end in 0..sound.len() {
            assert!(NpyHeader::read(&sound[..end]).is_err());
        }
    }
}
