//! Parsing of sizes: `8`, `4KiB`, `1MiB`, and ranges such as `8..64MiB`.

use crate::error::BenchError;

/// The largest measured size in bytes.
pub const BYTES_MAX: usize = 256 << 20;
/// The default sizes.
pub const DEFAULT_SIZES: &str = "8,4KiB,64KiB,1MiB,16MiB,64MiB";

/// Returns the sizes in bytes of a list such as `8,4KiB,1MiB..64MiB,8..1MiBx2`, sorted and without
/// repetition.
///
/// A range multiplies by 8, or by the number after an `x`; its end is always included.
///
/// # Errors
/// [`BenchError::Setting`] for other text, a size of 0, or one above [`BYTES_MAX`].
pub fn parse_sizes(text: &str) -> Result<Vec<usize>, BenchError> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            Some((from, to)) => range(part, from, to, &mut sizes)?,
            None => sizes.push(parse_size(part)?),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// Parses one size in bytes: a number, followed by `B`, `KiB`, `MiB` or `K`, `M` for the same.
///
/// # Errors
/// As for [`parse_sizes`].
pub fn parse_size(text: &str) -> Result<usize, BenchError> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        _ => return refuse(text, "is not a valid size; expected e.g. 8, 4KiB or 64MiB"),
    };
    let bytes = number.parse::<usize>().ok();
    match bytes.and_then(|bytes| bytes.checked_mul(scale)) {
        Some(0) => refuse(text, "is too small; the smallest size is 1"),
        Some(bytes) if bytes <= BYTES_MAX => Ok(bytes),
        Some(_) => refuse(text, "is too large; the largest size is 256MiB"),
        None => refuse(text, "is not a valid size; expected e.g. 8, 4KiB or 64MiB"),
    }
}

fn range(part: &str, from: &str, to: &str, sizes: &mut Vec<usize>) -> Result<(), BenchError> {
    let (to, step) = match to.split_once('x') {
        None => (to, 8),
        Some((to, step)) => match step.trim().parse() {
            Ok(step @ 2..=1024) => (to, step),
            _ => {
                return refuse(
                    part,
                    "has an invalid step; expected a number from 2 to 1024",
                );
            }
        },
    };
    let (mut size, end) = (parse_size(from)?, parse_size(to)?);
    if size > end {
        return refuse(part, "is a decreasing range; put the smaller size first");
    }
    while size < end {
        sizes.push(size);
        size = size.saturating_mul(step);
    }
    sizes.push(end);
    Ok(())
}

fn refuse<T>(text: &str, problem: &str) -> Result<T, BenchError> {
    Err(BenchError::Setting {
        what: "--sizes",
        problem: format!("`{text}` {problem}"),
    })
}

/// Formats bytes for people: `8 B`, `4 KiB`, `1.5 MiB`.
#[must_use]
pub fn show_bytes(bytes: usize) -> String {
    let (scale, unit) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => (1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let number = format!("{:.1}", bytes as f64 / f64::from(scale));
    format!("{} {unit}", number.trim_end_matches(".0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_read() {
        let cases: [(&str, &[usize]); 7] = [
            ("8", &[8]),
            ("4KiB,8", &[8, 4096]),
            ("64k, 1M, 64KiB", &[65536, 1 << 20]),
            ("8..4KiB", &[8, 64, 512, 4096]),
            ("8..64x2", &[8, 16, 32, 64]),
            ("100..1000", &[100, 800, 1000]),
            ("256MiB", &[256 << 20]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_sizes(text).unwrap(), expected, "{text}");
        }
        assert_eq!(parse_sizes(DEFAULT_SIZES).unwrap().len(), 6);
    }

    #[test]
    fn invalid_sizes_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "not a valid size"),
            ("8,,9", "not a valid size"),
            ("4GB", "not a valid size"),
            ("-8", "not a valid size"),
            ("99999999999999999999", "not a valid size"),
            ("0", "too small"),
            ("257MiB", "largest size is 256MiB"),
            ("64..8", "decreasing"),
            ("8..64x1", "step"),
        ] {
            let error = parse_sizes(text).unwrap_err();
            assert!(error.is_user_error());
            let error = error.to_string();
            assert!(error.starts_with("--sizes: `"), "{error}");
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn bytes_are_shown_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 30, "3 GiB"),
        ] {
            assert_eq!(show_bytes(bytes), text);
        }
    }
}
