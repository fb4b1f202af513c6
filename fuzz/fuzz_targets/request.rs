//! What the server names a request by.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fairlock::fuzzing::request(text));
