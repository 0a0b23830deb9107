//! Fuzzes the reader of a file of one array.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::NPY.read)(bytes);
});
