//! Fuzzes the reader of weights from which a model is trained.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::INITIAL_WEIGHTS.read)(bytes);
});
