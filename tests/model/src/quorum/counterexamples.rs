//! The reason for each rule: where a promise breaks without it, and which promise.

use crate::quorum::configuration::{
    CANCEL, CLAIM, CRASH, CUT, Configuration, DISCONNECT, ENDED_LEASE, NOTHING, ONE_BEHIND, RESTART, TURN,
    TWO_ENDED_LEASES, three_clients, two_clients,
};
use crate::quorum::properties::{
    ALL_VOTES, LARGER_FENCES, NO_OVERTAKING, NOBODY_STUCK, NOTHING_LEFT, ONE_HOLDER,
};
use crate::quorum::rules::Rule;

/// A protocol without one rule, and the promise that breaks.
#[derive(Clone, Copy, Debug)]
pub struct Counterexample {
    pub without: Rule,
    pub configuration: Configuration,
    pub violates: &'static str,
}

const fn example(without: Rule, configuration: Configuration, violates: &'static str) -> Counterexample {
    Counterexample {
        without,
        configuration: configuration.without(without),
        violates,
    }
}

pub const COUNTEREXAMPLES: [Counterexample; 21] = [
    example(Rule::YieldToEarlier, three_clients(NOTHING), NOBODY_STUCK),
    example(Rule::HolderYieldsNothing, three_clients(NOTHING), ONE_HOLDER),
    example(Rule::UncountBeforeYield, three_clients(NOTHING), ONE_HOLDER),
    example(Rule::AskBeforeYield, three_clients(NOTHING), NO_OVERTAKING),
    example(Rule::OneTicket, three_clients(NOTHING), NOBODY_STUCK),
    example(Rule::OneFence, two_clients(CRASH), LARGER_FENCES),
    example(Rule::MuteAfterForgetting, two_clients(RESTART), ONE_HOLDER),
    example(Rule::FencesOutliveMemory, two_clients(RESTART), LARGER_FENCES),
    example(Rule::RefuseLateVotes, two_clients(ENDED_LEASE), ONE_HOLDER),
    example(Rule::StopAtDeadline, two_clients(ENDED_LEASE), ONE_HOLDER),
    example(Rule::IgnoreOlderPush, two_clients(TWO_ENDED_LEASES), ONE_HOLDER),
    example(Rule::ReleaseEverywhere, two_clients(NOTHING), NOTHING_LEFT),
    example(Rule::WithdrawAfterCancel, two_clients(CANCEL), NOTHING_LEFT),
    example(Rule::WithdrawUnanswered, two_clients(DISCONNECT), NOTHING_LEFT),
    example(Rule::Timer, two_clients(CRASH), NOBODY_STUCK),
    example(Rule::HolderAsksFirst, two_clients(CLAIM), ALL_VOTES),
    example(Rule::ReserveFences, two_clients(TURN.and(CRASH)), LARGER_FENCES),
    example(Rule::TellLastFence, two_clients(TURN), LARGER_FENCES),
    // The next majority is the server of the lost vote and one whose fence is behind, and whose vote ran out.
    example(
        Rule::LostVoteUsesAll,
        two_clients(TURN.and(TWO_ENDED_LEASES)).with_fences(ONE_BEHIND),
        LARGER_FENCES,
    ),
    example(
        Rule::LeaveWithoutMajority,
        two_clients(RESTART.and(CUT)),
        NOBODY_STUCK,
    ),
    example(
        Rule::ComeBackOnceReached,
        two_clients(RESTART.and(CUT)),
        NOBODY_STUCK,
    ),
];
