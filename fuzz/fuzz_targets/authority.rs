//! Fuzzes the parser of an authority's PEM certificate and key.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::AUTHORITY.read)(bytes);
});
