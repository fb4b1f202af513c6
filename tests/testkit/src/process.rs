//! Tests with several processes: the test binary starts itself again, with one test in the role of a client.
//!
//! A role is an ignored test that does nothing unless it was started as one:
//!
//! ```ignore
//! #[tokio::test]
//! #[ignore = "a role for other tests, run in its own process"]
//! async fn holder() {
//!     let Some(mut role) = fairlock_testkit::role() else { return };
//!     let locks = LockManager::connect(role.arg("url")).await.unwrap();
//!     let guard = locks.lock(role.arg("name")).acquire().await.unwrap();
//!     role.say(&format!("holds {}", guard.fence()));
//!     role.heard().await;
//! }
//!
//! let mut holder = Process::spawn("holder", &[("url", &server.url()), ("name", "a")]);
//! assert!(holder.line().await.starts_with("holds"));
//! holder.kill();
//! ```

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::signal;

const ROLE: &str = "FAIRLOCK_TEST_ROLE";
const ARG: &str = "FAIRLOCK_TEST_ARG_";
const LINE_LIMIT: Duration = Duration::from_secs(30);

/// Marks the lines that a role sends, among those that the test harness prints.
const MARK: &str = "@@ ";

/// A child process in a role. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    role: String,
    child: Child,
    lines: UnboundedReceiver<String>,
}

/// What runs here. A build may replace its file during a campaign, but not what this link leads to.
fn this_binary() -> PathBuf {
    if cfg!(target_os = "linux") {
        "/proc/self/exe".into()
    } else {
        std::env::current_exe().expect("this test binary")
    }
}

impl Process {
    /// Starts the ignored test `role` of this binary in a process of its own. A test in a module is named
    /// with its path, such as `roles::holder`.
    pub fn spawn(role: &str, args: &[(&str, &str)]) -> Process {
        let mut command = Command::new(this_binary());
        command
            .args([role, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(args.iter().map(|(key, value)| (format!("{ARG}{key}"), value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (sender, lines) = unbounded_channel();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let named = role.to_owned();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = sender.send(said.to_owned());
                } else if line.starts_with("running 0 tests") {
                    let _ = sender.send(format!("there is no ignored test {named}"));
                }
            }
        });
        Process {
            role: role.to_owned(),
            child,
            lines,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line from the process. Fails the test if the process has ended, or sends nothing for half a
    /// minute.
    pub async fn line(&mut self) -> String {
        match timeout(LINE_LIMIT, self.lines.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => panic!("the process {} ended without a line", self.role),
            Err(_) => panic!("the process {} sent no line for {LINE_LIMIT:?}", self.role),
        }
    }

    /// The next line, if it arrives within `limit`.
    pub async fn line_within(&mut self, limit: Duration) -> Option<String> {
        timeout(limit, self.lines.recv()).await.ok().flatten()
    }

    /// Waits for a line and checks it.
    pub async fn expect(&mut self, line: &str) {
        assert_eq!(self.line().await, line, "from the process {}", self.role);
    }

    /// Sends a line to the process, which reads it with [`Role::heard`].
    pub fn tell(&mut self, line: &str) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        pipe.write_all(format!("{line}\n").as_bytes())
            .expect("a process that reads");
    }

    /// Sends SIGKILL: the process does nothing any more. Its sockets are closed when this returns.
    pub fn kill(&mut self) {
        signal::kill(self.pid());
        let _ = self.child.wait();
    }

    /// Sends SIGSTOP: the process is stopped, and its sockets stay open.
    pub fn stop(&self) {
        signal::stop(self.pid());
    }

    /// Sends SIGCONT: the process continues.
    pub fn cont(&self) {
        signal::cont(self.pid());
    }

    /// Waits until the process has ended by itself, and fails the test if the process failed.
    pub async fn ended(&mut self) {
        let start = std::time::Instant::now();
        loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => return assert!(status.success(), "the process {}: {status}", self.role),
                None => assert!(
                    start.elapsed() < LINE_LIMIT,
                    "the process {} does not end",
                    self.role
                ),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After the wait for its end, the process id may belong to another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a role knows about the test that started it.
#[derive(Debug)]
pub struct Role {
    lines: UnboundedReceiver<String>,
}

/// The role of this process, or `None` if it was started as a test.
///
/// The process ends when the test that started it is gone.
pub fn role() -> Option<Role> {
    std::env::var_os(ROLE)?;
    let (sender, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(3);
    });
    Some(Role { lines })
}

impl Role {
    #[track_caller]
    pub fn arg(&self, key: &str) -> String {
        self.optional(key).unwrap_or_else(|| panic!("no argument {key}"))
    }

    pub fn optional(&self, key: &str) -> Option<String> {
        std::env::var(format!("{ARG}{key}")).ok()
    }

    /// The argument as a number.
    #[track_caller]
    pub fn number(&self, key: &str) -> u64 {
        self.arg(key)
            .parse()
            .unwrap_or_else(|_| panic!("{key} is not a number"))
    }

    /// Sends a line to the test, which reads it with [`Process::line`].
    pub fn say(&self, line: &str) {
        // The harness may have printed the name of this test on the same line.
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{MARK}{line}").and_then(|()| stdout.flush());
    }

    /// Waits for the next line from the test.
    pub async fn heard(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            // The reading thread ends the process.
            None => std::future::pending().await,
        }
    }
}
