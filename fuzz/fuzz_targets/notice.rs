//! Fuzzes the reader of notices of failures.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::NOTICE.read)(bytes);
});
