//! Fuzzes the parser of the stored index of a file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::INDEX.read)(bytes);
});
