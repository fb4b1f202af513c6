//! The side that gets the lock next, in variants with more and more of the parts of a real service.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{Lock, LockGuard, LockManager};
use fairlock_benches::Outcome;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::script::{Desk, Grant};

/// The longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) trait Waiter {
    /// Waits for the lock, which must be held.
    fn queue(&mut self) -> Outcome<()>;

    /// Waits until this waiter has the lock, and returns the time at which it got it.
    fn heard(&mut self) -> Outcome<Instant>;

    /// Releases the lock.
    fn give_back(&mut self) -> Outcome<()>;
}

/// A push, and the time at which it was read.
type Push = (Instant, String);

/// Reads the pushes without using them.
#[derive(Debug)]
pub(crate) struct Reader {
    desk: Desk,
    pushes: Receiver<Push>,
    granted: Option<Grant>,
    /// The published messages are not grants.
    only_messages: bool,
}

impl Reader {
    fn new(desk: Desk, pushes: Receiver<Push>) -> Reader {
        Reader {
            desk,
            pushes,
            granted: None,
            only_messages: false,
        }
    }

    pub(crate) fn of_messages(self) -> Reader {
        Reader {
            only_messages: true,
            ..self
        }
    }

    /// Reads in a thread, which sleeps in the read.
    pub(crate) fn in_thread(address: &str, desk: Desk) -> Outcome<Reader> {
        let (sender, pushes) = channel();
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(subscribe(&desk).as_bytes())?;
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if !pass_on(line, &sender) {
                    return;
                }
            }
        });
        Reader::new(desk, pushes).subscribed()
    }

    /// Reads in a task, which tokio wakes.
    pub(crate) fn in_task(runtime: &Runtime, address: &str, desk: Desk) -> Outcome<Reader> {
        let (sender, pushes) = channel();
        let mut stream = runtime.block_on(tokio::net::TcpStream::connect(address))?;
        runtime.block_on(stream.write_all(subscribe(&desk).as_bytes()))?;
        runtime.spawn(async move {
            let mut lines = tokio::io::BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if !pass_on(line, &sender) {
                    return;
                }
            }
        });
        Reader::new(desk, pushes).subscribed()
    }

    /// Returns when the server knows the subscription.
    fn subscribed(mut self) -> Outcome<Reader> {
        let asked = Instant::now();
        while self.desk.listeners()? == 0 {
            if asked.elapsed() > PATIENCE {
                return Err("no subscription".into());
            }
        }
        Ok(self)
    }
}

fn subscribe(desk: &Desk) -> String {
    format!("SUBSCRIBE {}\r\n", desk.channel())
}

/// Passes pushes on: only they are lines that begin with the version. Returns whether there is still a
/// receiver.
fn pass_on(line: String, sender: &Sender<Push>) -> bool {
    !line.starts_with("1 ") || sender.send((Instant::now(), line)).is_ok()
}

impl Waiter for Reader {
    fn queue(&mut self) -> Outcome<()> {
        if !self.only_messages {
            self.desk.queue()?;
        }
        // The reader is awake after this, like a client that has just made a call.
        self.desk.listeners().map(drop)
    }

    fn heard(&mut self) -> Outcome<Instant> {
        let (at, push) = self.pushes.recv_timeout(PATIENCE)?;
        self.granted = Some(Grant::pushed(&push)?);
        Ok(at)
    }

    fn give_back(&mut self) -> Outcome<()> {
        match self.granted.take() {
            Some(granted) if !self.only_messages => self.desk.give_back(&granted),
            _ => Ok(()),
        }
    }
}

/// Acquires the lock, in a task.
#[derive(Debug)]
pub(crate) struct Acquirer<'a> {
    runtime: &'a Runtime,
    lock: Lock,
    desk: Desk,
    granted: Option<Receiver<Outcome<(Instant, LockGuard)>>>,
    held: Option<LockGuard>,
}

impl<'a> Acquirer<'a> {
    pub(crate) fn connect(runtime: &'a Runtime, url: &str, name: &str, desk: Desk) -> Outcome<Acquirer<'a>> {
        let locks = runtime.block_on(LockManager::connect(url))?;
        Ok(Acquirer {
            runtime,
            lock: locks.lock(name),
            desk,
            granted: None,
            held: None,
        })
    }
}

impl Waiter for Acquirer<'_> {
    fn queue(&mut self) -> Outcome<()> {
        let (sender, granted) = channel();
        let acquire = self.lock.acquire();
        self.runtime.spawn(async move {
            let guard = acquire.await;
            let at = Instant::now();
            let _ = sender.send(guard.map(|guard| (at, guard)).map_err(Into::into));
        });
        self.granted = Some(granted);
        // From the second time on the subscription is already up.
        while self.desk.waiting()? == 0 {}
        Ok(())
    }

    fn heard(&mut self) -> Outcome<Instant> {
        let granted = self.granted.take().ok_or("not queued")?;
        let (at, guard) = granted.recv_timeout(PATIENCE)??;
        self.held = Some(guard);
        Ok(at)
    }

    fn give_back(&mut self) -> Outcome<()> {
        match self.held.take() {
            Some(guard) => Ok(self.runtime.block_on(guard.release())?),
            None => Ok(()),
        }
    }
}
