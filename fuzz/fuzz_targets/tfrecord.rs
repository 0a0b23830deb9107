//! Fuzzes the reader of a file of TFRecord samples.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::TFRECORD.read)(bytes);
});
