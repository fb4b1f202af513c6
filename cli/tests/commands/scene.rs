//! Processes of the command, and what they say.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fairlock::{Lock, LockManager, Status};
use fairlock_testkit::{Server, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

pub(crate) const FAIRLOCK: &str = env!("CARGO_BIN_EXE_fairlock");
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Far longer than any of it takes, on a busy machine too.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A program that knows the command and its server by the environment alone.
pub(crate) fn program(path: impl AsRef<Path>, url: &str) -> Command {
    heed_signals();
    let mut command = Command::new(path.as_ref());
    for (name, _) in std::env::vars() {
        if name.starts_with("FAIRLOCK_") || name == "REDIS_URL" || name == "VALKEY_URL" {
            command.env_remove(name);
        }
    }
    command
        .env("FAIRLOCK_URL", url)
        .env("FAIRLOCK", FAIRLOCK)
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Takes care that what is started heeds the signals that this process ignores. A shell without job control
/// makes what it starts in the background ignore them, and that is inherited, but a handler is not.
fn heed_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    for ending in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        if ignored.unwrap_or(0) & (1 << (ending as i32 - 1)) != 0 {
            // The handler stays when this stream is gone.
            drop(signal(SignalKind::from_raw(ending as i32)).unwrap());
        }
    }
}

/// The command with these arguments.
pub(crate) fn fairlock(url: &str, args: &[&str]) -> Command {
    let mut command = program(FAIRLOCK, url);
    command.args(args);
    command
}

/// What a process said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// As a shell names it: 128 + n if signal n ended the process.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command on the server that all tests share.
pub(crate) async fn run(args: &[&str]) -> Ended {
    end_of(&mut fairlock(&Server::shared().await.url(), args)).await
}

pub(crate) async fn end_of(command: &mut Command) -> Ended {
    Running::start(command).ended().await
}

/// A process, whose stdout is read line by line.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    err: ChildStderr,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = child.stderr.take().unwrap();
        Running { child, out, err }
    }

    /// The next line of stdout. It is empty at the end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LIMIT, self.out.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) async fn expect(&mut self, expected: &str) {
        assert_eq!(self.line().await, expected);
    }

    /// Skips what a terminal echoes, up to a line that ends so.
    pub(crate) async fn line_with(&mut self, text: &str) {
        let mut before = Vec::new();
        loop {
            let line = self.line().await;
            if line.ends_with(text) {
                return;
            }
            assert!(before.len() < 100, "no line with {text:?}: {before:?}");
            before.push(line);
        }
    }

    pub(crate) async fn tell(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Sends a signal by its name or number. Those of real time have only a number.
    pub(crate) fn send(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let script = "kill -$1 $2";
        let sent = std::process::Command::new("sh")
            .args(["-c", script, "sh", signal, &pid])
            .status();
        assert!(sent.unwrap().success(), "kill -{signal}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Waits for the end, and returns the rest of what was said.
    pub(crate) async fn ended(mut self) -> Ended {
        let end = async {
            let (mut out, mut err) = (String::new(), String::new());
            let (read_out, read_err, status) = tokio::join!(
                self.out.read_to_string(&mut out),
                self.err.read_to_string(&mut err),
                self.child.wait()
            );
            read_out.unwrap();
            read_err.unwrap();
            let status = status.unwrap();
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            Ended { code, out, err }
        };
        timeout(LIMIT, end).await.unwrap()
    }

    /// How it ended, if processes that it has left behind may still write.
    pub(crate) async fn code(&mut self) -> Option<i32> {
        timeout(LIMIT, self.child.wait()).await.unwrap().unwrap().code()
    }
}

/// A program that uses the library.
pub(crate) async fn client(server: &Server) -> LockManager {
    let builder = LockManager::builder().label("rival");
    builder.connect(&server.url()).await.unwrap()
}

/// The lock of this name, as that program sees it.
pub(crate) async fn lock(server: &Server, name: &str) -> Lock {
    client(server).await.lock(name)
}

pub(crate) async fn until_waiting(lock: &Lock, count: u64) {
    until_queued(async || lock.status().await, count).await;
}

pub(crate) async fn until_queued(status: impl AsyncFn() -> fairlock::Result<Status>, count: u64) {
    eventually("so many wait", LIMIT, async || {
        status().await.unwrap().waiting == count
    })
    .await;
}

pub(crate) async fn is_free(lock: &Lock) -> bool {
    let status = lock.status().await.unwrap();
    status.holder.is_none() && status.waiting == 0
}

/// The events among the lines of stderr, to which a shell may write too.
pub(crate) fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect()
}
