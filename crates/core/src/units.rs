//! Numbers with units in messages.

/// Formats a number of bytes: `512 B`, `1.5 KiB`, `12.0 MiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1024.0, 0);
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a number with separators: `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let all = [0, 999, 1_000, 1_234_567];
        assert_eq!(all.map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn bytes_have_the_largest_unit_that_leaves_at_least_one() {
        let all = [0, 1_023, 1 << 10, 1_048_524, 1 << 30, 1_600_000_000_000];
        let expected = [
            "0 B",
            "1023 B",
            "1.0 KiB",
            "1023.9 KiB",
            "1.0 GiB",
            "1.5 TiB",
        ];
        assert_eq!(all.map(bytes), expected);
    }
}
