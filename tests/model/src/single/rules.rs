//! The rules of the protocol, which can be switched off one by one. Without a rule, a promise breaks.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    ReleaseNamesFence,
    NewIdAfterWithdrawal,
    WithdrawAfterSuccess,
    WithdrawAfterCancel,
    NotAfter,
    RefuseLateGrants,
    PollWhenSubscribed,
    RequestIds,
    AskAfterReconnect,
    Timer,
    TicketOnReturn,
    ReturnTogether,
    RemoveUnreachable,
    IgnoreOlderPush,
    HandOverGoesOn,
    TellOwnGrant,
    ClaimWindow,
    RenewNeverCreates,
    EarlierTicketCounts,
    WithdrawAfterLoss,
    PollForTheNext,
    PollForTheFirstOfEachCapacity,
    CountBeforePublishing,
    OwnFences,
    ReserveFences,
    TellLastFence,
    HeadBlocks,
    LargerCapacityOvertakes,
    BoundOvertaking,
    GrantAllThatFit,
    PassOverDeadHead,
    OneFenceEach,
    TimersAreEarly,
    RebuildTimers,
    KeepEarlierTicket,
    NoteUnclaimed,
    CallRemovesNote,
    IdleEnds,
    TenureEnds,
    RememberWanted,
    WantedNamesFence,
    RetainAlone,
    RetainSubscribed,
    ForcedTellsHolder,
}

impl Rule {
    pub const ALL: [Rule; 44] = [
        Rule::ReleaseNamesFence,
        Rule::NewIdAfterWithdrawal,
        Rule::WithdrawAfterSuccess,
        Rule::WithdrawAfterCancel,
        Rule::NotAfter,
        Rule::RefuseLateGrants,
        Rule::PollWhenSubscribed,
        Rule::RequestIds,
        Rule::AskAfterReconnect,
        Rule::Timer,
        Rule::TicketOnReturn,
        Rule::ReturnTogether,
        Rule::RemoveUnreachable,
        Rule::IgnoreOlderPush,
        Rule::HandOverGoesOn,
        Rule::TellOwnGrant,
        Rule::ClaimWindow,
        Rule::RenewNeverCreates,
        Rule::EarlierTicketCounts,
        Rule::WithdrawAfterLoss,
        Rule::PollForTheNext,
        Rule::PollForTheFirstOfEachCapacity,
        Rule::CountBeforePublishing,
        Rule::OwnFences,
        Rule::ReserveFences,
        Rule::TellLastFence,
        Rule::HeadBlocks,
        Rule::LargerCapacityOvertakes,
        Rule::BoundOvertaking,
        Rule::GrantAllThatFit,
        Rule::PassOverDeadHead,
        Rule::OneFenceEach,
        Rule::TimersAreEarly,
        Rule::RebuildTimers,
        Rule::KeepEarlierTicket,
        Rule::NoteUnclaimed,
        Rule::CallRemovesNote,
        Rule::IdleEnds,
        Rule::TenureEnds,
        Rule::RememberWanted,
        Rule::WantedNamesFence,
        Rule::RetainAlone,
        Rule::RetainSubscribed,
        Rule::ForcedTellsHolder,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::ReleaseNamesFence => "a release names request and fence",
            Rule::NewIdAfterWithdrawal => "a withdrawn id is never used again",
            Rule::WithdrawAfterSuccess => "a withdrawal follows unanswered calls, also after success",
            Rule::WithdrawAfterCancel => "a cancelled request is withdrawn at once",
            Rule::NotAfter => "a call past its `not_after` does nothing new",
            Rule::RefuseLateGrants => "a late grant is refused",
            Rule::PollWhenSubscribed => "a confirmed subscription is followed by a poll",
            Rule::RequestIds => "a repeated call returns the same grant",
            Rule::AskAfterReconnect => "every waiter asks again after a reconnect",
            Rule::Timer => "a waitlist polls by a timer",
            Rule::TicketOnReturn => "a request brings its ticket when it asks again",
            Rule::ReturnTogether => "a waiter that finds its place lost makes its waitlist ask",
            Rule::RemoveUnreachable => "an unreachable request leaves the queue",
            Rule::IgnoreOlderPush => "a push for a request that has been granted is ignored",
            Rule::HandOverGoesOn => "a hand-over goes on to the first reachable request",
            Rule::TellOwnGrant => "a contended reply tells of the own client's grant",
            Rule::ClaimWindow => "a pushed grant is short until it is claimed",
            Rule::RenewNeverCreates => "a renewal never creates a hold",
            Rule::EarlierTicketCounts => "the earlier of two tickets of one request counts",
            Rule::WithdrawAfterLoss => "a withdrawal follows a release that finds nothing",
            Rule::PollForTheNext => "a waitlist polls for the waiter whose turn comes first",
            Rule::PollForTheFirstOfEachCapacity => {
                "a waitlist polls for the first waiter of each capacity, not only for one"
            }
            Rule::CountBeforePublishing => "a client is told only if the server sees it listen",
            Rule::OwnFences => "no two requests are told the same fence",
            Rule::ReserveFences => {
                "all fences that a hold reserved count as used, unless it tells the last one"
            }
            Rule::TellLastFence => "a release tells the last fence that its hold used",
            Rule::HeadBlocks => "a request for which there are too few permits blocks those behind it",
            Rule::LargerCapacityOvertakes => "a request with a larger capacity overtakes those that are full",
            Rule::BoundOvertaking => {
                "what is granted over the first request fits into the capacity of the next"
            }
            Rule::GrantAllThatFit => "a hand-over gives out permits as long as there are enough",
            Rule::PassOverDeadHead => "an unreachable request for which there are too few permits is removed",
            Rule::OneFenceEach => "each hold has a fence of its own",
            Rule::TimersAreEarly => "a timer that runs out is compared with the deadline",
            Rule::RebuildTimers => "lost timers are made again",
            Rule::NoteUnclaimed => "a client whose grant runs out unclaimed is noted absent",
            Rule::CallRemovesNote => "a call that queues removes the note that its client is absent",
            Rule::KeepEarlierTicket => "a client keeps the earlier of two tickets that it is told",
            Rule::IdleEnds => "a retained hold that is idle and old enough is given back",
            Rule::TenureEnds => "a retained hold that is old enough begins no further turn",
            Rule::RememberWanted => "a client remembers that a hold is wanted whose grant is unread",
            Rule::WantedNamesFence => "the message that a hold is wanted names its fence",
            Rule::RetainAlone => "a hold is retained only if its grant told that nobody is queued",
            Rule::RetainSubscribed => "a hold is retained while its client is subscribed since it asked",
            Rule::ForcedTellsHolder => "a forced release tells the client of the holder",
        })
    }
}

/// A set of rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules(u64);

impl Rules {
    pub const ALL: Rules = Rules(u64::MAX);

    pub const fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u32))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}
