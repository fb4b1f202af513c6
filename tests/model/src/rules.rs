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
    AskWhenSubscribed,
    RequestIds,
    AskAfterReconnect,
    Timer,
    TicketOnReturn,
    GoneAnswered,
    ReturnTogether,
    RemoveUnreachable,
    RemoveRecord,
    IgnoreOlderPush,
    HandOverGoesOn,
    TellSibling,
    ClaimWindow,
    RenewNeverCreates,
    EarlierTicketCounts,
    WithdrawAfterLoss,
    AskForTheNext,
    CountBeforePublishing,
    OwnFences,
    RenewUnseen,
}

impl Rule {
    pub const ALL: [Rule; 26] = [
        Rule::ReleaseNamesFence,
        Rule::NewIdAfterWithdrawal,
        Rule::WithdrawAfterSuccess,
        Rule::WithdrawAfterCancel,
        Rule::NotAfter,
        Rule::RefuseLateGrants,
        Rule::AskWhenSubscribed,
        Rule::RequestIds,
        Rule::AskAfterReconnect,
        Rule::Timer,
        Rule::TicketOnReturn,
        Rule::GoneAnswered,
        Rule::ReturnTogether,
        Rule::RemoveUnreachable,
        Rule::RemoveRecord,
        Rule::IgnoreOlderPush,
        Rule::HandOverGoesOn,
        Rule::TellSibling,
        Rule::ClaimWindow,
        Rule::RenewNeverCreates,
        Rule::EarlierTicketCounts,
        Rule::WithdrawAfterLoss,
        Rule::AskForTheNext,
        Rule::CountBeforePublishing,
        Rule::OwnFences,
        Rule::RenewUnseen,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::ReleaseNamesFence => "a release names request and fence",
            Rule::NewIdAfterWithdrawal => "a withdrawn id is never used again",
            Rule::WithdrawAfterSuccess => "a withdrawal for unanswered calls, also after success",
            Rule::WithdrawAfterCancel => "a withdrawal at once for a cancelled request",
            Rule::NotAfter => "a call past its `not_after` does nothing",
            Rule::RefuseLateGrants => "a grant heard of too late is refused",
            Rule::AskWhenSubscribed => "ask again once the subscription is confirmed",
            Rule::RequestIds => "a request granted before is granted the same again",
            Rule::AskAfterReconnect => "everybody asks again after a reconnect",
            Rule::Timer => "a room asks from time to time",
            Rule::TicketOnReturn => "a request comes back with its ticket",
            Rule::GoneAnswered => "a question without a record is answered `gone`",
            Rule::ReturnTogether => "who finds its place lost has all of its room ask",
            Rule::RemoveUnreachable => "an unreachable request leaves the queue",
            Rule::RemoveRecord => "an unreachable client loses its record",
            Rule::IgnoreOlderPush => "a push older than the fence held is ignored",
            Rule::HandOverGoesOn => "hand-over goes on past who can't be reached",
            Rule::TellSibling => "a question tells of the client's other grant",
            Rule::ClaimWindow => "a pushed grant is short until it is claimed",
            Rule::RenewNeverCreates => "a renewal never makes a hold that is gone",
            Rule::EarlierTicketCounts => "of two tickets of a request the earlier counts",
            Rule::WithdrawAfterLoss => "a withdrawal after a release that found nothing",
            Rule::AskForTheNext => "a room asks for the one whose turn comes first",
            Rule::CountBeforePublishing => "a client is told only once it is known to listen",
            Rule::OwnFences => "no two requests are told the same fence",
            Rule::RenewUnseen => "a subscription that is not seen is made anew",
        })
    }
}

/// A set of rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules(u32);

impl Rules {
    pub const ALL: Rules = Rules(u32::MAX);

    pub const fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u32))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}
