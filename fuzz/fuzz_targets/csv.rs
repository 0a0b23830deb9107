//! Fuzzes the parser of CSV files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::CSV.read)(bytes);
});
