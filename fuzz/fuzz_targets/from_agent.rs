//! Fuzzes the reader of lines of agents.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::FROM_AGENT.read)(bytes);
});
