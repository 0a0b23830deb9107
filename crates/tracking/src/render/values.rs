//! Single values as text: numbers, sizes and durations.

use std::borrow::Cow;

use ronde_core::units::count;

/// Replaces control characters by their escapes, except line breaks and tabs, so that text from files cannot control the
/// terminal.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match is_unsafe(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Formats a loss: `0.0512`, `12345.6789`; very large and very small values as `7.0000e33`.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || size == 0.0 || (1e-3..1e6).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.4e}")
    }
}

/// Formats a learning rate with up to three significant digits: `0.1`, `0.00234`, `3.2e-5`.
#[must_use]
pub fn short_number(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return format!("{value}");
    }
    let scientific = format!("{value:.2e}");
    let rounded: f64 = scientific.parse().unwrap_or(value);
    match rounded.abs() {
        1e-3..1e6 => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// Formats a fraction as `81 %`; `0 %` when the total is zero.
pub(super) fn percent(part: f64, total: f64) -> String {
    let share = if total > 0.0 { part / total } else { 0.0 };
    format!("{:.0} %", 100.0 * share)
}

/// Formats a number with its noun: `1 step`, `1,234 steps`.
pub(super) fn counted(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(n))
}

/// Formats a duration: `0.8 s`, `42 s`, `3 min 05 s`, `2 h 07 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "unknown time".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}
