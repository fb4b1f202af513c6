//! The scripts, as in `lua/`. Each runs as a whole. Left out: re-entrance, tries, and the bound of a
//! hand-over.

use crate::single::protocol::Protocol;
use crate::single::rules::Rule;
use crate::single::state::{
    Acquire, Answer, ClientId, Fence, Grant, Hold, Mode, RequestId, Server, State, Ticket, Turn,
};

impl Server {
    pub fn is_queued(&self, request: RequestId) -> bool {
        self.queue.iter().any(|&(_, queued)| queued == request)
    }

    /// The current hold, unless its deadline has passed.
    pub fn held(&self) -> Option<&Hold> {
        self.hold.as_ref().filter(|hold| !hold.over)
    }

    pub fn is_held_by(&self, request: RequestId) -> bool {
        self.held().is_some_and(|hold| hold.request == request)
    }

    fn grant_of(&self, request: RequestId) -> Option<Grant> {
        let hold = self.held().filter(|hold| hold.request == request)?;
        Some(Grant {
            request,
            fence: hold.fence,
            pushed: hold.pushed,
            late: false,
        })
    }
}

impl Protocol {
    /// `lua/acquire.lua`.
    pub fn run_acquire(&self, state: &mut State, call: &Acquire) -> Answer {
        let Acquire {
            request,
            mode,
            ticket,
            ..
        } = *call;
        let client = self.client_of(request);
        let known = self.has(Rule::RequestIds);
        if let Some(grant) = state.server.grant_of(request).filter(|_| known) {
            let was_queued = false;
            return Answer::Granted { grant, was_queued };
        }
        if mode == Mode::Poll && !state.server.presence[client].record && self.has(Rule::AnswerNotRegistered)
        {
            let seen = state.server.presence[client].subscriber;
            return Answer::NotRegistered { seen };
        }
        self.drop_ended(state, client);

        let mut enqueued = !state.server.is_queued(request);
        let next_ticket = state.server.next_ticket;
        let ticket = ticket.unwrap_or(next_ticket);
        if enqueued {
            state.server.next_ticket = next_ticket.max(ticket + 1);
            state.server.queue.push((ticket, request));
        } else if self.has(Rule::EarlierTicketCounts) {
            let later = |place: &&mut (Ticket, RequestId)| place.1 == request && place.0 > ticket;
            if let Some(place) = state.server.queue.iter_mut().find(later) {
                place.0 = ticket;
                enqueued = true;
            }
        }
        state.server.queue.sort_unstable();
        if state.server.hold.is_none() {
            self.hand_over(state, Some(request));
            if let Some(grant) = state.server.grant_of(request) {
                if !state
                    .server
                    .queue
                    .iter()
                    .any(|&(queued, _)| queued >= next_ticket)
                {
                    // No client was told of this ticket.
                    state.server.next_ticket = next_ticket;
                }
                let was_queued = !enqueued;
                return Answer::Granted { grant, was_queued };
            }
        }
        let server = &mut state.server;
        if mode != Mode::Wait {
            server.presence[client].record = true;
        }
        let place = server.queue.iter().find(|&&(_, queued)| queued == request);
        let own_grant = server
            .held()
            .filter(|hold| self.client_of(hold.request) == client && hold.request != request)
            .and_then(|hold| server.grant_of(hold.request));
        Answer::Queued {
            ticket: place.map_or(0, |&(ticket, _)| ticket),
            enqueued,
            own_grant: own_grant.filter(|_| self.has(Rule::TellOwnGrant)),
            seen: server.presence[client].subscriber,
        }
    }

    /// `lua/release.lua` for the grant under this fence; without a fence, `lua/withdraw.lua`. Returns whether
    /// there was such a hold.
    pub fn run_release(&self, state: &mut State, request: RequestId, turn: Option<Turn>) -> bool {
        self.drop_ended(state, self.client_of(request));
        let by_id = turn.is_none() || !self.has(Rule::ReleaseNamesFence);
        let fence_counts = |hold: &Hold| turn.is_some_and(|turn| turn.first == hold.fence);
        let counts = |hold: &Hold| hold.request == request && (by_id || fence_counts(hold));
        let found = state.server.hold.take_if(|hold| counts(hold));
        match (&found, turn) {
            (Some(hold), None) => self.use_up(state, hold),
            (Some(_), Some(turn)) if self.has(Rule::TellLastFence) => state.server.fence = turn.fence,
            _ => {}
        }
        let found = found.is_some();
        if turn.is_none() {
            state.server.queue.retain(|&(_, queued)| queued != request);
        }
        if state.server.hold.is_none() {
            self.hand_over(state, None);
        }
        found
    }

    /// `lua/renew.lua`.
    pub fn run_renew(&self, state: &mut State, request: RequestId, fence: Fence) {
        let server = &mut state.server;
        match server.hold.as_mut().filter(|hold| !hold.over) {
            Some(hold) if hold.request == request && hold.fence == fence => hold.pushed = false,
            None if !self.has(Rule::RenewNeverCreates) => {
                server.hold = Some(Hold {
                    request,
                    fence,
                    pushed: false,
                    over: false,
                });
            }
            _ => {}
        }
    }

    /// A hold has ended without a word of the last fence that it used.
    fn use_up(&self, state: &mut State, hold: &Hold) {
        if self.has(Rule::ReserveFences) {
            state.server.fence = hold.fence + self.more_turns();
        }
    }

    /// Drops a hold whose deadline has passed, and the presence record of its client, which is dead or
    /// asleep. A client that makes the call itself keeps its record.
    fn drop_ended(&self, state: &mut State, caller: ClientId) {
        if let Some(ended) = state.server.hold.take_if(|hold| hold.over) {
            self.use_up(state, &ended);
            let client = self.client_of(ended.request);
            if client != caller {
                state.server.presence[client].record = false;
            }
        }
    }

    /// `lua/lib/hand_over.lua`: gives the free lock to the first reachable request in the queue.
    fn hand_over(&self, state: &mut State, caller: Option<RequestId>) {
        let mut passed_over = Vec::new();
        while !state.server.queue.is_empty() {
            let place = state.server.queue.remove(0);
            let request = place.1;
            let client = self.client_of(request);
            let presence = &mut state.server.presence[client];
            let mine = caller == Some(request);
            let fence = state.server.fence + 1;
            let is_counted = presence.record && presence.subscriber;
            if mine || is_counted {
                state.server.fence = fence;
                state.server.hold = Some(Hold {
                    request,
                    fence,
                    pushed: !mine,
                    over: false,
                });
                if !mine && state.clients[client].subscribed {
                    state.clients[client].pushes.push(Grant {
                        request,
                        fence,
                        pushed: true,
                        late: false,
                    });
                }
                self.note_overtaken(state, place);
                break;
            }
            if presence.record && state.clients[client].subscribed && !self.has(Rule::CountBeforePublishing) {
                // The client receives the message all the same, at a replica.
                state.clients[client].pushes.push(Grant {
                    request,
                    fence,
                    pushed: true,
                    late: false,
                });
                if self.has(Rule::OwnFences) {
                    state.server.fence = fence;
                }
            }
            state.requests[request].missed_turn = true;
            if self.has(Rule::RemoveRecord) {
                presence.record = false;
            }
            if !self.has(Rule::RemoveUnreachable) {
                passed_over.push(place);
            }
            if !self.has(Rule::HandOverGoesOn) {
                break;
            }
        }
        state.server.queue.extend(passed_over);
        state.server.queue.sort_unstable();
    }
}
