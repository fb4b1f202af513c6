//! Helpers that the benches share.

pub mod analysis;
#[cfg(feature = "redis")]
pub mod bare;
pub mod delay;
pub mod info;
pub mod machine;
pub mod memory;
pub mod quantile;
pub mod wire;

use std::process::ExitCode;

/// The error of a bench that finds no server to start.
pub const NO_SERVER: &str = "neither redis-server nor valkey-server is on the PATH: scripts/install-server";

/// A result, or an error to show to the user.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Whether `cargo bench` runs this program. `cargo test --all-targets` runs it without `--bench`. A test run
/// should not take minutes of load, so the program then only says how to run it.
pub fn is_called_by_cargo_bench(name: &str) -> bool {
    let is_called = std::env::args().any(|arg| arg == "--bench");
    if !is_called {
        say_how_to_run(name);
    }
    is_called
}

pub fn say_how_to_run(name: &str) {
    println!(
        "{name}: run it as `cargo bench --package fairlock-benches --bench {name}`, see benches/README.md"
    );
}

/// Prints the error of the bench with this name, if there is one. Returns the exit code of the program.
pub fn exit_code(name: &str, outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{name}: {e}");
            ExitCode::FAILURE
        }
    }
}
