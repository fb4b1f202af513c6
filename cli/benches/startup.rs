//! How long `fairlock run -- true` takes, beside `flock` and a bare call of a script. Each round starts all
//! of them once, in turn.
//!
//! ```sh
//! cargo bench --package fairlock-cli --bench startup -- --rounds 200
//! ```

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fairlock_testkit::{Server, TempDir};

const FAIRLOCK: &str = env!("CARGO_BIN_EXE_fairlock");
const ROUNDS: usize = 100;

/// A command that is measured, and the times that it took.
struct Line {
    what: &'static str,
    command: Command,
    took: Vec<Duration>,
}

impl Line {
    fn new(what: &'static str, program: &str, arguments: &[&str], url: &str) -> Line {
        let mut command = Command::new(program);
        command.args(arguments).env("FAIRLOCK_URL", url);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Line {
            what,
            command,
            took: Vec::new(),
        }
    }

    fn once(&mut self) -> bool {
        let began = Instant::now();
        let is_done = self.command.status().is_ok_and(|status| status.success());
        self.took.push(began.elapsed());
        is_done
    }

    fn median_ms(&mut self) -> f64 {
        self.took.sort();
        1e3 * self.took[self.took.len() / 2].as_secs_f64()
    }
}

fn rounds() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--rounds");
    let given = arguments.nth(1).and_then(|rounds| rounds.parse().ok());
    given.unwrap_or(ROUNDS).max(1)
}

#[tokio::main]
async fn main() {
    let server = Server::start().await;
    let (url, port) = (server.url(), server.port().to_string());
    let folder = TempDir::create();
    let file = folder.path().join("lock");
    let file = file.to_string_lossy();
    let script = "return redis.call('SET', KEYS[1], 1, 'NX', 'PX', 1)";
    let lines = [
        Line::new("true", "true", &[], &url),
        Line::new("flock FILE true", "flock", &[&file, "true"], &url),
        Line::new(
            "redis-cli EVAL SCRIPT",
            "redis-cli",
            &["-p", &port, "EVAL", script, "1", "a"],
            &url,
        ),
        Line::new("fairlock run NAME true", FAIRLOCK, &["run", "a", "true"], &url),
    ];
    let mut lines: Vec<Line> = lines.into_iter().collect();
    // The first start reads the program from the disk, and shows what this machine does not have.
    lines.retain_mut(|line| {
        let is_there = line.once();
        line.took.clear();
        if !is_there {
            println!("{}: not measured, since it fails here", line.what);
        }
        is_there
    });
    for _ in 0..rounds() {
        for line in &mut lines {
            assert!(line.once(), "{}", line.what);
        }
    }
    println!("{:<24} {:>10}", "command", "median");
    for line in &mut lines {
        let median = line.median_ms();
        println!("{:<24} {median:>8.1}ms", line.what);
    }
}
