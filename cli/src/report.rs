//! What a command says of locks while it waits for them and holds them. None of it goes to stdout.

use std::fs::{File, OpenOptions};
use std::io::{stderr, stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fairlock::{HoldToken, Holder, Kind, Status};
use serde::Serialize;

use crate::args::Taking;
use crate::exit::Failure;
use crate::output::{self, Sink};
use crate::spans::{millis, show};

/// Something that has happened to a lock, or to CMD.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Waiting {
        name: &'a str,
        waited_ms: u64,
        holder: Option<&'a Holder>,
        waiting: u64,
    },
    Acquired {
        name: &'a str,
        fence: u64,
        waited_ms: u64,
    },
    Lost {
        name: &'a str,
        fence: u64,
        reason: &'a str,
    },
    ChildExited {
        name: &'a str,
        code: Option<u8>,
        signal: Option<&'a str>,
    },
    Released {
        name: &'a str,
        fence: u64,
    },
}

pub(crate) struct Report {
    /// The name of the first lock.
    name: String,
    quiet: bool,
    verbose: bool,
    /// Whether events are told in words, on stderr.
    words: bool,
    json: Option<Arc<File>>,
}

impl Report {
    pub(crate) fn of(taking: &Taking) -> Result<Report, Failure> {
        output::start();
        let number = taking.status_fd.or(taking.json.then_some(2));
        let unusable = |error| Failure::usage(format!("--status-fd {}: {error}", number.unwrap_or(0)));
        Ok(Report {
            name: taking.name.clone(),
            quiet: taking.quiet,
            verbose: taking.verbose,
            words: number != Some(2),
            json: number
                .map(descriptor)
                .transpose()
                .map_err(unusable)?
                .map(Arc::new),
        })
    }

    pub(crate) fn waiting(&self, name: &str, kind: Kind, status: &Status, waited: Duration) {
        self.event(&Event::Waiting {
            name,
            waited_ms: millis(waited),
            holder: status.holder.as_ref(),
            waiting: status.waiting,
        });
        if self.quiet {
            return;
        }
        let front = match &status.holder {
            Some(_) => state(kind, status),
            None if status.waiting == 0 => "free, but the server has not taken the request yet".to_owned(),
            None => "free, and about to be handed over".to_owned(),
        };
        self.words(&format!(
            "waiting for {name}: {front}, {} waiting",
            status.waiting
        ));
    }

    pub(crate) fn acquired(&self, token: &HoldToken, waited: Duration) {
        let (name, fence) = (token.name(), token.fence().get());
        self.event(&Event::Acquired {
            name,
            fence,
            waited_ms: millis(waited),
        });
        if self.verbose {
            let waited = show(waited);
            self.words(&format!("acquired {name} after {waited}, fence {fence}"));
        }
    }

    /// `reason` is for machines, `why` for people.
    pub(crate) fn lost(&self, token: &HoldToken, reason: &str, why: &str) {
        self.event(&Event::Lost {
            name: token.name(),
            fence: token.fence().get(),
            reason,
        });
        self.words(why);
    }

    pub(crate) fn child_exited(&self, code: Option<u8>, signal: Option<&str>) {
        self.event(&Event::ChildExited {
            name: &self.name,
            code,
            signal,
        });
    }

    pub(crate) fn released(&self, token: &HoldToken, held: Duration) {
        let name = token.name();
        self.event(&Event::Released {
            name,
            fence: token.fence().get(),
        });
        if self.verbose {
            self.words(&format!("released {name} after {}", show(held)));
        }
    }

    /// Whether it is worth a word that a lock was not acquired.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn words(&self, text: &str) {
        if self.words {
            say(text);
        }
    }

    fn event(&self, event: &Event<'_>) {
        if let (Some(file), Ok(mut line)) = (&self.json, serde_json::to_vec(event)) {
            line.push(b'\n');
            output::write(Sink::File(Arc::clone(file)), line);
        }
    }
}

/// Says something on stderr, if somebody reads that.
pub(crate) fn say(text: &str) {
    let text = printable(text);
    output::write(Sink::Stderr, format!("fairlock: {text}\n").into_bytes());
}

/// What to say to somebody who may have meant more than one lock.
pub(crate) fn hint(name: &str) -> Option<String> {
    let is_pattern = name.contains(['*', '?']);
    is_pattern
        .then(|| format!("{name} is the name of one lock: `fairlock list '{name}'` shows those that match"))
}

/// One line of text. Names and labels are what others have chosen. A terminal must not take them for orders,
/// and a reader not for lines of their own.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// How much of it is in use, if several can hold it.
pub(crate) fn in_use(kind: Kind, status: &Status) -> Option<String> {
    match (kind, status.readers) {
        (Kind::Semaphore, _) => {
            let (permits, capacity) = (status.permits_in_use, status.capacity?);
            Some(format!("{permits} of {capacity} permits in use"))
        }
        (Kind::ReadWrite, 1) => Some("1 reader".to_owned()),
        (Kind::ReadWrite, readers @ 2..) => Some(format!("{readers} readers")),
        _ => None,
    }
}

/// As in `held by …`, `a writer, held by …`, `3 readers` or `free`.
pub(crate) fn state(kind: Kind, status: &Status) -> String {
    match (&status.holder, in_use(kind, status)) {
        (None, _) => "free".to_owned(),
        (_, Some(in_use)) => in_use,
        (Some(writer), None) if kind == Kind::ReadWrite => format!("a writer, {}", held_by(writer)),
        (Some(holder), None) => held_by(holder),
    }
}

/// A line for each holder that [`state`] does not name.
pub(crate) fn holders(kind: Kind, status: &Status) -> Vec<String> {
    if in_use(kind, status).is_none() {
        return Vec::new();
    }
    let line = |holder: &Holder| match kind {
        Kind::Semaphore => {
            let slot = holder
                .slot
                .map_or(String::new(), |slot| format!(" (slot {slot})"));
            let (permits, of) = (holder.permits, holder.capacity.unwrap_or(holder.permits));
            format!("{permits} of {of} permits{slot} {}", held_by(holder))
        }
        _ => held_by(holder),
    };
    let mut lines: Vec<String> = status.holders.iter().map(line).collect();
    if let more @ 1.. = not_shown(status) {
        let what = match kind {
            Kind::Semaphore => "permits",
            _ => "readers",
        };
        lines.push(format!("and {more} more {what}, whose holds end later"));
    }
    lines
}

/// How many permits are in use, or how many readers there are, beside the holders that a status has.
pub(crate) fn not_shown(status: &Status) -> u64 {
    let shown = status.holders.iter().map(|holder| u64::from(holder.permits));
    (status.permits_in_use + status.readers).saturating_sub(shown.sum())
}

/// As in `held by web-7:4711 for 12.3s, fence 1700000000000000, 21.0s left`.
pub(crate) fn held_by(holder: &Holder) -> String {
    let label = holder.label.as_deref().unwrap_or("an unknown client");
    let (held_for, ttl) = (show(holder.held_for), show(holder.ttl));
    let state = match (holder.kept, holder.retains) {
        (true, _) => "kept",
        (false, true) => "held or retained",
        (false, false) => "held",
    };
    format!(
        "{state} by {label} for {held_for}, fence {}, {ttl} left",
        holder.fence
    )
}

/// The file behind a descriptor that this process was started with.
fn descriptor(number: u16) -> std::io::Result<File> {
    let standard = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    match number {
        1 => standard(stdout().as_fd()),
        2 => standard(stderr().as_fd()),
        // A file that is opened again has a position of its own.
        _ => OpenOptions::new().append(true).open(format!("/dev/fd/{number}")),
    }
}
