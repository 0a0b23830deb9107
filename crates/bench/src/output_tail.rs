//! [`tail`]: the end of a program's output, for messages.

use std::io::Read;

/// Returns the last `bytes` bytes of a process's output, for messages.
pub(crate) fn tail(mut from: impl Read, bytes: usize) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        kept.extend_from_slice(&chunk[..n]);
        let surplus = kept.len().saturating_sub(bytes);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let text = "x".repeat(10_000) + "the end";
        assert_eq!(tail(text.as_bytes(), 7), "the end");
        assert_eq!(tail(&b"short"[..], 7), "short");
    }
}
