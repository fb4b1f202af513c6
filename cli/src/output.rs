//! What is said beside the work: a thread of its own writes it.
//!
//! A terminal that was stopped by Ctrl-S takes nothing until Ctrl-Q, and a pipe that nobody reads fills up.
//! A write to them waits. But a lease must be renewed, so nothing that holds a lock may wait for a reader.

use std::fs::File;
use std::io::{self, Write, stderr, stdout};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::oneshot;

/// How much is kept for a reader that does not read. What comes after it is dropped.
const KEPT: usize = 256;
/// How long the end of the process waits for such a reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// `None` if there is no thread that writes.
static QUEUE: OnceLock<Option<SyncSender<Order>>> = OnceLock::new();

pub(crate) enum Sink {
    Stdout,
    Stderr,
    File(Arc<File>),
}

enum Order {
    Write(Sink, Vec<u8>),
    /// The same, and tell if it fails.
    WriteOrTell(Sink, Vec<u8>, oneshot::Sender<io::Error>),
    /// Drop this once all before it is written.
    Tell(SyncSender<()>),
}

/// Starts the thread. Later the system may have none left, as when CMD has used up the processes of its user.
/// Then nothing is said.
pub(crate) fn start() {
    queue();
}

/// Writes without waiting. A reader that has gone, or that reads too slowly, misses it.
pub(crate) fn write(sink: Sink, text: Vec<u8>) {
    send(Order::Write(sink, text));
}

/// The same for what somebody waits for. The error comes if it cannot be written.
pub(crate) fn write_or_tell(sink: Sink, text: Vec<u8>) -> oneshot::Receiver<io::Error> {
    let (sender, error) = oneshot::channel();
    send(Order::WriteOrTell(sink, text, sender));
    error
}

/// Waits until all is written, though not for ever.
pub(crate) fn finish() {
    if QUEUE.get().is_none() {
        return;
    }
    let (sender, written) = sync_channel(0);
    if send(Order::Tell(sender)) {
        let _ = written.recv_timeout(PATIENCE);
    }
}

fn send(order: Order) -> bool {
    queue().is_some_and(|queue| queue.try_send(order).is_ok())
}

fn queue() -> Option<&'static SyncSender<Order>> {
    let queue = QUEUE.get_or_init(|| {
        let (sender, orders) = sync_channel(KEPT);
        let started = std::thread::Builder::new().spawn(move || write_all(&orders));
        started.is_ok().then_some(sender)
    });
    queue.as_ref()
}

fn write_all(orders: &Receiver<Order>) {
    // With `stty tostop`, a write from the background would stop this process, while CMD goes on.
    let _ = SigSet::from_iter([Signal::SIGTTOU]).thread_block();
    while let Ok(order) = orders.recv() {
        match order {
            Order::Write(sink, text) => drop(put(&sink, &text)),
            Order::WriteOrTell(sink, text, failed) => {
                if let Err(error) = put(&sink, &text) {
                    let _ = failed.send(error);
                }
            }
            Order::Tell(sender) => drop(sender),
        }
    }
}

fn put(sink: &Sink, text: &[u8]) -> io::Result<()> {
    match sink {
        Sink::Stdout => stdout().write_all(text).and_then(|()| stdout().flush()),
        Sink::Stderr => stderr().write_all(text),
        Sink::File(file) => (&**file).write_all(text),
    }
}
