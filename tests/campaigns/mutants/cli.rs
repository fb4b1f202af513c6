//! The promises of the command line.

use super::{Edit, edit};

const CHILD: &str = "cli/src/child.rs";
const HOLD: &str = "cli/src/hold.rs";
const LOSS: &str = "cli/src/loss.rs";
const NESTING: &str = "cli/src/nesting.rs";
const SIGNALS: &str = "cli/src/signals.rs";
const SUPERVISE: &str = "cli/src/supervise.rs";
const TAKING: &str = "cli/src/taking.rs";
const TERMINAL: &str = "cli/src/terminal.rs";

const ON_HOLD: &[&str] = &["--package fairlock-cli --test commands hold::"];
const ON_LOSS: &[&str] = &["--package fairlock-cli --test commands loss::"];
const ON_NESTING: &[&str] = &["--package fairlock-cli --test commands nesting::"];
const ON_SETTINGS: &[&str] = &["--package fairlock-cli --test commands settings::"];
const ON_SIGNALS: &[&str] = &["--package fairlock-cli --test commands signals::"];
const ON_TERMINAL: &[&str] = &["--package fairlock-cli --test commands terminal::"];
const ON_WAITING: &[&str] = &["--package fairlock-cli --test commands waiting::"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("CMD has a process group of its own", CHILD, "        command.process_group(0);\n", "", ON_SIGNALS),
    edit("CMD is terminated when its parent is killed", CHILD, "        set_pdeathsig(Signal::SIGTERM)?;\n", "        let _ = set_pdeathsig::<Signal>;\n", ON_SIGNALS),
    edit("a signal to the command goes to CMD", SUPERVISE, "signal = signals.next() => job.child.signal(signal),", "_ = signals.next() => {}", ON_SIGNALS),
    edit("a signal that was ignored stays ignored", SIGNALS, "ignored & (1 << (ending as i32 - 1)) == 0", "ignored < u64::MAX", ON_SIGNALS),
    edit("a signal leaves no place in the queue", TAKING, "                close(&locks).await;\n                Err(failure)", "                Err(failure)", ON_SIGNALS),
    edit("CMD begins with a whole lease", TAKING, "lease.remaining() < lease.length() / 2", "lease.remaining().is_zero()", ON_WAITING),
    edit("CMD is stopped before the end of a lease that is not renewed", LOSS, "lease.remaining() <= margin.kill_after", "lease.remaining().is_zero()", ON_LOSS),
    edit("a lease that is renewed stops nothing", LOSS, "is_near && lease.state() == LeaseState::InDoubt", "is_near", ON_LOSS),
    edit("CMD is stopped before the longest hold is over", LOSS, "*left <= margin.kill_after", "left.is_zero()", ON_LOSS),
    edit("CMD has no time to clean up when the lease is over already", LOSS, "=> Duration::ZERO,", "=> margin.kill_after,", ON_LOSS),
    edit("a process that CMD left behind is killed", SUPERVISE, "            kill_rest(&job.child, kill_at).await;\n", "            let _ = (kill_rest(&job.child, kill_at), kill_at);\n", ON_LOSS),
    edit("CMD has the terminal", SUPERVISE, "    job.lend();\n", "", ON_TERMINAL),
    edit("the terminal is taken back", TERMINAL, "self.lent = self.set_foreground(self.own_group).is_err();", "self.lent = false;", ON_TERMINAL),
    edit("a process in the background may take the terminal back", TERMINAL, "SigmaskHow::SIG_BLOCK", "SigmaskHow::SIG_UNBLOCK", ON_TERMINAL),
    edit("a job that is stopped by the terminal stops as a whole", SUPERVISE, "            Terminal::stop_own_group();\n", "            let _ = Terminal::stop_own_group;\n", ON_TERMINAL),
    edit("only the same lock is taken again within a run", NESTING, "(of == lock.as_str())", "(!of.is_empty())", ON_NESTING),
    edit("a lock of the command line is kept", TAKING, ".at_least(taking.at_least)", "", ON_HOLD),
    edit("what is wrong is refused before a server is asked", TAKING, "        place.check(options).await?;\n", "", ON_SETTINGS),
    edit("the end of an empty stdin does not end a hold", HOLD, "kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())", "kind.is_ok()", ON_HOLD),
];
