//! The same protocol with notes of absence in the place of presence records. The scripts do not have it yet.
//!
//! Every client counts as reachable unless it is noted absent for this lock. A script notes a client whose
//! pushed grant ran out unclaimed and, of permits, one that it passes over because it does not listen. Each
//! call that queues removes the note of its client. A waiter that finds its place lost makes its waitlist ask
//! again. Of permits that is not enough: a later request of a client can be passed over while an earlier one
//! stays. So there the reply says that there was a note.

use crate::single::configuration::{
    Budget, CALM, CANCEL, CRASH, Configuration, DISCONNECT, LARGE as LARGE_BY_PRESENCE, LOST_PUSH,
    LOST_SUBSCRIPTION, Listening, PROMPT_CALM, PROMPT_DISCONNECT, PROMPT_LOST_SUBSCRIPTION, RENEWAL,
    REPLICA_SUBSCRIPTION, SLOWNESS, TURNS, TURNS_DISCONNECT, TWICE_SLOW,
};
use crate::single::counterexamples::{Counterexample, example};
use crate::single::permits;
use crate::single::properties::{NO_LOST_WAKE_UP, NOBODY_FORGOTTEN, NOT_PASSED_OVER, ONE_CLAIM_WINDOW};
use crate::single::rules::Rule;

const NOTHING: Budget = Budget::NOTHING;

/// Two clients that two users each wait for. One of them dies.
const CRASH_OF_TWO: Configuration = CRASH.with_callers(&[2, 2]);

const STRAY_NOTE: Budget = Budget {
    stray_notes: 1,
    ..NOTHING
};
const CRASH_LOST_NOTE: Budget = Budget {
    crashes: 1,
    lost_notes: 1,
    ..NOTHING
};
const SLOWNESS_LOST_NOTE: Budget = Budget {
    slowness: 1,
    lost_notes: 1,
    ..NOTHING
};

/// Configurations that are explored completely in little time. They run with the tests.
pub const SMALL: [Configuration; 32] = [
    CALM.by_absence(),
    CANCEL.by_absence(),
    DISCONNECT.by_absence(),
    LOST_SUBSCRIPTION.by_absence(),
    REPLICA_SUBSCRIPTION.by_absence(),
    LOST_PUSH.by_absence(),
    SLOWNESS.by_absence(),
    CRASH.by_absence(),
    TWICE_SLOW.with_callers(&[1, 1]).by_absence(),
    RENEWAL.by_absence(),
    TURNS.by_absence(),
    TURNS_DISCONNECT.by_absence(),
    PROMPT_CALM.by_absence(),
    PROMPT_DISCONNECT.by_absence(),
    PROMPT_LOST_SUBSCRIPTION.by_absence(),
    CALM.with("a stray note", STRAY_NOTE).by_absence(),
    CALM.with("a crash, a lost note", CRASH_LOST_NOTE).by_absence(),
    CALM.with("a late grant, a lost note", SLOWNESS_LOST_NOTE)
        .by_absence(),
    CALM.listening(Listening::Uncounted).by_absence(),
    CRASH.listening(Listening::Uncounted).by_absence(),
    LOST_PUSH.listening(Listening::Uncounted).by_absence(),
    LOST_SUBSCRIPTION.listening(Listening::Uncounted).by_absence(),
    SLOWNESS.listening(Listening::Uncounted).by_absence(),
    CALM.listening(Listening::FirstIsDeaf).by_absence(),
    CRASH.listening(Listening::FirstIsDeaf).by_absence(),
    SLOWNESS.listening(Listening::FirstIsDeaf).by_absence(),
    permits::CALM.by_absence(),
    permits::CRASH.by_absence(),
    permits::TIMERS.by_absence(),
    permits::CALM.with("a stray note", STRAY_NOTE).by_absence(),
    permits::CALM
        .with("a late grant, a lost note", SLOWNESS_LOST_NOTE)
        .by_absence(),
    permits::CRASH.listening(Listening::Uncounted).by_absence(),
];

/// Two faults that meet, or more callers. They are explored as far as time allows.
pub const LARGE: [Configuration; 9] = [
    CRASH_OF_TWO.by_absence(),
    CRASH_OF_TWO.listening(Listening::Uncounted).by_absence(),
    TWICE_SLOW.by_absence(),
    // A lost connection, a late grant.
    LARGE_BY_PRESENCE[2].by_absence(),
    CALM.with(
        "a stray note, a lost connection",
        Budget {
            disconnects: 1,
            ..STRAY_NOTE
        },
    )
    .by_absence(),
    CALM.with(
        "a stray note, a late grant",
        Budget {
            slowness: 1,
            ..STRAY_NOTE
        },
    )
    .by_absence(),
    CALM.with(
        "a lost note, two late grants",
        Budget {
            slowness: 2,
            ..SLOWNESS_LOST_NOTE
        },
    )
    .by_absence(),
    permits::CRASH_OF_MANY.by_absence(),
    permits::MIXED_CLIENTS.by_absence(),
];

/// What breaks without the rules of absence, and without one that breaks nothing by presence records. All
/// other rules break what they break there.
pub const COUNTEREXAMPLES: [Counterexample; 5] = [
    example(
        &[Rule::NoteUnclaimed],
        CRASH_OF_TWO.by_absence(),
        ONE_CLAIM_WINDOW,
    ),
    example(&[Rule::CallRemovesNote], SLOWNESS.by_absence(), NOT_PASSED_OVER),
    example(
        &[Rule::NoteUnreachable],
        permits::MIXED_CLIENTS.by_absence(),
        NOBODY_FORGOTTEN,
    ),
    example(
        &[Rule::SayComeBack],
        permits::MIXED_CLIENTS.by_absence(),
        NOBODY_FORGOTTEN,
    ),
    example(
        &[Rule::RemoveUnreachable],
        PROMPT_DISCONNECT.by_absence(),
        NO_LOST_WAKE_UP,
    ),
];
