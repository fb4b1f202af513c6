//! The reason for each rule: where a promise breaks without it, and which promise.

use crate::single::configuration::{
    CALM, CANCEL, CRASH, CRASH_OF_TWO, Configuration, DISCONNECT, PROMPT_CALM, PROMPT_DISCONNECT,
    PROMPT_LOST_SUBSCRIPTION, RENEWAL, REPLICA_SUBSCRIPTION, SLOWNESS, TURNS, TWICE_SLOW,
};
use crate::single::properties::{
    CAPACITY, CLAIM_WINDOW, LARGER_FENCES, NEWEST_FENCE, NO_GHOST_HOLDER, NO_LATE_TURN, NO_LOST_WAKE_UP,
    NO_OVERTAKING, NO_STARVING, NOBODY_FORGOTTEN, NOT_LEFT_FREE, NOT_PASSED_OVER, ONE_CLAIM_WINDOW,
    ONE_HOLDER,
};
use crate::single::rules::Rule;
use crate::single::{permits, retained};

/// A protocol without some rules, as few as possible, and the promise that breaks.
#[derive(Clone, Copy, Debug)]
pub struct Counterexample {
    pub without: &'static [Rule],
    pub configuration: Configuration,
    pub violates: &'static str,
}

/// A rule whose absence alone breaks nothing in this model, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Unbroken {
    pub without: Rule,
    pub why: &'static str,
}

const fn example(
    without: &'static [Rule],
    configuration: Configuration,
    violates: &'static str,
) -> Counterexample {
    Counterexample {
        without,
        configuration,
        violates,
    }
}

const PAIR: &[usize] = &[1, 1];

pub const COUNTEREXAMPLES: [Counterexample; 43] = [
    example(
        &[Rule::NewIdAfterWithdrawal],
        TWICE_SLOW.with_callers(PAIR),
        NEWEST_FENCE,
    ),
    example(
        &[Rule::NewIdAfterWithdrawal, Rule::ReleaseNamesFence],
        TWICE_SLOW.with_callers(PAIR),
        NEWEST_FENCE,
    ),
    example(
        &[Rule::WithdrawAfterSuccess],
        DISCONNECT.with_callers(PAIR),
        NO_GHOST_HOLDER,
    ),
    example(
        &[Rule::WithdrawAfterCancel],
        CANCEL.with_callers(PAIR),
        NO_GHOST_HOLDER,
    ),
    example(&[Rule::NotAfter], DISCONNECT.with_callers(PAIR), NO_GHOST_HOLDER),
    example(&[Rule::WithdrawAfterLoss], SLOWNESS, NO_GHOST_HOLDER),
    example(&[Rule::RefuseLateGrants], SLOWNESS.with_callers(PAIR), ONE_HOLDER),
    example(
        &[Rule::IgnoreOlderPush],
        TWICE_SLOW.with_callers(PAIR),
        ONE_HOLDER,
    ),
    example(
        &[Rule::PollWhenSubscribed],
        PROMPT_CALM.with_callers(PAIR),
        NO_LOST_WAKE_UP,
    ),
    example(
        &[Rule::AskAfterReconnect],
        PROMPT_LOST_SUBSCRIPTION.with_callers(PAIR),
        NO_LOST_WAKE_UP,
    ),
    example(&[Rule::Timer], CRASH.with_callers(PAIR), NO_LOST_WAKE_UP),
    example(
        &[Rule::RequestIds],
        DISCONNECT.with_callers(PAIR),
        NO_GHOST_HOLDER,
    ),
    example(&[Rule::TicketOnReturn], PROMPT_DISCONNECT, NO_OVERTAKING),
    example(&[Rule::EarlierTicketCounts], DISCONNECT, NO_OVERTAKING),
    example(&[Rule::ReturnTogether], PROMPT_DISCONNECT, NO_LOST_WAKE_UP),
    example(&[Rule::RemoveUnreachable], PROMPT_DISCONNECT, NO_LOST_WAKE_UP),
    example(&[Rule::NoteUnclaimed], CRASH_OF_TWO, ONE_CLAIM_WINDOW),
    example(&[Rule::CallRemovesNote], TWICE_SLOW, NOT_PASSED_OVER),
    example(&[Rule::KeepEarlierTicket], permits::MIXED_CLIENTS, NO_OVERTAKING),
    example(&[Rule::PollForTheNext], TWICE_SLOW, NOBODY_FORGOTTEN),
    example(
        &[Rule::PollForTheFirstOfEachCapacity],
        permits::MIXED_CLIENTS,
        NOBODY_FORGOTTEN,
    ),
    example(&[Rule::CountBeforePublishing], REPLICA_SUBSCRIPTION, ONE_HOLDER),
    example(
        &[Rule::CountBeforePublishing, Rule::OwnFences],
        REPLICA_SUBSCRIPTION,
        NEWEST_FENCE,
    ),
    example(&[Rule::HandOverGoesOn], CALM, NOT_LEFT_FREE),
    example(&[Rule::ClaimWindow], CRASH, CLAIM_WINDOW),
    example(&[Rule::RenewNeverCreates], RENEWAL, NO_GHOST_HOLDER),
    example(&[Rule::ReserveFences], TURNS, NEWEST_FENCE),
    example(&[Rule::TellLastFence], TURNS, NEWEST_FENCE),
    example(&[Rule::HeadBlocks], permits::CALM, NO_OVERTAKING),
    example(
        &[Rule::LargerCapacityOvertakes],
        permits::CAPACITIES,
        NOT_LEFT_FREE,
    ),
    example(&[Rule::BoundOvertaking], permits::CAPACITIES, NO_STARVING),
    example(&[Rule::GrantAllThatFit], permits::CALM, NOT_LEFT_FREE),
    example(&[Rule::PassOverDeadHead], permits::CRASH, NOT_LEFT_FREE),
    example(&[Rule::OneFenceEach], permits::CALM, LARGER_FENCES),
    example(&[Rule::TimersAreEarly], permits::TIMERS, CAPACITY),
    example(&[Rule::RebuildTimers], permits::TIMERS, NO_LOST_WAKE_UP),
    example(
        &[Rule::IdleEnds],
        retained::LOST_PUSH.with_callers(PAIR),
        NO_LOST_WAKE_UP,
    ),
    example(
        &[Rule::TenureEnds],
        retained::LOST_PUSH.with_callers(PAIR),
        NO_LATE_TURN,
    ),
    example(
        &[Rule::RememberWanted],
        retained::CALM.with_callers(PAIR),
        NO_LATE_TURN,
    ),
    example(&[Rule::WantedNamesFence], retained::FORCED, NO_LATE_TURN),
    example(&[Rule::RetainAlone], retained::CALM, NO_LATE_TURN),
    example(
        &[Rule::RetainSubscribed],
        retained::CALM.with_callers(PAIR),
        NO_LATE_TURN,
    ),
    example(
        &[Rule::ForcedTellsHolder],
        retained::FORCED.with_callers(PAIR),
        NO_LATE_TURN,
    ),
];

pub const UNBROKEN: [Unbroken; 3] = [
    Unbroken {
        without: Rule::ReleaseNamesFence,
        why: "an id serves one hold, so it has no newer grant that could be freed; needed if an id is used \
              again (above), and for re-entrance and late forced releases, which are not modelled",
    },
    Unbroken {
        without: Rule::OwnFences,
        why: "only a client that listens is told, and it becomes the holder; needed if a client is told and \
              then skipped (above)",
    },
    Unbroken {
        without: Rule::TellOwnGrant,
        why: "the claim window also ends the unread grant, only later: there are no durations here",
    },
];
