//! What a server sends over a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fairlock::fuzzing::frames(bytes));
