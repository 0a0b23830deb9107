//! Fuzzes the parser of tar archives of samples.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::TAR.read)(bytes);
});
