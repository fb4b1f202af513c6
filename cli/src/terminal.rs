//! The terminal, which is lent to CMD while it runs.
//!
//! CMD has a process group of its own. If that were not the foreground group of the terminal, CMD could not
//! read from it, and Ctrl-C and Ctrl-Z would reach this process in its place.
//!
//! If the terminal is not the standard input, CMD mostly does not want it, and others may: a pager behind a
//! pipe, or the script that has started this process in the background. So it is lent only when CMD asks for
//! it, as `ssh` and `sudo` do that want a password. The system then stops CMD.

use std::fs::{File, OpenOptions};
use std::io::stdin;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use crate::exit::Failure;
use crate::signals::Caught;

pub(crate) struct Terminal {
    file: File,
    own_group: Pid,
    /// It is the standard input, or CMD has asked for it.
    is_wanted: bool,
    lent: bool,
}

impl Terminal {
    /// The terminal that controls this process, if there is one.
    pub(crate) fn controlling() -> Option<Terminal> {
        Some(Terminal {
            file: OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?,
            own_group: getpgrp(),
            is_wanted: tcgetpgrp(stdin()).is_ok(),
            lent: false,
        })
    }

    /// CMD has asked for it.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Makes this group the foreground group, if it wants the terminal. A process in the background has
    /// nothing to lend.
    pub(crate) fn lend(&mut self, group: Pid) {
        if self.is_wanted && self.foreground() == Some(self.own_group) {
            self.lent = self.set_foreground(group).is_ok();
        }
    }

    /// Takes the terminal back from whatever group has it now: while it is lent, nobody else gives it away.
    pub(crate) fn take_back(&mut self) {
        if self.lent {
            self.lent = self.set_foreground(self.own_group).is_err();
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Stops this process and the others of its group, as Ctrl-Z would have done if the terminal were not
    /// lent. The shell then knows that the job is stopped, whichever process of the group it waits for. Where
    /// nobody could continue the group, the system does not stop it.
    pub(crate) fn stop_own_group() {
        // The system refuses nothing here: the group has a member.
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.file).ok()
    }

    /// A process in the background is stopped by SIGTTOU for this call, unless it blocks that signal. It is
    /// blocked for the call alone, since CMD inherits what is blocked.
    fn set_foreground(&self, group: Pid) -> Result<(), Errno> {
        let blocked = SigSet::from(Signal::SIGTTOU);
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let set = tcsetpgrp(&self.file, group);
        before.thread_set_mask()?;
        set
    }
}

/// The shell gets its terminal back however this process ends in an orderly way.
impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Interrupts the other processes of this group, as Ctrl-C would have done if the terminal were not lent: the
/// shell that runs a script is among them. This process catches that signal, and ends by it in the end.
pub(crate) fn interrupt_own_group() -> Failure {
    // The system refuses nothing here: the group has a member.
    let _ = kill(Pid::from_raw(0), Signal::SIGINT);
    Failure::of_signal(Caught::INTERRUPT)
}
