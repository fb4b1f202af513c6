//! What comes on an unlock channel.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fairlock::fuzzing::push(text));
