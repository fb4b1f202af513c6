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
}

impl Wait {
    /// Reads `waiter,asked_ns,granted_ns,released_ns`, and `,fence` if there is one.
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
    /// Grants while another waiter still held the lock: a violation of mutual exclusion.
    pub overlaps: usize,
    /// Grants whose fence was not above those of all earlier grants.
    pub stale_fences: usize,
}

/// Analyses one round. `history` has the merged rows, and `waiters` is the number of waiters. Grants from
/// `begin_ns` to `end_ns` count. Overlaps and stale fences count from the first row on.
pub fn analyse(history: &[Wait], begin_ns: i64, end_ns: i64, waiters: usize) -> Findings {
    let mut held: Vec<(i64, &Wait)> = history.iter().filter_map(|w| Some((w.granted_ns?, w))).collect();
    held.sort_by_key(|(granted, _)| *granted);

    let window: Vec<(i64, &Wait)> = held
        .iter()
        .filter(|(granted, _)| (begin_ns..=end_ns).contains(granted))
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
        .filter(|w| w.granted_ns.is_none_or(|granted| granted > end_ns));
    let mut waits_ns: Vec<i64> = window
        .iter()
        .map(|(granted, wait)| granted - wait.asked_ns)
        .collect();
    waits_ns.extend(
        open.map(|wait| end_ns - wait.asked_ns)
            .filter(|open_ns| *open_ns >= 0),
    );
    waits_ns.sort_unstable();

    let starved = waiters.saturating_sub(counts.len());
    Findings {
        window_ns: end_ns - begin_ns,
        acquisitions: window.len(),
        handoffs,
        gaps_ns,
        waits_ns,
        jain: vec![jain(counts.into_values().chain(std::iter::repeat_n(0, starved)))],
        starved,
        overlaps: overlaps(&held),
        stale_fences: stale_fences(&held),
    }
}

/// Counts the grants in a span of time, of all locks.
pub fn granted(history: &[Wait], begin_ns: i64, end_ns: i64) -> usize {
    let grants = history.iter().filter_map(|wait| wait.granted_ns);
    grants.filter(|at| (begin_ns..=end_ns).contains(at)).count()
}

/// Counts the grants that came before the end of an earlier hold. `held` is ascending by grant.
fn overlaps(held: &[(i64, &Wait)]) -> usize {
    let mut free_from = i64::MIN;
    let mut count = 0;
    for (granted, wait) in held {
        if *granted < free_from {
            count += 1;
        }
        free_from = free_from.max(wait.released_ns.unwrap_or(i64::MAX));
    }
    count
}

/// Counts the grants whose fence is not above those of all earlier ones. `held` is ascending by grant.
fn stale_fences(held: &[(i64, &Wait)]) -> usize {
    let mut largest = None;
    let fences = held.iter().filter_map(|(_, wait)| wait.fence);
    fences
        .filter(|fence| {
            let is_stale = largest >= Some(*fence);
            largest = largest.max(Some(*fence));
            is_stale
        })
        .count()
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
