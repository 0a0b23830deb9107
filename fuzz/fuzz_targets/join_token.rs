//! Fuzzes the reader of join tokens.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::JOIN_TOKEN.read)(bytes);
});
