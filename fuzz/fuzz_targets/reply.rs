//! What a script answers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fairlock::fuzzing::reply(text));
