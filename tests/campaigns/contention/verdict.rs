//! The checks of the merged records.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use fairlock_testkit::Server;
use fairlock_testkit::resource::{Writes, writes};

use super::record::{Belief, Disturbance, End, Queue, Wait};

/// The longest time from the sending of a request by an undisturbed process until it is in the queue.
const LONGEST_TRANSIT: Duration = Duration::from_millis(250);
/// How long a call can take to run.
const LONGEST_CALL: Duration = Duration::from_secs(2);
/// How long a disturbance has effects: connections are replaced, calls are repeated, and requests queue
/// again.
const AFTER_EFFECTS: Duration = Duration::from_secs(2);

/// The time span in which the server lost its data: from the test's command until it was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgetting {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// Everything that happened in a round.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) waits: Vec<Wait>,
    pub(crate) disturbances: Vec<Disturbance>,
    pub(crate) forgettings: Vec<Forgetting>,
    /// The longest lease that a hold can have left when the server loses it.
    pub(crate) lease: Duration,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// Overlaps within one lease after the server lost the first of the two holds.
    pub(crate) overlaps_allowed: u64,
    /// Waits whose place in the order was checked.
    pub(crate) ordered: u64,
}

/// A wait that ended with a hold.
#[derive(Clone, Copy)]
struct Hold<'a> {
    wait: &'a Wait,
    belief: Belief,
}

impl History {
    /// How many waits ended so.
    pub(crate) fn ended(&self, end: End) -> u64 {
        self.waits.iter().filter(|wait| wait.end == Some(end)).count() as u64
    }

    /// The longest time in which nothing happened in any process, from the first event to the last.
    pub(crate) fn longest_standstill(&self) -> Duration {
        let of = |wait: &Wait| {
            [
                Some(wait.asked_ns),
                wait.belief.map(|belief| belief.from_ns),
                wait.ended_ns,
            ]
        };
        let mut events: Vec<u64> = self.waits.iter().flat_map(of).flatten().collect();
        events.sort_unstable();
        let longest = events.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_nanos(longest.unwrap_or_default())
    }

    /// How many waits ended with a hold.
    pub(crate) fn holds(&self) -> u64 {
        self.waits.iter().filter(|wait| wait.belief.is_some()).count() as u64
    }

    pub(crate) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let mut locks: BTreeMap<usize, Vec<Hold>> = BTreeMap::new();
        for wait in &self.waits {
            if let Some(belief) = wait.belief {
                locks.entry(wait.lock).or_default().push(Hold { wait, belief });
            }
        }
        for holds in locks.values_mut() {
            self.exclusion(holds, &mut verdict);
            self.fences(holds, &mut verdict);
            self.order(holds, &mut verdict);
        }
        verdict
    }

    /// Checks that no two holders believed at the same time that they held a lock, and that each had a larger
    /// fence than those before it.
    fn exclusion(&self, holds: &mut [Hold], verdict: &mut Verdict) {
        holds.sort_by_key(|hold| hold.belief.from_ns);
        let mut longest: Option<&Hold> = None;
        let mut largest: Option<&Hold> = None;
        for hold in holds.iter() {
            if let Some(before) = largest.filter(|before| before.belief.fence > hold.belief.fence) {
                if !self.was_forgotten(before, hold) {
                    let both = format!("a fence went back: {:?} and then {:?}", before.wait, hold.wait);
                    verdict.violations.push(both);
                }
            } else {
                largest = Some(hold);
            }
            if let Some(before) = longest {
                if before.belief.until_ns > hold.belief.from_ns {
                    if self.was_forgotten(before, hold) {
                        verdict.overlaps_allowed += 1;
                    } else {
                        let both = format!("two holders at once: {:?} and {:?}", before.wait, hold.wait);
                        verdict.violations.push(both);
                    }
                }
            }
            if longest.is_none_or(|before| before.belief.until_ns < hold.belief.until_ns) {
                longest = Some(hold);
            }
        }
    }

    /// Whether the server lost one of the holds before it granted the other, no longer than a lease ago.
    fn was_forgotten(&self, one: &Hold, other: &Hold) -> bool {
        self.lost_before(one, other) || self.lost_before(other, one)
    }

    /// Whether the server lost the first hold before it granted the second, no longer than a lease ago, and
    /// perhaps by a call from before the loss. A turn of a local queue may have been asked for after the
    /// loss: its tenure was granted before.
    fn lost_before(&self, first: &Hold, second: &Hold) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let lease = nanos(self.lease);
        let granted_by = lease.max(nanos(LONGEST_CALL));
        self.forgettings.iter().any(|forgetting| {
            (first.wait.asked_ns <= forgetting.until_ns || first.wait.queue == Queue::Local)
                && first.belief.until_ns <= forgetting.until_ns + lease
                && second.belief.until_ns >= forgetting.from_ns
                && second.belief.from_ns <= forgetting.until_ns + granted_by
        })
    }

    /// Checks that each fence was granted once, and that it is larger than the fence of every hold that was
    /// known when the request was made. A tenure that the server has lost goes on with its fences for a
    /// lease.
    fn fences(&self, holds: &mut [Hold], verdict: &mut Verdict) {
        let mut seen = HashSet::new();
        for hold in holds.iter() {
            if !seen.insert(hold.belief.fence) {
                verdict
                    .violations
                    .push(format!("a fence was given twice: {:?}", hold.wait));
            }
        }
        let mut by_start = holds.to_vec();
        by_start.sort_by_key(|hold| hold.belief.from_ns);
        holds.sort_by_key(|hold| hold.wait.asked_ns);
        let mut known = by_start.into_iter().peekable();
        let mut largest: Option<Hold> = None;
        for hold in holds.iter() {
            while let Some(before) = known.next_if(|before| before.belief.from_ns < hold.wait.asked_ns) {
                if largest.is_none_or(|largest| largest.belief.fence < before.belief.fence) {
                    largest = Some(before);
                }
            }
            if let Some(larger) = largest.filter(|larger| larger.belief.fence >= hold.belief.fence) {
                if hold.wait.queue != Queue::Local || !self.lost_before(hold, &larger) {
                    let fence = larger.belief.fence;
                    let both = format!("a fence is not above {fence}: {:?}", hold.wait);
                    verdict.violations.push(both);
                }
            }
        }
    }

    /// Checks that no undisturbed waiter was overtaken by a later one of the same queue. Fences give the
    /// order of the grants.
    fn order(&self, holds: &mut [Hold], verdict: &mut Verdict) {
        holds.sort_by_key(|hold| hold.belief.fence);
        // The latest request among the grants so far: of all that wait on the server, and in each queue for
        // each process.
        let mut last: Option<&Hold> = None;
        let mut last_of: BTreeMap<(usize, Queue), &Hold> = BTreeMap::new();
        let on_the_way = u64::try_from(LONGEST_TRANSIT.as_nanos()).unwrap_or(u64::MAX);
        for hold in holds.iter() {
            let asked = hold.wait.asked_ns;
            let on_server = hold.wait.queue == Queue::Server;
            let place = (hold.wait.process, hold.wait.queue);
            let of_same = last_of.get(&place).copied();
            // A local queue is in the process itself, so no fault disturbs it.
            if !on_server || self.is_undisturbed(hold) {
                verdict.ordered += 1;
                let overtaker = of_same
                    .filter(|before| before.wait.asked_ns > asked)
                    .or(last.filter(|before| on_server && before.wait.asked_ns > asked + on_the_way));
                if let Some(overtaker) = overtaker {
                    let both = format!("overtaken: {:?} by {:?}", hold.wait, overtaker.wait);
                    verdict.violations.push(both);
                }
            }
            if on_server && last.is_none_or(|before| before.wait.asked_ns < asked) {
                last = Some(hold);
            }
            if of_same.is_none_or(|before| before.wait.asked_ns < asked) {
                last_of.insert(place, hold);
            }
        }
    }

    fn is_undisturbed(&self, hold: &Hold) -> bool {
        let after = u64::try_from(AFTER_EFFECTS.as_nanos()).unwrap_or(u64::MAX);
        !self.disturbances.iter().any(|disturbance| {
            disturbance
                .process
                .is_none_or(|process| process == hold.wait.process)
                && disturbance.from_ns <= hold.belief.from_ns
                && disturbance.until_ns + after >= hold.wait.asked_ns
        })
    }
}

/// The writes to the resource under all locks. Adds to the verdict the locks under which it accepted a stale
/// one.
pub(crate) async fn judge_writes(resource: &Server, locks: usize, verdict: &mut Verdict) -> Writes {
    let mut all = Writes::default();
    for lock in 0..locks {
        let writes = writes(resource, lock).await;
        if writes.number != writes.accepted {
            let lost = format!("a stale write was accepted under lock {lock}: {writes:?}");
            verdict.violations.push(lost);
        }
        all.number += writes.number;
        all.accepted += writes.accepted;
        all.refused += writes.refused;
    }
    all
}

/// Show that the verdict finds violations.
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A wait of a process, with its request, the start and end of its hold, and the fence. Times are in
    /// seconds.
    fn wait(process: usize, [asked, from, until, fence]: [u64; 4]) -> Wait {
        Wait {
            process,
            lock: 0,
            queue: Queue::Server,
            asked_ns: asked * SECOND,
            belief: Some(Belief {
                fence,
                from_ns: from * SECOND,
                until_ns: until * SECOND,
            }),
            end: None,
            ended_ns: None,
        }
    }

    fn history(waits: impl IntoIterator<Item = Wait>) -> History {
        History {
            waits: waits.into_iter().collect(),
            lease: Duration::from_secs(2),
            ..History::default()
        }
    }

    #[track_caller]
    fn assert_found(history: &History, word: &str) {
        let violations = history.judge().violations;
        let is_found = !violations.is_empty() && violations.iter().all(|found| found.starts_with(word));
        assert!(is_found, "{violations:?}");
    }

    #[test]
    fn good_history_has_no_violations() {
        let history = history([
            wait(0, [1, 2, 3, 7]),
            wait(1, [1, 3, 5, 8]),
            wait(0, [4, 6, 6, 9]),
        ]);
        let verdict = history.judge();
        assert_eq!((verdict.violations, verdict.ordered), (Vec::new(), 3));
    }

    #[test]
    fn overlap_is_found_even_behind_a_short_hold() {
        let holds = [wait(0, [1, 2, 9, 7]), wait(1, [1, 3, 3, 8])];
        assert_found(&history(holds.clone()), "two holders at once");
        let mut other_lock = holds;
        other_lock[1].lock = 1;
        assert_eq!(history(other_lock).judge().violations, Vec::<String>::new());
        let three = [
            wait(0, [1, 2, 5, 7]),
            wait(1, [1, 2, 2, 8]),
            wait(2, [1, 4, 6, 9]),
        ];
        assert_found(&history(three), "two holders at once");
    }

    #[test]
    fn overlap_is_allowed_for_a_lease_after_the_server_lost_its_data() {
        let mut forgetful = history([wait(0, [1, 2, 5, 7]), wait(1, [1, 4, 6, 8])]);
        forgetful.forgettings = vec![Forgetting {
            from_ns: 3 * SECOND,
            until_ns: 3 * SECOND,
        }];
        let verdict = forgetful.judge();
        assert_eq!((verdict.violations, verdict.overlaps_allowed), (Vec::new(), 1));
        forgetful.lease = Duration::from_secs(1);
        assert_found(&forgetful, "two holders at once");
        // The request was made after the loss, by which time the server had its data.
        forgetful.lease = Duration::from_secs(9);
        forgetful.forgettings[0] = Forgetting {
            from_ns: 0,
            until_ns: 0,
        };
        assert_found(&forgetful, "two holders at once");
    }

    #[test]
    fn tenure_that_the_server_lost_goes_on_with_smaller_fences_for_a_lease() {
        let holds = [
            wait(0, [1, 2, 5, 7]),
            wait(1, [1, 4, 8, 20]),
            wait(0, [5, 5, 6, 8]),
        ];
        let mut forgetful = history(holds);
        forgetful.forgettings = vec![Forgetting {
            from_ns: 3 * SECOND,
            until_ns: 3 * SECOND,
        }];
        forgetful.lease = Duration::from_secs(9);
        assert!(
            !forgetful.judge().violations.is_empty(),
            "the last was asked for after the loss"
        );
        forgetful.waits[2].queue = Queue::Local;
        let verdict = forgetful.judge();
        assert_eq!((verdict.violations, verdict.overlaps_allowed), (Vec::new(), 2));
        forgetful.lease = Duration::from_secs(2);
        assert!(!forgetful.judge().violations.is_empty(), "the tenure is over");
    }

    #[test]
    fn a_standstill_is_the_longest_time_without_an_event() {
        let moving = history([wait(0, [1, 2, 3, 7]), wait(1, [3, 8, 9, 8])]);
        assert_eq!(moving.longest_standstill(), Duration::from_secs(5));
        assert_eq!(history([]).longest_standstill(), Duration::ZERO);
    }

    #[test]
    fn fences_that_repeat_or_fall_are_found() {
        let twice = [wait(0, [1, 2, 2, 7]), wait(1, [1, 3, 3, 7])];
        assert_found(&history(twice), "a fence was given twice");
        let mut falling = history([wait(0, [1, 2, 2, 7]), wait(1, [3, 4, 4, 6])]);
        // Otherwise the first would count as overtaken, because fences give the order.
        falling.disturbances = vec![Disturbance {
            process: Some(0),
            from_ns: SECOND,
            until_ns: SECOND,
        }];
        assert_found(&falling, "a fence");
        // The second was asked for before the first began. It still follows it.
        falling.waits[1].asked_ns = SECOND;
        assert_found(&falling, "a fence went back");
    }

    /// A call that was under way when the server lost its data may bring a fence from before.
    #[test]
    fn fence_that_falls_long_after_the_server_lost_its_data_is_found() {
        for (granted, is_found) in [(4, false), (9, true)] {
            let waits = [wait(0, [1, 2, 2, 7]), wait(1, [1, granted, granted, 6])];
            let mut forgetful = history(waits);
            forgetful.forgettings = vec![Forgetting {
                from_ns: 3 * SECOND,
                until_ns: 3 * SECOND,
            }];
            let violations = forgetful.judge().violations;
            assert_eq!(!violations.is_empty(), is_found, "{violations:?}");
        }
    }

    #[test]
    fn overtakers_are_found_unless_the_one_they_overtook_was_disturbed() {
        let mut overtaken = history([wait(0, [1, 6, 6, 9]), wait(1, [2, 5, 5, 8])]);
        assert_found(&overtaken, "overtaken");
        let mut disturbance = Disturbance {
            process: Some(1),
            from_ns: 4 * SECOND,
            until_ns: 4 * SECOND,
        };
        overtaken.disturbances = vec![disturbance];
        assert_found(&overtaken, "overtaken");
        for process in [Some(0), None] {
            disturbance.process = process;
            overtaken.disturbances = vec![disturbance];
            assert_eq!(overtaken.judge().violations, Vec::<String>::new());
        }
    }

    #[test]
    fn within_a_process_the_order_is_strict() {
        let mut waits = [wait(0, [1, 6, 6, 9]), wait(0, [1, 5, 5, 8])];
        waits[1].asked_ns += 1;
        assert_found(&history(waits.clone()), "overtaken");
        // Between two processes, the order of their requests in the queue is not known.
        waits[1].process = 1;
        assert_eq!(history(waits).judge().violations, Vec::<String>::new());
    }

    #[test]
    fn waits_in_a_local_queue_are_ordered_among_themselves() {
        let mut waits = [
            wait(0, [1, 6, 6, 9]),
            wait(0, [2, 5, 5, 8]),
            wait(1, [3, 4, 4, 7]),
        ];
        for wait in &mut waits {
            wait.queue = Queue::Local;
        }
        let one = history(waits[..2].iter().cloned());
        assert_found(&one, "overtaken");
        let between_processes = history(waits[1..].iter().cloned());
        assert_eq!(between_processes.judge().violations, Vec::<String>::new());
        waits[1].queue = Queue::Server;
        assert_eq!(
            history(waits[..2].iter().cloned()).judge().violations,
            Vec::<String>::new()
        );
    }
}
