//! CMD while it runs: signals for it, its terminal, and its end when a lock is lost.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::OnLost;
use crate::child::{Change, Child, Exit};
use crate::loss::{Loss, Margin, due};
use crate::report::Report;
use crate::signals::{Signals, name};
use crate::taking::Grant;
use crate::terminal::Terminal;

/// The system stops a process within this time of the signal, if it does.
const TO_STOP: Duration = Duration::from_millis(100);
/// How often a group is looked at whose first process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Whether CMD runs.
static HAS_COMMAND: AtomicBool = AtomicBool::new(false);

pub(crate) fn has_command() -> bool {
    HAS_COMMAND.load(Ordering::Relaxed)
}

/// What to do with CMD when a lock is lost.
#[derive(Clone, Copy)]
pub(crate) struct OnLoss {
    pub(crate) what: OnLost,
    pub(crate) signal: Signal,
    pub(crate) margin: Margin,
}

/// How CMD ended, or why it did not start.
pub(crate) enum End {
    Exited(Exit),
    /// Ctrl-C ended it, which was meant for all processes of this group.
    Interrupted,
    /// It was stopped, because a lock was lost.
    Stopped,
    NotStarted(io::Error),
}

/// Runs the command until it ends. The signals are for it.
pub(crate) async fn run(
    command: &mut Command,
    grants: &[Grant],
    on_loss: OnLoss,
    signals: &mut Signals,
    report: &Report,
) -> io::Result<End> {
    // From here on, no change of CMD is missed.
    let mut changes = signal(SignalKind::child())?;
    let mut continued = signal(SignalKind::from_raw(Signal::SIGCONT as i32))?;
    let child = match Child::start(command) {
        Ok(child) => child,
        Err(error) => return Ok(End::NotStarted(error)),
    };
    HAS_COMMAND.store(true, Ordering::Relaxed);
    grants.iter().for_each(Grant::begin_work);
    let mut job = Job {
        terminal: Terminal::controlling(),
        child,
        grants,
        on_loss,
        is_told: false,
    };
    job.lend();
    let losses = grants.iter().map(|grant| due(grant, on_loss.margin));
    let mut losses: FuturesUnordered<_> = losses.collect();
    let mut kill_at = None;
    let exit = loop {
        tokio::select! {
            biased;
            Some(loss) = losses.next() => {
                report.lost(&loss.token, loss.reason, &loss.why);
                if on_loss.what == OnLost::Kill {
                    if kill_at.is_none() && !loss.grace.is_zero() {
                        job.signal(on_loss.signal, report);
                    }
                    kill_at = Some(sooner(kill_at, &loss));
                }
            }
            () = at(kill_at) => {
                job.signal(Signal::SIGKILL, report);
                kill_at = Some(Instant::now() + TO_STOP);
            }
            _ = changes.recv() => {}
            signal = signals.next() => job.signal(signal.for_child(), report),
            _ = continued.recv() => job.go_on(),
        }
        match job.child.changed()? {
            Some(Change::Exited(exit)) => break exit,
            Some(Change::Stopped(signal)) => job.stopped(signal, report).await,
            None => {}
        }
    };
    HAS_COMMAND.store(false, Ordering::Relaxed);
    // A key of the terminal reaches CMD alone, and asks the whole job to end.
    let has_terminal = job.has_terminal();
    if exit.is_by_key() && has_terminal {
        signals.note();
    }
    match exit {
        Exit::Code(code) => report.child_exited(Some(code), None),
        Exit::Signal(number) => report.child_exited(None, Some(&name(number))),
    }
    Ok(match kill_at {
        Some(kill_at) => {
            kill_rest(&job.child, kill_at, losses).await;
            End::Stopped
        }
        None if exit.is_by_interrupt() && has_terminal => End::Interrupted,
        None => End::Exited(exit),
    })
}

/// CMD as a job of a shell: it can be stopped, continued, and moved between foreground and background.
struct Job<'a> {
    terminal: Option<Terminal>,
    child: Child,
    grants: &'a [Grant],
    on_loss: OnLoss,
    /// It was said that CMD takes no signals.
    is_told: bool,
}

impl Job<'_> {
    /// Sends a signal to CMD. If that is not permitted, as for a CMD of another user, this is said once.
    fn signal(&mut self, signal: Signal, report: &Report) {
        if let Err(error) = self.child.signal(signal)
            && !std::mem::replace(&mut self.is_told, true)
        {
            report.words(&format!(
                "CMD cannot be sent {}, and goes on: {error}",
                signal.as_str()
            ));
        }
    }

    fn lend(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.lend(self.child.group());
        }
    }

    fn has_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_lent)
    }

    /// CMD was stopped. Perhaps it only has to get the terminal. If it had that, the stop is meant for the
    /// whole job, so this process stops too.
    async fn stopped(&mut self, signal: Signal, report: &Report) {
        let asks_for_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        let was_of_job = self.terminal.as_ref().is_some_and(Terminal::is_wanted);
        if asks_for_terminal {
            self.terminal.iter_mut().for_each(Terminal::want);
            self.lend();
            if self.has_terminal() {
                return self.go_on();
            }
        }
        if let Some(terminal) = self.terminal.as_mut().filter(|_| was_of_job) {
            terminal.take_back();
            Terminal::stop_own_group();
            sleep(TO_STOP).await;
            return self.go_on();
        }
        report.words(&format!(
            "CMD is stopped by {}, and the lock stays taken until CMD goes on (kill -CONT -{})",
            signal.as_str(),
            self.child.group()
        ));
    }

    fn go_on(&mut self) {
        self.lend();
        // After a long stop, a lock may be lost. Then CMD must not work any more.
        let is_lost = || self.grants.iter().any(|grant| grant.guard.is_lost());
        if self.on_loss.what == OnLost::Warn || !is_lost() {
            self.child.resume();
        }
    }
}

/// Waits for the instant, or for ever if there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// When CMD is killed after a further loss: a lock that is lost later may leave less time.
fn sooner(kill_at: Option<Instant>, loss: &Loss) -> Instant {
    let at = Instant::now() + loss.grace;
    kill_at.map_or(at, |kill_at| kill_at.min(at))
}

/// CMD has ended, but processes that it started may still work, as those of a shell. They have the same time.
/// Their group keeps its id for as long as one of them is left, and the system gives out ids in turn, so
/// within one look no other group gets it.
async fn kill_rest(child: &Child, mut kill_at: Instant, mut losses: impl Stream<Item = Loss> + Unpin) {
    while child.has_group() {
        if Instant::now() >= kill_at {
            // The first process took signals, and those that it started are mostly of the same user.
            let _ = child.signal(Signal::SIGKILL);
            return;
        }
        tokio::select! {
            Some(loss) = losses.next() => kill_at = sooner(Some(kill_at), &loss),
            () = sleep(LOOK) => {}
        }
    }
}
