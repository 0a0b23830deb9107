//! Fuzzes the parser of certificates as presented by peers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::CERTIFICATE.read)(bytes);
});
