//! A history of waits and holds: when each waiter asked for a lock, got it and released it, over tasks and
//! processes.
//!
//! `CLOCK_MONOTONIC` is one clock for all processes of a machine. So the events of many processes merge into
//! one exact order, and mutual exclusion means that sorted intervals do not overlap. A history in a file
//! takes the events of several processes as appended lines, and loses none when a process is killed.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).expect("a time since boot")
}

/// One wait for a lock, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub waiter: String,
    pub asked_ns: u64,
    /// `None` while it still waits.
    pub granted_ns: Option<u64>,
    /// `None` while it still holds.
    pub released_ns: Option<u64>,
    pub fence: Option<u64>,
}

impl Hold {
    /// The time from the request to the grant.
    pub fn wait(&self) -> Option<Duration> {
        self.granted_ns
            .map(|granted| Duration::from_nanos(granted.saturating_sub(self.asked_ns)))
    }
}

/// A log of holds. Clones write to the same log.
#[derive(Clone, Debug)]
pub struct History {
    sink: Arc<Sink>,
}

#[derive(Debug)]
enum Sink {
    Memory(Mutex<String>),
    /// Opened for appending, so that the lines of several processes do not mix.
    File(File, std::path::PathBuf),
}

/// One wait that is being logged.
#[derive(Debug)]
pub struct Entry {
    history: History,
    waiter: String,
    id: String,
}

impl Default for History {
    fn default() -> History {
        History {
            sink: Arc::new(Sink::Memory(Mutex::default())),
        }
    }
}

impl History {
    /// A history in a file, for several processes.
    pub fn in_file(path: impl AsRef<Path>) -> History {
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .expect("a file for the history");
        History {
            sink: Arc::new(Sink::File(file, path)),
        }
    }

    /// Logs that `waiter` asks now.
    pub fn asks(&self, waiter: impl fmt::Display) -> Entry {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let entry = Entry {
            history: self.clone(),
            waiter: waiter.to_string(),
            id,
        };
        entry.log("asked", None);
        entry
    }

    /// Logs that the process is dead, and so no longer holds anything.
    pub fn died(&self, pid: u32) {
        self.write(&format!("{pid}. died {} - -\n", now_ns()));
    }

    /// All holds so far, in the order of their grants, followed by the waits without a grant.
    pub fn holds(&self) -> Vec<Hold> {
        let text = match &*self.sink {
            Sink::Memory(text) => text.lock().unwrap().clone(),
            Sink::File(_, path) => std::fs::read_to_string(path).expect("the history"),
        };
        // Another process may be writing the last line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut holds: Vec<(String, Hold)> = Vec::new();
        for line in whole.lines() {
            // The waiter comes last, because its name may contain spaces.
            let [id, event, at, fence, waiter] = line.splitn(5, ' ').collect::<Vec<_>>()[..] else {
                panic!("not an event: {line:?}");
            };
            let at: u64 = at.parse().expect("a time");
            if event == "died" {
                for (_, hold) in holds.iter_mut().filter(|(owner, _)| owner.starts_with(id)) {
                    hold.released_ns.get_or_insert(at);
                }
                continue;
            }
            if event == "asked" {
                let hold = Hold {
                    waiter: waiter.to_owned(),
                    asked_ns: at,
                    granted_ns: None,
                    released_ns: None,
                    fence: None,
                };
                holds.push((id.to_owned(), hold));
                continue;
            }
            let (_, hold) = holds
                .iter_mut()
                .rev()
                .find(|(owner, _)| owner == id)
                .expect("a request before its grant");
            match event {
                "granted" => {
                    hold.granted_ns = Some(at);
                    hold.fence = fence.parse().ok();
                }
                "released" => hold.released_ns = Some(at),
                other => panic!("not an event: {other}"),
            }
        }
        let mut holds: Vec<Hold> = holds.into_iter().map(|(_, hold)| hold).collect();
        holds.sort_by_key(|hold| (hold.granted_ns.unwrap_or(u64::MAX), hold.asked_ns));
        holds
    }

    /// The holds that were granted, in the order of their grants.
    pub fn grants(&self) -> Vec<Hold> {
        self.holds()
            .into_iter()
            .filter(|hold| hold.granted_ns.is_some())
            .collect()
    }

    /// The waiters in the order of their grants.
    pub fn order(&self) -> Vec<String> {
        self.grants().into_iter().map(|hold| hold.waiter).collect()
    }

    /// Checks mutual exclusion: the lock was never granted while another held it. A hold that was not
    /// released lasts for ever, unless its process [`died`](History::died).
    #[track_caller]
    pub fn assert_no_overlap(&self) {
        let grants = self.grants();
        for pair in grants.windows(2) {
            let next = pair[1].granted_ns.expect("granted");
            let free = pair[0].released_ns.is_some_and(|released| released <= next);
            assert!(free, "two holders at once:\n{:?}\n{:?}", pair[0], pair[1]);
        }
    }

    /// Checks that the grants went to these waiters, in this order.
    #[track_caller]
    pub fn assert_order<W: fmt::Display>(&self, waiters: impl IntoIterator<Item = W>) {
        let expected: Vec<String> = waiters.into_iter().map(|waiter| waiter.to_string()).collect();
        assert_eq!(self.order(), expected, "the order of the grants");
    }

    /// Checks that the grants went in the order of the requests.
    #[track_caller]
    pub fn assert_first_come_first_served(&self) {
        for pair in self.grants().windows(2) {
            assert!(
                pair[0].asked_ns < pair[1].asked_ns,
                "overtaken:\n{:?}\n{:?}",
                pair[0],
                pair[1]
            );
        }
    }

    /// Checks that every grant had a larger fence than all before it.
    #[track_caller]
    pub fn assert_fences_increase(&self) {
        for pair in self.grants().windows(2) {
            let rises = pair[0].fence.is_some() && pair[0].fence < pair[1].fence;
            assert!(rises, "fence not larger:\n{:?}\n{:?}", pair[0], pair[1]);
        }
    }

    fn write(&self, line: &str) {
        match &*self.sink {
            Sink::Memory(text) => text.lock().unwrap().push_str(line),
            Sink::File(file, _) => {
                let mut file: &File = file;
                file.write_all(line.as_bytes()).expect("the history is written");
            }
        }
    }
}

impl Entry {
    /// Logs that the lock was granted. Call this right after the grant, with its fence.
    pub fn granted(&self, fence: u64) {
        self.log("granted", Some(fence));
    }

    /// Logs that the lock is released. Call this just before the release.
    pub fn released(self) {
        self.log("released", None);
    }

    fn log(&self, event: &str, fence: Option<u64>) {
        let fence = fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        let line = format!("{} {event} {} {fence} {}\n", self.id, now_ns(), self.waiter);
        self.history.write(&line);
    }
}
