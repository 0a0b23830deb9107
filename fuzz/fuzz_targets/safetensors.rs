//! Fuzzes the reader of foreign weights.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::SAFETENSORS.read)(bytes);
});
