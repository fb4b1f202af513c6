//! A server other than Redis, in a temporary folder. It ends when the value is dropped, or when this process
//! ends in any way.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(60);

/// Waits until the other end of its stdin is closed, which the system does when a process dies. Not even
/// Ctrl-C ends it before that. $1 is the server's process id, $2 its folder, $3 the signal.
const WATCHER: &str = r#"trap '' INT TERM HUP; read _; kill -s "$3" "$1"; rm -rf "$2""#;

#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    watcher: Child,
    folder: PathBuf,
}

impl ServerProcess {
    /// Starts the command in `folder`, which is created if necessary and removed with the process. `signal`
    /// must end the server without leftovers, such as children or shared memory.
    pub fn start(command: &mut Command, folder: PathBuf, signal: &str) -> io::Result<ServerProcess> {
        std::fs::create_dir_all(&folder)?;
        let mut child = command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?;
        let watcher = Command::new("sh")
            .args(["-c", WATCHER, "sh", &child.id().to_string()])
            .arg(&folder)
            .arg(signal)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .inspect_err(|_| drop(child.kill()))?;
        Ok(ServerProcess {
            child,
            watcher,
            folder,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server is ready, and fails if its process ends before that.
    pub fn wait_until(&mut self, ready: impl Fn() -> bool) -> io::Result<()> {
        let started = Instant::now();
        while !ready() {
            self.check()?;
            if started.elapsed() > START_LIMIT {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the server is not ready in time",
                ));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Fails if the process has ended.
    fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("the server ended as soon as it started ({status})"),
            )),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The watcher must end first: once the server has been waited for, its process id may belong to
        // another process. The folder is removed again at the end, because the server may write while it
        // ends.
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
