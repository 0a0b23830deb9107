//! Fuzzes the reader of first messages of remote calls.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::RPC_HELLO.read)(bytes);
});
