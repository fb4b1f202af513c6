//! A server clock that differs from the machine's: a library that is loaded before the C library, on Linux.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// A file in the directory of a server with its own clock. It says by how many seconds that clock is ahead of
/// the machine's.
const OFFSET: &str = "clock-offset";

/// The words that put the clock of a program ahead by this many seconds. They come first in its command line.
/// The library is written to `dir`, and must stay there.
pub(crate) fn prelude(dir: &Path, seconds: i64) -> Vec<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");
    let library = dir.join("clock.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", source, "-o"]).arg(&library);
    let status = compiler.status().expect("a C compiler");
    assert!(status.success(), "{compiler:?}: {status}");
    let offset = dir.join(OFFSET);
    File::create(&offset).expect("a file");
    set(dir, seconds);
    vec![
        "env".to_owned(),
        format!("CLOCK_OFFSET={}", offset.display()),
        format!("LD_PRELOAD={}", library.display()),
    ]
}

/// Sets the clock of the server whose library is in this directory.
pub(crate) fn set(dir: &Path, seconds: i64) {
    let file = OpenOptions::new().write(true).open(dir.join(OFFSET));
    let file = file.expect("a server with a clock of its own");
    file.write_all_at(&seconds.to_ne_bytes(), 0).expect("eight bytes");
}

/// The time of the machine's clock, in seconds since 1970.
pub(crate) fn machine_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.expect("a time after 1970").as_secs()).expect("a time")
}
