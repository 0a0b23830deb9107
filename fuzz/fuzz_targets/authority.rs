//! Fuzzes the reader of an authority's certificate and key as text.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::AUTHORITY.read)(bytes);
});
