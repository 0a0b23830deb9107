//! Fuzzes the reader of a file of several arrays, compressed ones, too.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::NPZ.read)(bytes);
});
