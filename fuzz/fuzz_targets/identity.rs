//! Fuzzes the reader of members' certificates and keys as text.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::IDENTITY.read)(bytes);
});
