//! The signals that would end this process.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal as set_handler};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What CMD gets as it came. These ask it to end, or mean what CMD takes them for.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A signal that would have ended this process. A real-time signal has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught(u8);

impl Caught {
    pub(crate) const INTERRUPT: Caught = Caught(Signal::SIGINT as u8);

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Only CMD knows what these two ask for.
    fn asks_to_end(self) -> bool {
        ![Signal::SIGUSR1, Signal::SIGUSR2].map(number).contains(&self.0)
    }

    /// The signal for CMD. The others of these signals are for this process, as that of a timer, and it ends
    /// by them: so CMD is asked to end.
    pub(crate) fn for_child(self) -> Signal {
        let passed_on = PASSED_ON.into_iter().find(|signal| number(*signal) == self.0);
        passed_on.unwrap_or(Signal::SIGTERM)
    }
}

/// The signals that end a process by default. Not those that tell of a fault in this program, and not
/// SIGKILL.
fn ending() -> impl Iterator<Item = u8> {
    let named = Signal::iterator().filter(|signal| {
        !matches!(
            signal,
            Signal::SIGKILL
                | Signal::SIGILL
                | Signal::SIGTRAP
                | Signal::SIGABRT
                | Signal::SIGBUS
                | Signal::SIGFPE
                | Signal::SIGSEGV
                | Signal::SIGSYS
                | Signal::SIGPIPE
                | Signal::SIGCHLD
                | Signal::SIGCONT
                | Signal::SIGSTOP
                | Signal::SIGTSTP
                | Signal::SIGTTIN
                | Signal::SIGTTOU
                | Signal::SIGURG
                | Signal::SIGWINCH
        )
    });
    // Ctrl-T of BSD systems, which not all systems have.
    let named = named.filter(|signal| signal.as_str() != "SIGINFO");
    named.map(number).chain(real_time())
}

#[cfg(target_os = "linux")]
fn real_time() -> impl Iterator<Item = u8> {
    let (least, greatest) = (nix::libc::SIGRTMIN(), nix::libc::SIGRTMAX());
    (least..=greatest).filter_map(|number| u8::try_from(number).ok())
}

#[cfg(not(target_os = "linux"))]
fn real_time() -> impl Iterator<Item = u8> {
    std::iter::empty()
}

/// From its creation on, these signals do not end the process, but wait here to be taken.
pub(crate) struct Signals {
    streams: Vec<(Caught, Stream)>,
    has_come: bool,
}

impl Signals {
    /// A signal that is ignored, as SIGHUP under `nohup`, would end nothing. It stays ignored, here and in
    /// CMD.
    pub(crate) fn catch() -> io::Result<Signals> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for ending in ending() {
            if ignored & (1 << (ending - 1)) == 0 {
                streams.push((Caught(ending), signal(SignalKind::from_raw(ending.into()))?));
            }
        }
        Ok(Signals {
            streams,
            has_come: false,
        })
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Caught {
        poll_fn(|context| {
            for (caught, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    self.has_come |= caught.asks_to_end();
                    return Poll::Ready(*caught);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// This process was asked to end in another way.
    pub(crate) fn note(&mut self) {
        self.has_come = true;
    }

    /// Whether this process was asked to end.
    pub(crate) fn has_come(&self) -> bool {
        self.has_come
    }
}

/// The signals that are ignored, as a mask. Where the system does not tell, none is.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Lets the signals through on which this process relies. The process that started it may have left them
/// blocked.
pub(crate) fn unblock() {
    let mut needed = SigSet::from_iter(PASSED_ON);
    needed.add(Signal::SIGCHLD);
    needed.add(Signal::SIGCONT);
    // A thread may always change its own mask.
    let _ = needed.thread_unblock();
}

/// Ends this process by SIGINT. Bash ends a script if an interrupt ended the command that the script waited
/// for. If the command exits, whatever its status, the script goes on.
#[allow(unsafe_code)]
pub(crate) fn end_by_interrupt() {
    // SAFETY: the default action is no handler, so nothing of this process runs at the signal.
    let _ = unsafe { set_handler(Signal::SIGINT, SigHandler::SigDfl) };
    // The caller exits if this process lives on.
    let _ = raise(Signal::SIGINT);
}

/// The name of a signal, or its number if it has none, as real-time signals.
pub(crate) fn name(number: u8) -> String {
    let signal = Signal::try_from(i32::from(number));
    signal.map_or_else(|_| number.to_string(), |signal| signal.as_str().to_owned())
}

/// The number of a signal. The largest is 64.
pub(crate) fn number(signal: Signal) -> u8 {
    u8::try_from(signal as i32).unwrap_or(0)
}
