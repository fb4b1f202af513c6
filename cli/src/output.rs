//! What is said beside the work: a thread of its own writes it.
//!
//! A terminal that was stopped by Ctrl-S takes nothing until Ctrl-Q, and a pipe that nobody reads fills up.
//! A write to them waits. But a lease must be renewed, so nothing that holds a lock may wait for a reader.

use std::fs::File;
use std::io::{Write, stderr, stdout};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How much is kept for a reader that does not read. What comes after it is dropped.
const KEPT: usize = 256;
/// How long the end of the process waits for such a reader.
const PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<Order>> = OnceLock::new();

pub(crate) enum Sink {
    Stdout,
    Stderr,
    File(Arc<File>),
}

enum Order {
    Write(Sink, Vec<u8>),
    /// Drop this once all before it is written.
    Tell(SyncSender<()>),
}

/// Writes without waiting. A reader that has gone, or that reads too slowly, misses it.
pub(crate) fn write(sink: Sink, text: Vec<u8>) {
    let _ = queue().try_send(Order::Write(sink, text));
}

/// Waits until all is written, though not for ever.
pub(crate) fn finish() {
    if QUEUE.get().is_none() {
        return;
    }
    let (sender, written) = sync_channel(0);
    if queue().try_send(Order::Tell(sender)).is_ok() {
        let _ = written.recv_timeout(PATIENCE);
    }
}

fn queue() -> &'static SyncSender<Order> {
    QUEUE.get_or_init(|| {
        let (sender, orders) = sync_channel(KEPT);
        std::thread::spawn(move || write_all(&orders));
        sender
    })
}

fn write_all(orders: &Receiver<Order>) {
    // With `stty tostop`, a write from the background would stop this process, while CMD goes on.
    let _ = SigSet::from_iter([Signal::SIGTTOU]).thread_block();
    while let Ok(order) = orders.recv() {
        match order {
            Order::Write(sink, text) => put(&sink, &text),
            Order::Tell(sender) => drop(sender),
        }
    }
}

fn put(sink: &Sink, text: &[u8]) {
    let _ = match sink {
        Sink::Stdout => stdout().write_all(text).and_then(|()| stdout().flush()),
        Sink::Stderr => stderr().write_all(text),
        Sink::File(file) => (&**file).write_all(text),
    };
}
