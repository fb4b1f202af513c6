//! CMD: a process in a group of its own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::signals::number;

pub(crate) struct Child {
    /// The process and its group.
    pid: Pid,
}

/// What has happened to CMD.
pub(crate) enum Change {
    Exited(Exit),
    Stopped(Signal),
}

/// How CMD ended.
#[derive(Clone, Copy)]
pub(crate) enum Exit {
    Code(u8),
    Signal(Signal),
}

impl Exit {
    /// The status by which a shell names this end.
    pub(crate) fn status(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + number(signal),
        }
    }

    /// Whether Ctrl-C or Ctrl-\ ended it, as far as that can be told. A command that cleans up at such a key
    /// exits with the status of that signal.
    pub(crate) fn is_by_key(self) -> bool {
        let keys = [Signal::SIGINT, Signal::SIGQUIT];
        keys.iter().any(|key| self.status() == 128 + number(*key))
    }
}

impl Child {
    /// Starts the command in a process group of its own. Call it on the main thread: on Linux, CMD gets
    /// SIGTERM when the thread ends that started it.
    pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
        command.process_group(0);
        #[cfg(target_os = "linux")]
        end_with_parent(command);
        let id = command.spawn()?.id();
        let id = i32::try_from(id).map_err(io::Error::other)?;
        Ok(Child {
            pid: Pid::from_raw(id),
        })
    }

    /// The group's id.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// What has happened to CMD since the last call, if anything. After [`Change::Exited`] it must not be
    /// called again.
    pub(crate) fn changed(&self) -> io::Result<Option<Change>> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            return Ok(match waitpid(self.pid, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => {
                    // The system keeps eight bits of it.
                    let code = u8::try_from(code & 0xff).map_err(io::Error::other)?;
                    Some(Change::Exited(Exit::Code(code)))
                }
                Ok(WaitStatus::Signaled(_, signal, _)) => Some(Change::Exited(Exit::Signal(signal))),
                Ok(WaitStatus::Stopped(_, signal)) => Some(Change::Stopped(signal)),
                Ok(_) => None,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            });
        }
    }

    /// Sends a signal to the whole group, which is continued to take it if it is stopped.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(signal);
        self.send(Signal::SIGCONT);
    }

    pub(crate) fn resume(&self) {
        self.send(Signal::SIGCONT);
    }

    /// Whether any process of the group is left.
    pub(crate) fn has_group(&self) -> bool {
        killpg(self.pid, None) != Err(Errno::ESRCH)
    }

    fn send(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = killpg(self.pid, signal);
    }
}

/// Makes the system send SIGTERM to CMD when this process dies, even by SIGKILL.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    use nix::sys::prctl::set_pdeathsig;
    use nix::unistd::{getpid, getppid};

    let parent = getpid();
    let ask = move || {
        set_pdeathsig(Signal::SIGTERM)?;
        // The parent may have died before that call, and then no signal comes.
        if getppid() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec, only async-signal-safe functions may be called. The closure makes two
    // system calls, prctl and getppid, takes no lock, and allocates nothing: the errors that it returns are a
    // number and a kind.
    unsafe {
        command.pre_exec(ask);
    }
}
