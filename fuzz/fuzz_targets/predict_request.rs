//! Fuzzes the parser of requests for predictions.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::PREDICT_REQUEST.read)(bytes);
});
