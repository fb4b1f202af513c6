//! What client processes write down of their waits and holds, and how it is read.
//!
//! Each process has a file of its own, and writes each line at once, so that one that is killed leaves all that it
//! has written. Times are those of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! A holder believes that it holds from its first look at the guard to its last one that found it held. The time of a
//! look is taken *before* the look: a process that is stopped between the two writes down what was true then.

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

/// One wait that is being written down, and the hold that it leads to.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    record: &'a Record,
    id: u64,
    held: bool,
}

/// How a wait or a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The lock was given back.
    Released,
    /// The guard said that the lease was lost.
    Lost,
    /// There was no grant.
    GivenUp,
    /// No server answered for too long.
    Unavailable,
}

impl Record {
    pub(crate) fn create(path: &str) -> Record {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Record {
            file: file.expect("a file to write to"),
            waits: AtomicU64::new(0),
        }
    }

    /// A task asks for a lock now.
    pub(crate) fn asks(&self, lock: usize) -> Entry<'_> {
        let id = self.waits.fetch_add(1, Ordering::Relaxed);
        self.write(&format!("asked {id} {lock} {}", now_ns()));
        Entry {
            record: self,
            id,
            held: false,
        }
    }

    /// Since then, until now, this process was not what others may rely on.
    pub(crate) fn disturbed(&self, since_ns: u64) {
        self.write(&format!("disturbed {since_ns} {}", now_ns()));
    }

    fn write(&self, line: &str) {
        // In one piece, so that a process that is killed leaves no half of it.
        (&self.file)
            .write_all(format!("{line}\n").as_bytes())
            .expect("a line is written");
    }
}

impl Entry<'_> {
    /// Looks at the guard, and writes down that the lock was held until now if it was.
    pub(crate) fn looks(&mut self, guard: &LockGuard) -> bool {
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

/// One wait, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The process that waited.
    pub(crate) process: usize,
    pub(crate) lock: usize,
    pub(crate) asked_ns: u64,
    pub(crate) belief: Option<Belief>,
    /// Nothing if its process was killed before.
    pub(crate) end: Option<End>,
}

/// For how long a holder was sure that it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belief {
    pub(crate) fence: u64,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// A span in which somebody, or everybody, had other troubles than waiting for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disturbance {
    /// Nothing: everybody.
    pub(crate) process: Option<usize>,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// Reads what the process of that number wrote, if there is a file.
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
                    asked_ns: number(3),
                    belief: None,
                    end: None,
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
                let all = [End::Released, End::Lost, End::GivenUp, End::Unavailable];
                let end = all.into_iter().find(|end| format!("{end:?}") == words[2]);
                waits[places[&number(1)]].end = Some(end.expect("an end"));
            }
            "disturbed" => disturbances.push(Disturbance {
                process: Some(process),
                from_ns: number(1),
                until_ns: number(2),
            }),
            other => panic!("what is {other:?}?"),
        }
    }
    Some((waits, disturbances))
}
