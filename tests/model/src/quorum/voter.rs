//! A voter: what a client does on one server to get its vote and to keep it. This is the waitlist, the outbox
//! and the withdrawals that a client of that server alone has.

use crate::quorum::protocol::Protocol;
use crate::quorum::rules::Rule;
use crate::quorum::state::{
    Attempt, Attempts, Call, Client, ClientId, FIRST, Fence, Grant, Reply, ServerId, State, Ticket,
};

impl Protocol {
    pub fn usual_ticket(client: ClientId) -> Ticket {
        FIRST + 1 + client
    }

    fn ticket(&self, state: &State, client: ClientId) -> Ticket {
        match state.client(client) {
            Client::Holding { claimed: true, .. } if self.has(Rule::HolderAsksFirst) => FIRST,
            _ => Protocol::usual_ticket(client),
        }
    }

    /// Sends the call, unless an equal one is waiting to be sent.
    pub fn send(&self, state: &mut State, server: ServerId, client: ClientId, call: Call) {
        let calls = &mut state.voter_mut(server, client).calls;
        if !calls.contains(&call) {
            calls.push(call);
        }
    }

    /// Asks for the vote, the first time or again.
    pub fn ask(&self, state: &mut State, server: ServerId, client: ClientId) {
        let attempt = state.voter(server, client).attempt;
        let ticket = self.ticket(state, client);
        state.voter_mut(server, client).is_left = false;
        self.send(state, server, client, Call::Acquire { attempt, ticket });
    }

    /// Gives up the present request for good, and goes on with a new one. The former is withdrawn once the
    /// new one is answered, and so has its place. It may have used all fences up to this one, and none if it
    /// is 0.
    pub fn begin_again(&self, state: &mut State, server: ServerId, client: ClientId, used: Fence) {
        let told = self.told(used);
        let voter = state.voter_mut(server, client);
        let former = Attempts::of(voter.attempt);
        voter.attempt += 1;
        voter.vote = None;
        if self.has(Rule::AskBeforeYield) {
            voter.leaving = voter.leaving.and(former);
            voter.leaving_used = voter.leaving_used.max(told);
        } else {
            voter.calls.push(Call::Withdraw {
                attempts: former,
                floor: 0,
                used: told,
            });
        }
        self.ask(state, server, client);
    }

    /// What the release of a vote tells of the last fence that it used. Where a vote reserves one fence only,
    /// there is nothing to tell.
    pub fn told(&self, used: Fence) -> Option<Fence> {
        (self.more_turns() > 0).then_some(used)
    }

    pub fn on_reply(&self, state: &mut State, server: ServerId, client: ClientId, reply: Reply) {
        match reply {
            Reply::Queued(attempt) => self.on_answer(state, server, client, attempt),
            Reply::Granted(grant) => {
                self.on_answer(state, server, client, grant.attempt);
                self.on_grant(state, server, client, grant);
            }
            Reply::Renewed {
                attempt,
                fence,
                earlier,
            } => {
                let voter = state.voter_mut(server, client);
                if voter.attempt == attempt && voter.vote.is_some() {
                    voter.vote = fence;
                    self.on_renewed(state, server, client, earlier);
                }
            }
        }
    }

    /// A request has its place or its vote. If it is the present one, those before are withdrawn.
    fn on_answer(&self, state: &mut State, server: ServerId, client: ClientId, attempt: Attempt) {
        let voter = state.voter_mut(server, client);
        if voter.attempt == attempt && !voter.leaving.is_empty() {
            let withdrawal = Call::Withdraw {
                attempts: std::mem::take(&mut voter.leaving),
                floor: 0,
                used: voter.leaving_used.take(),
            };
            self.send(state, server, client, withdrawal);
        }
    }

    /// Handles a grant, in a reply or pushed.
    pub fn on_grant(&self, state: &mut State, server: ServerId, client: ClientId, grant: Grant) {
        let voter = state.voter_mut(server, client);
        if grant.attempt != voter.attempt {
            return;
        }
        match voter.vote {
            None if grant.late && self.has(Rule::RefuseLateVotes) => {
                self.begin_again(state, server, client, 0)
            }
            None => {
                voter.vote = Some(grant.fence);
                self.count(state, client);
            }
            Some(_) if grant.late && !self.has(Rule::IgnoreOlderPush) => {
                let withdrawal = Call::Withdraw {
                    attempts: Attempts::of(grant.attempt),
                    floor: 0,
                    used: None,
                };
                self.send(state, server, client, withdrawal);
            }
            Some(_) => {}
        }
    }

    /// Whether a poll for the vote would change anything. Polls that change nothing are left out, and those
    /// that would be told what a push under way tells.
    pub fn poll_has_news(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        let voter = state.voter(server, client);
        let this = &state.servers[server];
        let is_due = state.client(client).asks() && voter.vote.is_none() && !this.mute && !voter.is_left;
        is_due
            && voter.calls.is_empty()
            && voter.replies.is_empty()
            && (this.hold.is_none()
                || this.is_held_by(client, voter.attempt) && voter.pushes.is_empty()
                || !this.knows_request(client, voter.attempt))
    }

    /// Sends the last of what this client has to say to this server. This is the last fence that its hold
    /// used, if it had one.
    pub fn withdraw_all(&self, state: &mut State, server: ServerId, client: ClientId, used: Option<Fence>) {
        let voter = state.voter(server, client);
        let last = used.filter(|_| self.has(Rule::TellLastFence));
        let withdrawal = Call::Withdraw {
            attempts: voter.leaving.and(Attempts::of(voter.attempt)),
            floor: used.map_or(0, |fence| fence + 1),
            used: self.told(last.unwrap_or(0)),
        };
        self.send(state, server, client, withdrawal);
    }

    /// Requests that are over, have a call that may still run, and have no other call under way.
    pub fn left_unanswered(&self, state: &State, server: ServerId, client: ClientId) -> Attempts {
        let voter = state.voter(server, client);
        let present = match state.client(client) {
            Client::Dead => return Attempts::NONE,
            _ if !self.has(Rule::WithdrawUnanswered) => return Attempts::NONE,
            _ => Attempts::of(voter.attempt),
        };
        voter.calls.iter().fold(
            voter.unanswered.without(present).without(voter.leaving),
            |left, call| left.without(call.requests()),
        )
    }

    /// Withdraws these requests once more. It is past the `not_after` of all their calls, so none of those
    /// will run after it.
    pub fn send_last_withdrawal(&self, state: &mut State, server: ServerId, client: ClientId) {
        let attempts = self.left_unanswered(state, server, client);
        let voter = state.voter_mut(server, client);
        voter.unanswered = voter.unanswered.without(attempts);
        voter
            .stuck
            .retain(|call| !call.acquires() || call.requests().without(attempts) == call.requests());
        voter.calls.push(Call::Withdraw {
            attempts,
            floor: 0,
            used: None,
        });
    }
}
