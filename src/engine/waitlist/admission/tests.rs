//! Tests of which callers are admitted at once, which wait, and which is next.

use super::GivesUp::{At, Between, Unknown};
use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(time: u64) -> LocalTime {
    LocalTime::ZERO.after(ms(time))
}

/// An overloaded admission, with these applicants.
fn overloaded(waiting: &[GivesUp]) -> (Admission<usize>, Vec<Place>) {
    let mut admission = Admission::default();
    admission.all_give_up(100);
    let waits = wait(&mut admission, waiting);
    (admission, waits)
}

fn wait(admission: &mut Admission<usize>, waiting: &[GivesUp]) -> Vec<Place> {
    let waiting = waiting.iter().enumerate();
    waiting
        .map(|(number, gives_up)| admission.wait(*gives_up, number))
        .collect()
}

impl<T> Admission<T> {
    /// This many requests give up.
    fn all_give_up(&mut self, count: u32) {
        for _ in 0..count {
            self.ended(true);
        }
    }
}

#[test]
fn all_are_admitted_as_long_as_most_are_served() {
    let mut admission = Admission::<()>::default();
    for waiters in 0..10_000 {
        assert!(admission.is_open(waiters));
        match waiters % 3 {
            0 => admission.gave_up(ms(1)),
            _ => admission.granted(ms(1)),
        }
    }
}

#[test]
fn while_most_give_up_no_more_are_admitted_than_keep_the_lock_busy() {
    let (admission, _) = overloaded(&[]);
    assert!(admission.is_open(2) && !admission.is_open(3));
}

#[test]
fn grants_add_no_places_beyond_those_that_keep_the_lock_busy() {
    let mut admission = Admission::<()>::default();
    for _ in 0..1000 {
        admission.granted(ms(1));
    }
    admission.all_give_up(100);
    assert!(admission.is_open(2) && !admission.is_open(3));
}

#[test]
fn fewer_are_admitted_when_those_give_up_too_and_one_at_least() {
    let (mut admission, _) = overloaded(&[]);
    admission.gave_up(ms(1));
    assert!(admission.is_open(1) && !admission.is_open(2));
    for _ in 0..100 {
        admission.gave_up(ms(1));
    }
    assert!(admission.is_open(0) && !admission.is_open(1));
    admission.granted(ms(1));
    for _ in 0..3 {
        assert!(admission.is_open(1) && !admission.is_open(2));
        admission.granted(ms(1));
    }
    assert!(admission.is_open(2) && !admission.is_open(3));
}

#[test]
fn applicants_are_admitted_in_order_and_before_newcomers() {
    let (mut admission, _) = overloaded(&[Unknown, Unknown]);
    assert_eq!(admission.next(LocalTime::ZERO, 3), None);
    assert!(!admission.is_open(0));
    assert_eq!(admission.next(LocalTime::ZERO, 2), Some(0));
    assert_eq!(admission.next(LocalTime::ZERO, 2), Some(1));
    assert_eq!(admission.next(LocalTime::ZERO, 2), None);
    assert!(admission.is_empty() && admission.is_open(2));
}

#[test]
fn applicant_giving_up_before_admission_is_removed() {
    let (mut admission, waits) = overloaded(&[Unknown, At(at(5)), At(at(5))]);
    assert_eq!(admission.remove(waits[1]), Some(1));
    assert_eq!(admission.next(LocalTime::ZERO, 0), Some(0));
    assert_eq!(admission.remove(waits[0]), None, "it was already admitted");
    assert_eq!(admission.drain().collect::<Vec<_>>(), [2]);
    assert!(admission.is_empty());
}

#[test]
fn applicant_with_no_time_for_a_grant_is_passed_over() {
    let (mut admission, _) = overloaded(&[At(at(15)), At(at(500)), Unknown]);
    // A grant takes up to 60 ms, as far as is known.
    admission.granted(ms(20));
    let next = std::iter::from_fn(|| admission.next(LocalTime::ZERO, 0));
    assert_eq!(next.collect::<Vec<_>>(), [1, 2, 0]);
}

#[test]
fn a_call_without_a_bound_is_expected_to_be_given_up_when_others_were() {
    let mut admission = Admission::<()>::default();
    assert_eq!(admission.gives_up(LocalTime::ZERO, None), Unknown);
    for _ in 0..100 {
        admission.lost_patience(ms(50));
    }
    assert_eq!(
        admission.gives_up(LocalTime::ZERO, None),
        Unknown,
        "most callers do not give up"
    );
    admission.all_give_up(100);
    assert_eq!(
        admission.gives_up(LocalTime::ZERO, None),
        GivesUp::Between(at(50), at(75))
    );
    assert_eq!(admission.gives_up(LocalTime::ZERO, Some(at(7))), At(at(7)));
}

#[test]
fn applicants_keep_their_order_while_most_are_served() {
    let mut admission = Admission::default();
    wait(&mut admission, &[At(at(15)), At(at(500)), Unknown]);
    for _ in 0..100 {
        admission.all_give_up(1);
        admission.granted(ms(20));
        admission.granted(ms(20));
    }
    let next = std::iter::from_fn(|| admission.next(LocalTime::ZERO, 0));
    assert_eq!(next.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn no_applicant_is_passed_over_once_most_are_served_again() {
    let (mut admission, _) = overloaded(&[At(at(15)), At(at(500))]);
    for _ in 0..100 {
        admission.granted(ms(20));
    }
    assert_eq!(admission.next(LocalTime::ZERO, 0), Some(0));
}

#[test]
fn later_applicant_is_expected_to_give_up_no_sooner() {
    let (mut admission, _) = overloaded(&[Between(at(10), at(50)), Between(at(10), at(40))]);
    admission.granted(ms(20));
    admission.wait(At(at(500)), 2);
    assert_eq!(admission.next(at(20), 0), Some(2), "the others are skipped");
    let next = std::iter::from_fn(|| admission.next(at(60), 0));
    assert_eq!(next.collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn giving_up_counts_for_waiters_and_applicants() {
    let mut admission = Admission::<()>::default();
    for _ in 0..100 {
        admission.gave_up(ms(1));
    }
    assert!(!admission.is_open(3));
    let mut admission = Admission::default();
    let waits = [Unknown; 100].map(|gives_up| admission.wait(gives_up, ()));
    for place in waits {
        admission.remove(place);
    }
    assert!(admission.is_empty() && !admission.is_open(3));
}

#[test]
fn time_to_grant_is_also_learnt_from_abandoned_waits() {
    // Grants have become slower. An admitted request is served only if it has more than 50 ms left.
    let (mut admission, _) = overloaded(&[]);
    admission.granted(ms(1));
    let has_left = (0..30).map(|_| {
        let patience = [5, 10, 20, 40, 80].map(ms);
        let places = patience.map(|left| admission.wait(At(LocalTime::ZERO.after(left)), 0));
        let time_to_grant = admission.time_to_grant.at_most();
        let admitted = patience
            .into_iter()
            .position(|left| left > time_to_grant)
            .unwrap_or(4);
        assert!(admission.next(LocalTime::ZERO, 0).is_some());
        admission.gave_up(patience[admitted]);
        for place in places {
            admission.remove(place);
        }
        patience[admitted]
    });
    assert!(has_left.take_while(|left| *left < ms(50)).count() < 20);
}
