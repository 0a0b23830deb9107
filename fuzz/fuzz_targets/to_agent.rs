//! Fuzzes the reader of lines of coordinators to agents.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::TO_AGENT.read)(bytes);
});
