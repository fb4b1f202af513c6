//! Another clock for a server than the machine's: a library that stands before the C library, on Linux.

use std::path::Path;
use std::process::Command;

/// What a command line is to begin with for its program's clock to be so many seconds ahead. The library is put into
/// that directory, and has to stay there.
pub(super) fn prelude(dir: &Path, seconds: i64) -> Vec<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/clock.c");
    let library = dir.join("clock.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", source, "-o"]).arg(&library);
    let status = compiler.status().expect("a C compiler");
    assert!(status.success(), "{compiler:?}: {status}");
    vec![
        "env".to_owned(),
        format!("CLOCK_OFFSET={seconds}"),
        format!("LD_PRELOAD={}", library.display()),
    ]
}
