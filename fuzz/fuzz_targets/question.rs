//! Fuzzes the parser of lines from hosts with a join token.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _refused = (ronde_fuzz::targets::QUESTION.read)(bytes);
});
