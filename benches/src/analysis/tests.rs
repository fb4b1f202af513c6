//! The figures of a comparison, on histories small enough to work out by hand.

use super::{Party, Wait, analyse, granted, jain, quantile};
use crate::info;

fn wait(waiter: &str, asked: i64, granted: impl Into<Option<i64>>, released: impl Into<Option<i64>>) -> Wait {
    Wait {
        waiter: waiter.to_owned(),
        asked_ns: asked,
        granted_ns: granted.into(),
        released_ns: released.into(),
        fence: None,
        permits: 1,
    }
}

fn fenced(wait: Wait, fence: u64) -> Wait {
    Wait {
        fence: Some(fence),
        ..wait
    }
}

#[test]
fn rows_survive_being_written_and_read() {
    for row in [
        wait("0:1", 5, 7, 9),
        wait("3:0", 5, 7, None),
        wait("0:0", 5, None, None),
        fenced(wait("0:1", 5, 7, None), 1_800_000_000_000_000),
    ] {
        assert_eq!(Wait::parse(&row.to_string()), Some(row));
    }
    assert_eq!(wait("3:0", 5, 7, None).to_string(), "3:0,5,7,");
    for broken in [
        "",
        "0:1",
        "0:1,5",
        "0:1,x,7,9",
        "0:1,5,7",
        "0:1,5,7,9,x",
        "0:1,5,7,9,11,13",
    ] {
        assert_eq!(Wait::parse(broken), None, "{broken:?}");
    }
}

#[test]
fn handoffs_count_changes_of_the_waiter_and_gaps_run_from_release_to_grant() {
    let history = [
        wait("a", 0, 0, 10),
        wait("a", 11, 12, 20), // taken again: an acquisition, not a hand-off
        wait("b", 0, 23, 30),
        wait("a", 21, 37, 40),
    ];
    let found = analyse(&history, 0, 100, Party::of_lock(2));
    assert_eq!((found.acquisitions, found.handoffs), (4, 2));
    assert_eq!(found.gaps_ns, [3, 7]);
    assert_eq!(found.waits_ns, [0, 1, 16, 23]);
    assert_eq!((found.acquisitions_per_s(), found.handoffs_per_s()), (4e7, 2e7));
    assert_eq!(found.overlaps, 0);
}

#[test]
fn only_grants_within_the_window_count() {
    let history = [
        wait("a", 0, 5, 8),
        wait("b", 0, 10, 12),
        wait("a", 9, 20, 22),
        wait("b", 13, 31, 33),
    ];
    let found = analyse(&history, 10, 30, Party::of_lock(2));
    assert_eq!((found.acquisitions, found.handoffs, found.window_ns), (2, 1, 20));
    assert_eq!(
        found.waits_ns,
        [10, 11, 17],
        "b's second wait was open for 17 ns when the window ended"
    );
}

#[test]
fn waits_that_are_open_at_the_end_count_as_long_as_they_lasted() {
    let history = [
        wait("a", 0, 1, 2),
        wait("b", 3, None, None),
        wait("a", 60, 61, None),
    ];
    let found = analyse(&history, 0, 100, Party::of_lock(3));
    assert_eq!(found.waits_ns, [1, 1, 97]);
    assert_eq!(
        found.starved, 2,
        "b waited in vain, and the third waiter never asked"
    );
}

#[test]
fn overlapping_holds_are_found_also_behind_a_short_one() {
    let clean = [wait("a", 0, 0, 10), wait("b", 0, 10, 20)];
    assert_eq!(analyse(&clean, 0, 100, Party::of_lock(2)).overlaps, 0);

    let long = [
        wait("a", 0, 0, 50),
        wait("b", 0, 5, 10),
        wait("c", 0, 20, 60),
        wait("b", 11, 60, 70),
    ];
    assert_eq!(analyse(&long, 0, 100, Party::of_lock(3)).overlaps, 2);

    let never_released = [wait("a", 0, 0, None), wait("b", 0, 5, 10)];
    assert_eq!(analyse(&never_released, 0, 100, Party::of_lock(2)).overlaps, 1);

    let before_the_window = [wait("a", 0, 0, 9), wait("b", 0, 5, 10)];
    assert_eq!(
        analyse(&before_the_window, 50, 100, Party::of_lock(2)).overlaps,
        1
    );
}

/// A semaphore of 2, of which one waiter takes both.
#[test]
fn more_permits_in_use_than_there_are_is_found() {
    let party = |permits| Party {
        waiters: 3,
        permits,
        capacity: 2,
    };
    let found = |history: &[Wait], permits| {
        let found = analyse(history, 0, 100, party(permits));
        (found.most_inside, found.overlaps)
    };
    let both = |wait: Wait| Wait { permits: 2, ..wait };
    let clean = [
        wait("a", 0, 0, 10),
        wait("b", 0, 5, 20),
        wait("a", 10, 10, 15), // at the instant at which a permit came back
        both(wait("c", 0, 20, 30)),
        wait("a", 16, 30, None),
    ];
    assert_eq!(found(&clean, 1), (2, 0));
    assert_eq!(found(&clean, 2), (1, 0));

    let third = [wait("a", 0, 0, 10), wait("b", 0, 5, None), wait("c", 0, 9, 12)];
    assert_eq!(found(&third, 1), (3, 1));
    let writer = [
        wait("a", 0, 0, 10),
        both(wait("c", 0, 9, 12)),
        wait("b", 0, 13, 14),
    ];
    assert_eq!(found(&writer, 1), (1, 0), "the reader came first");
    assert_eq!(found(&writer, 2).1, 1);
}

#[test]
fn figures_are_those_of_one_party() {
    let writer = |wait: Wait| Wait { permits: 9, ..wait };
    let history = [
        wait("a", 0, 1, 5),
        wait("b", 0, 2, 9),
        writer(wait("w", 3, 9, 20)),
        wait("a", 6, 20, 24),
        writer(wait("w", 21, None, None)),
    ];
    let party = |waiters, permits| Party {
        waiters,
        permits,
        capacity: 9,
    };
    let (readers, writers) = (
        analyse(&history, 0, 100, party(2, 1)),
        analyse(&history, 0, 100, party(1, 9)),
    );
    assert_eq!((readers.acquisitions, writers.acquisitions), (3, 1));
    assert_eq!((readers.longest_hold_ns, writers.longest_hold_ns), (7, 11));
    assert_eq!(
        (&*readers.waits_ns, &*writers.waits_ns),
        (&[1, 2, 14][..], &[6, 79][..])
    );
    assert_eq!((readers.starved, writers.starved), (0, 0));
}

#[test]
fn fences_of_permits_must_be_above_those_that_were_there_before_the_request() {
    let party = Party {
        waiters: 2,
        permits: 1,
        capacity: 2,
    };
    let stale = |history: &[Wait]| analyse(history, 0, 100, party).stale_fences;
    let together = [fenced(wait("a", 0, 2, 9), 7), fenced(wait("b", 1, 3, 9), 6)];
    assert_eq!(stale(&together), 0, "the two replies changed places");
    let later = [fenced(wait("a", 0, 2, 9), 7), fenced(wait("b", 3, 4, 9), 6)];
    assert_eq!(stale(&later), 1);
}

#[test]
fn fences_that_repeat_or_fall_are_found_whoever_had_them() {
    let grants = |fences: [u64; 3]| {
        let [a, b, c] = fences;
        let history = [
            fenced(wait("a", 0, 0, 10), a),
            fenced(wait("b", 0, 10, 20), b),
            wait("b", 20, 20, 21),
            fenced(wait("c", 0, 21, 30), c),
        ];
        analyse(&history, 25, 100, Party::of_lock(3)).stale_fences
    };
    assert_eq!(grants([1, 2, 9]), 0);
    assert_eq!(grants([1, 1, 2]), 1);
    assert_eq!(grants([9, 1, 2]), 2, "both are below the first");
}

#[test]
fn jains_index_is_one_for_equals_and_one_nth_for_a_monopoly() {
    assert_eq!(jain([7, 7, 7]), 1.0);
    assert_eq!(jain([9, 0, 0]), 1.0 / 3.0);
    assert_eq!(jain([1, 3]), 0.8);
    assert_eq!(jain([]), 0.0);
}

#[test]
fn quantiles_of_little_are_defined() {
    assert_eq!(quantile(&[], 500), None);
    assert_eq!(quantile(&[4], 990), Some(4));
    let hundred: Vec<i64> = (0..100).collect();
    assert_eq!(quantile(&hundred, 500), Some(50));
    assert_eq!(quantile(&hundred, 990), Some(99));
    assert_eq!(quantile(&hundred, 1000), Some(99), "the largest");
}

#[test]
fn rounds_are_pooled() {
    let mut sum = analyse(
        &[wait("a", 0, 4, 5), wait("b", 0, 9, 10)],
        0,
        10,
        Party::of_lock(2),
    );
    sum.add(analyse(&[wait("a", 100, 101, 102)], 100, 110, Party::of_lock(2)));
    assert_eq!(
        (sum.acquisitions, sum.handoffs, sum.window_ns, sum.starved),
        (3, 1, 20, 1)
    );
    assert_eq!(sum.waits_ns, [1, 4, 9]);
    assert_eq!(sum.jain_mean(), 0.75);
}

#[test]
fn grants_of_many_locks_are_those_within_the_time() {
    let history = [
        wait("a", 0, 4, 5),
        wait("b", 0, 4, 6),
        wait("a", 5, 10, None),
        wait("b", 6, 11, None),
        wait("c", 0, None, None),
        wait("d", 0, 1, 2),
    ];
    assert_eq!(granted(&history, 2, 10), 3);
}

#[test]
fn commands_are_counted_that_clients_send_not_those_inside_scripts() {
    let stats = "# Commandstats\r\n\
        cmdstat_evalsha:calls=200,usec=9,usec_per_call=1.00,rejected_calls=0,failed_calls=1\r\n\
        cmdstat_script|load:calls=2,usec=1,usec_per_call=1.00\r\n\
        cmdstat_hset:calls=150,usec=1,usec_per_call=1.00\r\n\
        cmdstat_set:calls=30,usec=1,usec_per_call=1.00\r\n\
        cmdstat_info:calls=3,usec=1,usec_per_call=1.00\r\n";
    assert_eq!(info::commands_sent(stats), 232);
    let cpu = "# CPU\r\nused_cpu_sys:0.250000\r\nused_cpu_user:1.500000\r\nused_cpu_sys_children:9.0\r\n";
    assert_eq!(info::cpu_seconds(cpu), Some(1.75));
}
