//! CMD: a process in a group of its own.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, killpg};
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
    /// The number of the signal. A real-time signal has no name.
    Signal(u8),
}

impl Exit {
    /// The status by which a shell names this end.
    pub(crate) fn status(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }

    pub(crate) fn is_by_interrupt(self) -> bool {
        matches!(self, Exit::Signal(signal) if signal == number(Signal::SIGINT))
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
        let Some(status) = wait(self.pid)? else {
            return Ok(None);
        };
        let eight_bits = |number: i32| u8::try_from(number & 0xff).map_err(io::Error::other);
        Ok(if let Some(code) = status.code() {
            Some(Change::Exited(Exit::Code(eight_bits(code)?)))
        } else if let Some(signal) = status.signal() {
            Some(Change::Exited(Exit::Signal(eight_bits(signal)?)))
        } else {
            let stopped_by = status
                .stopped_signal()
                .and_then(|number| Signal::try_from(number).ok());
            stopped_by.map(Change::Stopped)
        })
    }

    /// Sends a signal to the whole group, which is continued to take it if it is stopped. Fails if this
    /// process may not send signals to any of the group.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.send(signal)?;
        self.send(Signal::SIGCONT)
    }

    pub(crate) fn resume(&self) {
        // If this is not permitted, the signal that ends CMD is not either, and then that is said.
        let _ = self.send(Signal::SIGCONT);
    }

    /// Whether any process of the group is left.
    pub(crate) fn has_group(&self) -> bool {
        killpg(self.pid, None) != Err(Errno::ESRCH)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match killpg(self.pid, signal) {
            // A group that is gone needs no signal.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The status of a child that has ended or stopped since the last call. `nix` fails for the real-time
/// signals, when the status is gone already.
#[allow(unsafe_code)]
fn wait(pid: Pid) -> io::Result<Option<ExitStatus>> {
    let flags = libc::WNOHANG | libc::WUNTRACED;
    loop {
        let mut status = 0;
        // SAFETY: the call writes the status to the variable, and keeps no pointer to it.
        match unsafe { libc::waitpid(pid.as_raw(), &raw mut status, flags) } {
            0 => return Ok(None),
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Err(Errno::last().into()),
            _ => return Ok(Some(ExitStatus::from_raw(status))),
        }
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
