//! Fuzzes the reader of first frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::HELLO.read)(bytes);
});
