//! The records that client processes write of their waits and holds, and the code that reads them.
//!
//! Each process has its own file, and writes each line at once, so the records of a killed process are
//! complete. Times are those of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! A holder believes that it holds the lock from its first check of the guard to the last check that found it
//! held. The time of a check is taken *before* the check: a process that is stopped between the two then
//! records what was true at that time.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use fairlock::LockGuard;
use fairlock_testkit::now_ns;

/// The file of one process.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    waits: AtomicU64,
}

/// One wait that is being recorded, and the hold that it leads to.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    record: &'a Record,
    id: u64,
    held: bool,
}

/// How a wait or a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The lock was released.
    Released,
    /// The guard reported the loss of the lease.
    Lost,
    /// There was no grant.
    GivenUp,
    /// The server did not answer for too long.
    Unavailable,
    /// No majority of the servers answered for too long.
    NoQuorum,
}

/// Where a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    /// By a request of its own.
    Server,
    /// In the local queue of its process.
    Local,
}

impl Record {
    pub(crate) fn create(path: &str) -> Record {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Record {
            file: file.expect("a file to write to"),
            waits: AtomicU64::new(0),
        }
    }

    /// Records that a task asks for a lock now.
    pub(crate) fn asks(&self, lock: usize, queue: Queue) -> Entry<'_> {
        let id = self.waits.fetch_add(1, Ordering::Relaxed);
        self.write(&format!("asked {id} {lock} {} {queue:?}", now_ns()));
        Entry {
            record: self,
            id,
            held: false,
        }
    }

    /// Records that others could not rely on this process from `since_ns` until now.
    pub(crate) fn disturbed(&self, since_ns: u64) {
        self.write(&format!("disturbed {since_ns} {}", now_ns()));
    }

    fn write(&self, line: &str) {
        // The line is written in one piece, so that a killed process leaves no half line.
        (&self.file)
            .write_all(format!("{line}\n").as_bytes())
            .expect("a line is written");
    }
}

impl Entry<'_> {
    /// Checks the guard. If it still holds, records that the lock was held until now.
    pub(crate) fn checks(&mut self, guard: &LockGuard) -> bool {
        let now = now_ns();
        let is_held = guard.check().is_ok();
        if is_held {
            self.record
                .write(&format!("holds {} {} {now}", self.id, guard.fence()));
            self.held = true;
        }
        is_held
    }

    pub(crate) fn over(self, end: End) {
        self.record
            .write(&format!("over {} {end:?} {}", self.id, now_ns()));
    }
}

/// One wait, as read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The process that waited.
    pub(crate) process: usize,
    pub(crate) lock: usize,
    pub(crate) queue: Queue,
    pub(crate) asked_ns: u64,
    pub(crate) belief: Option<Belief>,
    /// `None` if its process was killed before the end.
    pub(crate) end: Option<End>,
    pub(crate) ended_ns: Option<u64>,
}

/// How long a holder was sure that it held the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belief {
    pub(crate) fence: u64,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// A time span in which one process, or all of them, may have been unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disturbance {
    /// `None` means all processes.
    pub(crate) process: Option<usize>,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// Reads the records of the process with that number, if there is a file.
pub(crate) fn read(path: &str, process: usize) -> Option<(Vec<Wait>, Vec<Disturbance>)> {
    let text = std::fs::read_to_string(path).ok()?;
    let (mut waits, mut disturbances) = (Vec::new(), Vec::new());
    let mut places = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "asked" => {
                places.insert(number(1), waits.len());
                waits.push(Wait {
                    process,
                    lock: usize::try_from(number(2)).unwrap(),
                    queue: match words[4] {
                        "Local" => Queue::Local,
                        _ => Queue::Server,
                    },
                    asked_ns: number(3),
                    belief: None,
                    end: None,
                    ended_ns: None,
                });
            }
            "holds" => {
                let now = number(3);
                let belief = &mut waits[places[&number(1)]].belief;
                let first = Belief {
                    fence: number(2),
                    from_ns: now,
                    until_ns: now,
                };
                belief.get_or_insert(first).until_ns = now;
            }
            "over" => {
                let all = [
                    End::Released,
                    End::Lost,
                    End::GivenUp,
                    End::Unavailable,
                    End::NoQuorum,
                ];
                let end = all.into_iter().find(|end| format!("{end:?}") == words[2]);
                let wait = &mut waits[places[&number(1)]];
                wait.end = Some(end.expect("an end"));
                wait.ended_ns = Some(number(3));
            }
            "disturbed" => disturbances.push(Disturbance {
                process: Some(process),
                from_ns: number(1),
                until_ns: number(2),
            }),
            other => panic!("unknown event {other:?}"),
        }
    }
    Some((waits, disturbances))
}
