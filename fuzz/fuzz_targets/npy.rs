//! Fuzzes the parser of `.npy` files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::NPY.read)(bytes);
});
