//! Fuzzes the parser of `.npz` files, including compressed ones.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::NPZ.read)(bytes);
});
