//! Fuzzes the reader of frames of remote calls.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::RPC_FRAMES.read)(bytes);
});
