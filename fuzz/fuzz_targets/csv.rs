//! Fuzzes the reader of a file of comma-separated values.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::CSV.read)(bytes);
});
