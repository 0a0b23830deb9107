//! Fuzzes the parser of a member's PEM certificates and key.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::IDENTITY.read)(bytes);
});
