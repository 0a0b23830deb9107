//! Fuzzes the parser of requests for texts.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::GENERATE_REQUEST.read)(bytes);
});
