//! What is checked of a quorum besides exclusion, fences and order: nobody is kept waiting for nothing, and
//! nobody believes to hold without a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::round::{LEASE, SERVER_TIMEOUT};
use crate::contention::record::{End, Wait};
use crate::contention::verdict::History;

/// The longest time from the loss of a majority until a caller is told: a vote of a server that failed runs
/// out, or the next poll is due; after the timeout the last call may take as long again; and the machine may
/// be busy.
pub(crate) const ANSWERED: Duration = LEASE
    .saturating_add(SERVER_TIMEOUT)
    .saturating_add(SERVER_TIMEOUT)
    .saturating_add(Duration::from_millis(500));
/// The longest time for which a lock is free while the next holder waits for it: the leases of a holder and
/// of some clients after it that are stopped or dead run out.
const LONGEST_IDLE: Duration = Duration::from_secs(5);
/// The longest time from the return of a majority until each process holds a lock.
const SERVED: Duration = Duration::from_secs(10);

/// A time span in which no majority of the servers could be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    /// When all servers could grant locks again. This is later if they were mute at first.
    pub(crate) over_ns: u64,
}

/// The longest times of a part of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest {
    /// A lock was free, and its next holder waited.
    pub(crate) idle: Duration,
    /// A caller was told that there was no majority.
    pub(crate) told: Duration,
    /// From the end of an outage until all processes had held a lock.
    pub(crate) served: Duration,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a time")
}

/// Checks a part in which a majority was there all the time.
pub(crate) fn of_minority(history: &History, violations: &mut Vec<String>) -> Longest {
    for wait in &history.waits {
        let has_failed = matches!(wait.end, Some(End::NoQuorum | End::Unavailable));
        if has_failed && !was_stopped(history, wait) {
            violations.push(format!(
                "a majority was there, and a caller did not get it: {wait:?}"
            ));
        }
    }
    let (idle, after) = longest_idle(history);
    if idle > LONGEST_IDLE {
        violations.push(format!("a lock was free for {idle:?} before {after:?}"));
    }
    Longest {
        idle,
        ..Longest::default()
    }
}

/// Whether the process of this wait was stopped for so long that it could find its timeouts over afterwards,
/// with the answers unread. A call from before the stop that fails in this way takes with it the callers that
/// wait in the client, and some of them may have come since.
fn was_stopped(history: &History, wait: &Wait) -> bool {
    history.disturbances.iter().any(|stop| {
        stop.process == Some(wait.process)
            && stop.until_ns - stop.from_ns >= nanos(LEASE)
            && stop.from_ns <= wait.ended_ns.unwrap_or(u64::MAX)
            && stop.until_ns + nanos(SERVER_TIMEOUT) >= wait.asked_ns
    })
}

/// The longest time for which a lock was free while its next holder waited for it, and this holder.
fn longest_idle(history: &History) -> (Duration, Option<&Wait>) {
    let mut locks: BTreeMap<usize, Vec<&Wait>> = BTreeMap::new();
    for wait in history.waits.iter().filter(|wait| wait.belief.is_some()) {
        locks.entry(wait.lock).or_default().push(wait);
    }
    let mut longest = (Duration::ZERO, None);
    for waits in locks.values_mut() {
        waits.sort_by_key(|wait| wait.belief.map(|belief| belief.from_ns));
        let mut free_ns = 0;
        for wait in waits.iter() {
            let Some(belief) = wait.belief else { continue };
            let idle = belief.from_ns.saturating_sub(wait.asked_ns.max(free_ns));
            if Duration::from_nanos(idle) > longest.0 {
                longest = (Duration::from_nanos(idle), Some(*wait));
            }
            free_ns = free_ns.max(belief.until_ns);
        }
    }
    longest
}

/// Checks a part in which majorities failed.
pub(crate) fn of_majority(history: &History, outages: &[Outage], violations: &mut Vec<String>) -> Longest {
    let mut longest = Longest::default();
    for wait in &history.waits {
        if wait.end == Some(End::Unavailable) {
            violations.push(format!("a quorum failed as one server does: {wait:?}"));
        }
    }
    for outage in outages {
        for wait in &history.waits {
            check_wait(wait, outage, &mut longest, violations);
        }
        check_recovery(history, outage, &mut longest, violations);
    }
    longest
}

fn check_wait(wait: &Wait, outage: &Outage, longest: &mut Longest, violations: &mut Vec<String>) {
    // Holds that were renewed just before the outage end with their leases.
    let out_of_leases = outage.from_ns + nanos(LEASE);
    if let Some(belief) = wait.belief {
        let began = belief.from_ns.max(out_of_leases);
        if began <= belief.until_ns.min(outage.until_ns) {
            violations.push(format!("held without a majority in {outage:?}: {wait:?}"));
        }
    }
    let asked = wait.asked_ns.max(outage.from_ns);
    let answered = wait.belief.map(|belief| belief.from_ns).or(wait.ended_ns);
    let told_by = asked + nanos(ANSWERED);
    if told_by < outage.until_ns && answered.is_none_or(|answered| answered > told_by) {
        violations.push(format!("not told of the outage {outage:?}: {wait:?}"));
    }
    if let (Some(End::NoQuorum), Some(ended)) = (wait.end, wait.ended_ns) {
        if outage.from_ns < ended && ended < outage.until_ns {
            longest.told = longest.told.max(Duration::from_nanos(ended - asked));
        }
    }
}

/// Checks that each process held a lock soon after the outage.
fn check_recovery(history: &History, outage: &Outage, longest: &mut Longest, violations: &mut Vec<String>) {
    let processes: BTreeSet<usize> = history.waits.iter().map(|wait| wait.process).collect();
    for process in processes {
        let held = history.waits.iter().filter(|wait| wait.process == process);
        let held = held.filter_map(|wait| wait.belief.map(|belief| belief.until_ns));
        let first = held.filter(|until| *until > outage.over_ns).min();
        let took = first.map(|first| Duration::from_nanos(first - outage.over_ns));
        match took {
            Some(took) if took <= SERVED => longest.served = longest.served.max(took),
            _ => violations.push(format!("process {process} held nothing after {outage:?}")),
        }
    }
}

/// Show that the checks find violations.
mod tests {
    use super::*;
    use crate::contention::record::{Belief, Disturbance, Queue};

    const MS: u64 = 1_000_000;
    const OUTAGE: Outage = Outage {
        from_ns: 10_000 * MS,
        until_ns: 20_000 * MS,
        over_ns: 21_000 * MS,
    };

    /// A wait from the one time to the other, in milliseconds.
    fn wait(asked: u64, ended: u64, end: End) -> Wait {
        Wait {
            process: 0,
            lock: 0,
            queue: Queue::Server,
            asked_ns: asked * MS,
            belief: None,
            end: Some(end),
            ended_ns: Some(ended * MS),
        }
    }

    fn hold(asked: u64, from: u64, until: u64) -> Wait {
        let belief = Belief {
            fence: from,
            from_ns: from * MS,
            until_ns: until * MS,
        };
        Wait {
            belief: Some(belief),
            ..wait(asked, until, End::Released)
        }
    }

    #[track_caller]
    fn assert_found(waits: &[Wait], word: Option<&str>) {
        let history = History {
            waits: waits.to_vec(),
            ..History::default()
        };
        let mut found = Vec::new();
        of_majority(&history, &[OUTAGE], &mut found);
        match word {
            Some(word) => assert!(found.len() == 1 && found[0].contains(word), "{found:?}"),
            None => assert_eq!(found, Vec::<String>::new()),
        }
    }

    #[test]
    fn loss_of_a_majority_must_be_noticed_and_overcome() {
        let after = hold(20_500, 21_100, 21_200);
        assert_found(std::slice::from_ref(&after), None);
        assert_found(&[], None);
        assert_found(
            &[
                wait(9_000, 12_000, End::NoQuorum),
                hold(8_000, 9_000, 10_900),
                after.clone(),
            ],
            None,
        );
        assert_found(&[hold(8_000, 9_000, 11_100), after.clone()], Some("held without"));
        assert_found(
            &[hold(11_500, 12_000, 12_100), after.clone()],
            Some("held without"),
        );
        assert_found(
            &[wait(9_000, 18_000, End::NoQuorum), after.clone()],
            Some("not told"),
        );
        assert_found(
            &[wait(12_000, 13_000, End::Unavailable), after],
            Some("as one server"),
        );
        assert_found(&[hold(20_500, 32_000, 32_100)], Some("held nothing"));
        assert_found(&[hold(8_000, 9_000, 9_100)], Some("held nothing"));
    }

    #[test]
    fn loss_of_a_minority_must_not_be_noticed() {
        let found = |waits: &[Wait]| {
            let history = History {
                waits: waits.to_vec(),
                ..History::default()
            };
            let mut found = Vec::new();
            of_minority(&history, &mut found);
            found.len()
        };
        let first = hold(1_000, 1_001, 2_000);
        assert_eq!(found(&[first.clone(), hold(1_500, 2_001, 2_100)]), 0);
        assert_eq!(found(&[first.clone(), hold(9_000, 9_001, 9_100)]), 0);
        assert_eq!(found(&[first.clone(), hold(1_500, 8_000, 8_100)]), 1);
        assert_eq!(found(&[first, wait(1_500, 3_000, End::NoQuorum)]), 1);
        let stopped = |from: u64, until: u64| {
            let stop = Disturbance {
                process: Some(0),
                from_ns: from * MS,
                until_ns: until * MS,
            };
            let history = History {
                waits: vec![wait(3_500, 5_000, End::NoQuorum)],
                disturbances: vec![stop],
                ..History::default()
            };
            let mut found = Vec::new();
            of_minority(&history, &mut found);
            found.len()
        };
        assert_eq!((stopped(3_400, 3_900), stopped(3_400, 4_900)), (1, 0));
        assert_eq!((stopped(500, 1_900), stopped(1_000, 2_400)), (1, 0));
    }
}
