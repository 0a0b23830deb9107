//! Fuzzes the reader of manifests of models.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::MANIFEST.read)(bytes);
});
