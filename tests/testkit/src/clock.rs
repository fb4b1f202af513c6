//! Another clock for a server than the machine's: a library that stands before the C library, on Linux.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// In the directory of a server that has a clock of its own: by how many seconds it is ahead of the machine's.
const OFFSET: &str = "clock-offset";

/// What a command line is to begin with for its program's clock to be so many seconds ahead. The library is put into
/// that directory, and has to stay there.
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

/// Sets the clock of the server whose prelude lies there.
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
