//! What a merged history of waits shows: throughput, gaps, waits, fairness and overlaps. Nothing here does
//! I/O or reads a clock, so that it can be tested by itself.
//!
//! All times are CLOCK_MONOTONIC nanoseconds. That is one clock for all processes of a machine, so the rows
//! of many processes form one exact history.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

/// One wait of one waiter. A client process writes it as one line of CSV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The waiter's name, which is unique over all processes.
    pub waiter: String,
    pub asked_ns: i64,
    /// `None` means still waiting at the end.
    pub granted_ns: Option<i64>,
    /// The time just before the release was called. `None` means still held at the end.
    pub released_ns: Option<i64>,
    /// The fencing token of the grant, if the lock has one.
    pub fence: Option<u64>,
    /// The permits that it takes. The row does not say so: it is the same for all rows of a process.
    pub permits: u32,
}

impl Wait {
    /// Reads `waiter,asked_ns,granted_ns,released_ns`, and `,fence` if there is one. It is for one permit.
    pub fn parse(line: &str) -> Option<Wait> {
        let mut fields = line.trim_end().split(',');
        let waiter = fields.next()?.to_owned();
        let asked_ns = fields.next()?.parse().ok()?;
        let mut optional = || match fields.next()? {
            "" => Some(None),
            ns => ns.parse().ok().map(Some),
        };
        let wait = Wait {
            waiter,
            asked_ns,
            granted_ns: optional()?,
            released_ns: optional()?,
            fence: fields.next().map(str::parse).transpose().ok()?,
            permits: 1,
        };
        fields.next().is_none().then_some(wait)
    }
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_empty = |ns: Option<i64>| ns.map(|ns| ns.to_string()).unwrap_or_default();
        let (granted, released) = (or_empty(self.granted_ns), or_empty(self.released_ns));
        write!(f, "{},{},{granted},{released}", self.waiter, self.asked_ns)?;
        self.fence.map_or(Ok(()), |fence| write!(f, ",{fence}"))
    }
}

/// What one round showed, or several of the same kind together.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The measured time, in nanoseconds.
    pub window_ns: i64,
    /// Grants within that time.
    pub acquisitions: usize,
    /// Grants to another waiter than the previous holder.
    pub handoffs: usize,
    /// The time from the call of a release to the next waiter's grant, for each of these hand-offs;
    /// ascending.
    pub gaps_ns: Vec<i64>,
    /// The time from the request to the grant, and for waits that were still open, from the request to the
    /// end; ascending. Without the open waits, a lock that lets most waiters starve would look fast.
    pub waits_ns: Vec<i64>,
    /// Jain's index over the acquisitions of the waiters, one value per round.
    pub jain: Vec<f64>,
    /// Waiters that had no grant within the time.
    pub starved: usize,
    /// The longest time from a grant to its release.
    pub longest_hold_ns: i64,
    /// The most that were inside at a time.
    pub most_inside: i64,
    /// Grants that came before there was room for them. Of a lock they violate mutual exclusion.
    pub overlaps: usize,
    /// Grants whose fence was not above those of all earlier grants.
    pub stale_fences: usize,
}

/// Those whose waits are analysed: all waiters of a lock or a semaphore, the readers or the writers.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    pub waiters: usize,
    /// The permits that each of them takes.
    pub permits: u32,
    /// The permits that may be in use at a time.
    pub capacity: u32,
}

impl Party {
    /// The waiters of a lock, which has one permit.
    pub const fn of_lock(waiters: usize) -> Party {
        Party {
            waiters,
            permits: 1,
            capacity: 1,
        }
    }
}

/// Analyses one round. `history` has the merged rows of all parties. Grants to this party from `begin_ns` to
/// `end_ns` count. Overlaps and stale fences count from the first row on.
pub fn analyse(history: &[Wait], begin_ns: i64, end_ns: i64, party: Party) -> Findings {
    let is_of_party = |wait: &Wait| wait.permits == party.permits;
    let mut held: Vec<(i64, &Wait)> = history.iter().filter_map(|w| Some((w.granted_ns?, w))).collect();
    held.sort_by_key(|(granted, _)| *granted);

    let window: Vec<(i64, &Wait)> = held
        .iter()
        .filter(|(granted, wait)| is_of_party(wait) && (begin_ns..=end_ns).contains(granted))
        .copied()
        .collect();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for (_, wait) in &window {
        *counts.entry(&wait.waiter).or_default() += 1;
    }

    let mut handoffs = 0;
    let mut gaps_ns = Vec::new();
    for pair in window.windows(2) {
        let ((_, before), (granted, after)) = (pair[0], pair[1]);
        if before.waiter != after.waiter {
            handoffs += 1;
            gaps_ns.extend(before.released_ns.map(|released| granted - released));
        }
    }
    gaps_ns.sort_unstable();

    let open = history
        .iter()
        .filter(|w| is_of_party(w) && w.granted_ns.is_none_or(|granted| granted > end_ns));
    let mut waits_ns: Vec<i64> = window
        .iter()
        .map(|(granted, wait)| granted - wait.asked_ns)
        .collect();
    waits_ns.extend(
        open.map(|wait| end_ns - wait.asked_ns)
            .filter(|open_ns| *open_ns >= 0),
    );
    waits_ns.sort_unstable();

    let starved = party.waiters.saturating_sub(counts.len());
    let holds_ns = window
        .iter()
        .filter_map(|(granted, wait)| Some(wait.released_ns? - granted));
    let (most_inside, overlaps) = inside(&held, party);
    Findings {
        window_ns: end_ns - begin_ns,
        acquisitions: window.len(),
        handoffs,
        gaps_ns,
        waits_ns,
        jain: vec![jain(counts.into_values().chain(std::iter::repeat_n(0, starved)))],
        starved,
        longest_hold_ns: holds_ns.max().unwrap_or_default(),
        most_inside,
        overlaps,
        stale_fences: stale_fences(&held, party),
    }
}

/// Counts the grants in a span of time, of all locks.
pub fn granted(history: &[Wait], begin_ns: i64, end_ns: i64) -> usize {
    let grants = history.iter().filter_map(|wait| wait.granted_ns);
    grants.filter(|at| (begin_ns..=end_ns).contains(at)).count()
}

/// Walks through the holds, which are ascending by grant. Returns the most of this party that were inside at
/// a time, and how many of its grants came when too many permits were in use.
fn inside(held: &[(i64, &Wait)], party: Party) -> (i64, usize) {
    let permits = |wait: &Wait| i64::from(wait.permits);
    let ended = |(_, wait): &(i64, &Wait)| Some((wait.released_ns?, permits(wait)));
    let mut ends: Vec<(i64, i64)> = held.iter().filter_map(ended).collect();
    ends.sort_unstable();
    let (mut ends, mut in_use, mut most, mut overlaps) = (ends.into_iter().peekable(), 0, 0, 0);
    for (granted, wait) in held {
        while let Some((_, permits)) = ends.next_if(|(released, _)| released <= granted) {
            in_use -= permits;
        }
        in_use += permits(wait);
        if wait.permits == party.permits {
            most = most.max(in_use / permits(wait));
            overlaps += usize::from(in_use > i64::from(party.capacity));
        }
    }
    (most, overlaps)
}

/// Counts the grants to this party whose fence is not above those of all earlier ones. `held` is ascending by
/// grant. Of a lock, the grants have one order. Otherwise those are earlier that came before the request.
fn stale_fences(held: &[(i64, &Wait)], party: Party) -> usize {
    let since = |(granted, wait): &(i64, &Wait)| match party.capacity {
        1 => *granted,
        _ => wait.asked_ns,
    };
    let mut asked = held.to_vec();
    asked.sort_by_key(since);
    let (mut earlier, mut largest, mut stale) = (held.iter().peekable(), None, 0);
    for one in &asked {
        while let Some((_, before)) = earlier.next_if(|(granted, _)| *granted < since(one)) {
            largest = largest.max(before.fence);
        }
        let is_stale = one.1.fence.is_some() && largest >= one.1.fence;
        stale += usize::from(is_stale && one.1.permits == party.permits);
    }
    stale
}

/// Jain's fairness index, `(Σx)² ÷ (n · Σx²)`: 1 if all got the same, `1 ÷ n` if one got everything.
pub fn jain(counts: impl IntoIterator<Item = u64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for count in counts {
        let x = count as f64;
        n += 1.0;
        sum += x;
        squares += x * x;
    }
    if squares == 0.0 {
        0.0
    } else {
        sum * sum / (n * squares)
    }
}

/// The value below which `per_mille` ÷ 1,000 of the values lie. `None` if there are no values.
pub fn quantile(ascending: &[i64], per_mille: usize) -> Option<i64> {
    let at = ascending.len() * per_mille / 1000;
    ascending.get(at.min(ascending.len().saturating_sub(1))).copied()
}

impl Findings {
    /// Adds another round of the same kind.
    pub fn add(&mut self, other: Findings) {
        self.window_ns += other.window_ns;
        self.acquisitions += other.acquisitions;
        self.handoffs += other.handoffs;
        self.gaps_ns = merged(&self.gaps_ns, &other.gaps_ns);
        self.waits_ns = merged(&self.waits_ns, &other.waits_ns);
        self.jain.extend(other.jain);
        self.starved = self.starved.max(other.starved);
        self.longest_hold_ns = self.longest_hold_ns.max(other.longest_hold_ns);
        self.most_inside = self.most_inside.max(other.most_inside);
        self.overlaps += other.overlaps;
        self.stale_fences += other.stale_fences;
    }

    pub fn acquisitions_per_s(&self) -> f64 {
        per_second(self.acquisitions, self.window_ns)
    }

    pub fn handoffs_per_s(&self) -> f64 {
        per_second(self.handoffs, self.window_ns)
    }

    /// The mean over the rounds.
    pub fn jain_mean(&self) -> f64 {
        self.jain.iter().sum::<f64>() / self.jain.len().max(1) as f64
    }
}

fn per_second(count: usize, window_ns: i64) -> f64 {
    if window_ns <= 0 {
        0.0
    } else {
        count as f64 * 1e9 / window_ns as f64
    }
}

fn merged(a: &[i64], b: &[i64]) -> Vec<i64> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all
}
