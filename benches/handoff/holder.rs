//! The side that releases the lock, in variants with more and more of the parts of a real service.

use std::time::{Duration, Instant};

use fairlock::{Error, Lock, LockGuard, LockManager};
use fairlock_benches::Outcome;
use fairlock_benches::wire::Wire;
use futures_util::future::join;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::script::{Desk, Grant, released};
use crate::texts;

/// Waits until the next waiter has the lock, and returns the time at which it got it.
pub(crate) type Heard<'a> = &'a mut dyn FnMut() -> Outcome<Instant>;

pub(crate) trait Holder {
    /// Takes the lock, which must be free.
    fn hold(&mut self) -> Outcome<()>;

    /// Releases the lock. Returns the time from that call until the next waiter had the lock. A PING on the
    /// same connection comes right before, so that nothing on the way is asleep.
    fn release(&mut self, heard: Heard) -> Outcome<Duration>;
}

/// Only sends the message that a release publishes.
#[derive(Debug)]
pub(crate) struct Publisher {
    wire: Wire,
    channel: String,
}

impl Publisher {
    pub(crate) fn connect(url: &str, channel: String) -> Outcome<Publisher> {
        let wire = Wire::connect(url)?;
        Ok(Publisher { wire, channel })
    }
}

impl Holder for Publisher {
    fn hold(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn release(&mut self, heard: Heard) -> Outcome<Duration> {
        let push = format!("1 {:016} {:013} {:032x}:0000005000:1:", 1, 1, 1);
        self.wire.ping(1)?;
        let called = Instant::now();
        self.wire.command(&["PUBLISH", &self.channel, &push])?;
        Ok(heard()? - called)
    }
}

/// Calls the script on a bare socket, from a thread.
#[derive(Debug)]
pub(crate) struct Thread {
    desk: Desk,
    wire: Wire,
    script: String,
    held: Option<Grant>,
}

impl Thread {
    pub(crate) fn connect(url: &str, desk: Desk) -> Outcome<Thread> {
        let mut wire = Wire::connect(url)?;
        let script = wire.command(&["SCRIPT", "LOAD", &texts::inlined(texts::RELEASE)])?;
        Ok(Thread {
            desk,
            wire,
            script,
            held: None,
        })
    }
}

impl Holder for Thread {
    fn hold(&mut self) -> Outcome<()> {
        self.held = Some(self.desk.hold()?);
        Ok(())
    }

    fn release(&mut self, heard: Heard) -> Outcome<Duration> {
        let held = self.held.take().ok_or("not held")?;
        let words = self.desk.release("EVALSHA", &self.script, &held);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.wire.ping(1)?;
        let called = Instant::now();
        released(&self.wire.command(&words)?)?;
        Ok(heard()? - called)
    }
}

/// Releases a guard, from a task.
#[derive(Debug)]
pub(crate) struct ByGuard<'a> {
    runtime: &'a Runtime,
    locks: LockManager,
    lock: Lock,
    held: Option<LockGuard>,
    /// A lock that is never free. It is tried right before each release.
    other: Option<LockGuard>,
}

impl<'a> ByGuard<'a> {
    pub(crate) fn connect(runtime: &'a Runtime, url: &str, name: &str) -> Outcome<ByGuard<'a>> {
        let locks = runtime.block_on(LockManager::connect(url))?;
        Ok(ByGuard {
            runtime,
            lock: locks.lock(name),
            locks,
            held: None,
            other: None,
        })
    }

    /// Makes the server run an acquire before each release.
    pub(crate) fn behind_an_acquire(mut self) -> Outcome<ByGuard<'a>> {
        let other = self.locks.lock(format!("other than {}", self.lock.name()));
        self.other = Some(self.runtime.block_on(other.acquire())?);
        Ok(self)
    }
}

impl Holder for ByGuard<'_> {
    fn hold(&mut self) -> Outcome<()> {
        self.held = Some(self.runtime.block_on(self.lock.acquire())?);
        Ok(())
    }

    fn release(&mut self, heard: Heard) -> Outcome<Duration> {
        let held = self.held.take().ok_or("not held")?;
        let locks = self.locks.clone();
        let other = self.other.as_ref().map(|other| locks.lock(other.name()));
        let release = self.runtime.spawn(async move {
            locks.ping().await?;
            let called = Instant::now();
            match other {
                Some(other) => {
                    let (tried, released) = join(other.try_acquire(), held.release()).await;
                    released?;
                    only_busy(tried)?;
                }
                None => held.release().await?,
            }
            Ok(called)
        });
        between(self.runtime, release, heard)
    }
}

/// The lock beside the measured one is held, so that the server runs a try of it to its end.
fn only_busy(tried: Result<LockGuard, Error>) -> Outcome<()> {
    match tried {
        Err(Error::Busy { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the other lock was free".into()),
    }
}

/// The reply to the release is not read until the next waiter has the lock, so that it wakes nothing here
/// meanwhile.
fn between(runtime: &Runtime, release: JoinHandle<Outcome<Instant>>, heard: Heard) -> Outcome<Duration> {
    let heard = heard()?;
    Ok(heard - runtime.block_on(release)??)
}
