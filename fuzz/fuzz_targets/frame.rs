//! Fuzzes the reader of headers of frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::FRAME.read)(bytes);
});
