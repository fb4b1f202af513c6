//! The rules of the quorum lock, which can be switched off one by one. Without a rule, a promise breaks.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    YieldToEarlier,
    HolderYieldsNothing,
    UncountBeforeYield,
    AskBeforeYield,
    OneTicket,
    OneFence,
    MuteAfterForgetting,
    FencesOutliveMemory,
    RefuseLateVotes,
    StopAtDeadline,
    IgnoreOlderPush,
    ReleaseEverywhere,
    WithdrawAfterCancel,
    WithdrawUnanswered,
    Timer,
    HolderAsksFirst,
    ReserveFences,
    TellLastFence,
    LostVoteUsesAll,
    LeaveWithoutMajority,
    ComeBackOnceReached,
}

impl Rule {
    pub const ALL: [Rule; 21] = [
        Rule::YieldToEarlier,
        Rule::HolderYieldsNothing,
        Rule::UncountBeforeYield,
        Rule::AskBeforeYield,
        Rule::OneTicket,
        Rule::OneFence,
        Rule::MuteAfterForgetting,
        Rule::FencesOutliveMemory,
        Rule::RefuseLateVotes,
        Rule::StopAtDeadline,
        Rule::IgnoreOlderPush,
        Rule::ReleaseEverywhere,
        Rule::WithdrawAfterCancel,
        Rule::WithdrawUnanswered,
        Rule::Timer,
        Rule::HolderAsksFirst,
        Rule::ReserveFences,
        Rule::TellLastFence,
        Rule::LostVoteUsesAll,
        Rule::LeaveWithoutMajority,
        Rule::ComeBackOnceReached,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::YieldToEarlier => "too few votes are yielded to an earlier ticket",
            Rule::HolderYieldsNothing => "a holder yields nothing",
            Rule::UncountBeforeYield => "a vote stops counting before it is yielded",
            Rule::AskBeforeYield => "a client that yields asks again before it lets go",
            Rule::OneTicket => "a client has one ticket on all servers",
            Rule::OneFence => "a hold is a majority under one fence",
            Rule::MuteAfterForgetting => "a server that forgot is mute for a lease",
            Rule::FencesOutliveMemory => "fences outlive the memory of a server",
            Rule::RefuseLateVotes => "a late vote is refused",
            Rule::StopAtDeadline => "a vote stops counting before its lease ends",
            Rule::IgnoreOlderPush => "a push for a request that has the vote is ignored",
            Rule::ReleaseEverywhere => "a release goes to all servers",
            Rule::WithdrawAfterCancel => "a cancelled request is withdrawn at once",
            Rule::WithdrawUnanswered => "a withdrawal follows unanswered calls",
            Rule::Timer => "a waiting client polls by a timer",
            Rule::HolderAsksFirst => "a holder asks for missing votes before all who wait",
            Rule::ReserveFences => {
                "all fences that a vote reserved count as used, unless it tells the last one"
            }
            Rule::TellLastFence => "a release tells the last fence that its hold used",
            Rule::LostVoteUsesAll => "a vote that leaves a hold early tells the last fence that it reserved",
            Rule::LeaveWithoutMajority => {
                "a client that reaches no majority leaves the servers that it reaches"
            }
            Rule::ComeBackOnceReached => {
                "a client comes back to servers that it left once it reaches a majority"
            }
        })
    }
}
