//! Writes tar archives with plain ustar headers without times or owners, so that equal files give equal bytes.

const BLOCK: usize = 512;

/// Appends a member. `name` has at most 100 bytes.
pub(super) fn member(out: &mut Vec<u8>, name: &str, contents: &[u8]) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", contents.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(contents);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

/// Appends the end of an archive.
pub(super) fn end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * BLOCK, 0);
}
