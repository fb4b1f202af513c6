//! A client: its waitlist (as in `src/engine/waitlist.rs` and `src/engine/acquire.rs`), and what its
//! background sends.

use crate::single::protocol::Protocol;
use crate::single::rules::Rule;
use crate::single::state::{
    Acquire, Answer, Call, Client, ClientId, Fence, Grant, Message, Reply, Request, RequestId, Stage, State,
    Turn,
};

/// A fence that stands for that of the next grant.
const ANY_NEXT: Fence = Fence::MAX;

impl Protocol {
    /// The waiting requests of a client, in the order of their ids.
    pub fn waiting<'a>(
        &'a self,
        state: &'a State,
        client: ClientId,
    ) -> impl DoubleEndedIterator<Item = RequestId> + 'a {
        let requests = state.requests.iter().enumerate();
        let waits = move |&(id, request): &(RequestId, &Request)| {
            self.client_of(id) == client && request.stage == Stage::Waiting
        };
        requests.filter(waits).map(|(id, _)| id)
    }

    pub fn begin(&self, state: &mut State, request: RequestId) {
        state.requests[request].stage = Stage::Waiting;
        self.ask(state, request, false);
    }

    /// The acquire call of a request; a poll if `is_poll`.
    pub fn acquire_call(&self, state: &State, request: RequestId, is_poll: bool) -> Acquire {
        let ticket = state.requests[request].ticket;
        Acquire {
            request,
            is_poll,
            ticket: ticket.filter(|_| self.has(Rule::TicketOnReturn)),
            again: is_poll || ticket.is_some(),
            listens: self.retains() && state.clients[self.client_of(request)].subscribed,
            returns: state.requests[request].missed_turn && ticket.is_some(),
        }
    }

    /// Sends the call, unless an equal one is waiting to be sent.
    pub fn ask(&self, state: &mut State, request: RequestId, is_poll: bool) {
        let call = Call::Acquire(self.acquire_call(state, request, is_poll));
        let calls = &mut state.clients[self.client_of(request)].calls;
        if !calls.contains(&call) {
            calls.push(call);
        }
    }

    /// The waiting requests that the waitlist polls with: of each capacity, the one whose turn comes first.
    /// While they have their places, so have all others.
    fn firsts(&self, state: &State, client: ClientId) -> Vec<RequestId> {
        let mut waiting: Vec<_> = self.waiting(state, client).collect();
        if self.has(Rule::PollForTheNext) {
            let ticket = |request: &RequestId| state.requests[*request].ticket;
            waiting.sort_by_key(|request| (ticket(request).is_none(), ticket(request)));
        }
        let mut capacities = Vec::new();
        waiting.retain(|&request| {
            let capacity = state.requests[request].permits.capacity;
            let is_first = match self.has(Rule::PollForTheFirstOfEachCapacity) {
                true => !capacities.contains(&capacity),
                false => capacities.is_empty(),
            };
            capacities.push(capacity);
            is_first
        });
        waiting
    }

    /// The waitlist polls.
    pub fn poll(&self, state: &mut State, client: ClientId) {
        for first in self.firsts(state, client) {
            self.ask(state, first, true);
        }
    }

    pub fn ask_all(&self, state: &mut State, client: ClientId) {
        self.ask_others(state, client, None);
    }

    /// Has all waiters of the client ask again, except for one.
    fn ask_others(&self, state: &mut State, client: ClientId, but: Option<RequestId>) {
        let waiting: Vec<_> = self
            .waiting(state, client)
            .filter(|&other| Some(other) != but)
            .collect();
        for request in waiting {
            self.ask(state, request, false);
        }
    }

    /// Handles a reply.
    pub fn on_reply(&self, state: &mut State, client: ClientId, reply: Reply) {
        let Reply { call, answer } = reply;
        match answer {
            Answer::Granted {
                grant,
                was_queued,
                alone,
            } => {
                let may_retain = (alone || !self.has(Rule::RetainAlone))
                    && (call.listens || !self.has(Rule::RetainSubscribed));
                self.deliver(state, client, grant, may_retain);
                let lost_its_place = call.again && !grant.pushed && !was_queued;
                if lost_its_place && self.has(Rule::ReturnTogether) {
                    self.ask_all(state, client);
                }
            }
            Answer::Queued {
                ticket,
                enqueued,
                own_grant,
                ..
            } => {
                if enqueued && call.again && self.has(Rule::ReturnTogether) {
                    self.ask_others(state, client, Some(call.request));
                }
                let request = &mut state.requests[call.request];
                if request.stage == Stage::Waiting {
                    let known = request.ticket.filter(|_| self.has(Rule::KeepEarlierTicket));
                    request.ticket = Some(known.map_or(ticket, |known| known.min(ticket)));
                    request.arrived = request.arrived.or(Some(ticket));
                }
                if let Some(grant) = own_grant {
                    self.deliver(state, client, grant, !self.has(Rule::RetainAlone));
                }
            }
        }
    }

    pub fn on_message(&self, state: &mut State, client: ClientId, message: Message) {
        match message {
            Message::Grants(grants) => {
                for grant in grants {
                    self.deliver(state, client, grant, !self.has(Rule::RetainAlone));
                }
            }
            Message::Wanted(fence) => self.on_wanted(state, client, fence),
        }
    }

    /// The server has told the client that others wait for its hold with this fence, or that it was taken
    /// away by force.
    fn on_wanted(&self, state: &mut State, client: ClientId, fence: Fence) {
        let mut held = self
            .ids_of(client)
            .filter_map(|request| state.requests[request].stage.held());
        let wanted = if self.has(Rule::WantedNamesFence) {
            let is_held = held.any(|turn| turn.first == fence);
            Some(fence).filter(|_| is_held || self.has(Rule::RememberWanted))
        } else {
            // Without a name, it must be a present hold or, if there is none, the next one.
            held.map(|turn| turn.first).max().or(Some(ANY_NEXT))
        };
        self.begin_no_turn_up_to(state, client, wanted.unwrap_or(0));
    }

    /// The hold with this fence begins no further turn, nor do earlier holds, which are over on the server.
    fn begin_no_turn_up_to(&self, state: &mut State, client: ClientId, fence: Fence) {
        let wanted = &mut state.clients[client].wanted;
        *wanted = fence.max(*wanted);
        let up_to = *wanted;
        self.give_back_idle(state, client, up_to);
    }

    fn give_back_idle(&self, state: &mut State, client: ClientId, up_to: Fence) {
        for request in self.ids_of(client) {
            if matches!(state.requests[request].stage, Stage::Idle(turn) if turn.first <= up_to) {
                self.release(state, request);
            }
        }
    }

    /// The client may have missed that its holds are wanted.
    pub fn retain_none(&self, state: &mut State, client: ClientId) {
        for request in self.ids_of(client) {
            state.requests[request].retained = false;
        }
        self.give_back_idle(state, client, Fence::MAX);
    }

    /// The hold is as old as a retained one may get.
    pub fn retention_ends(&self, state: &mut State, request: RequestId) {
        let client = self.client_of(request);
        match state.requests[request].stage {
            Stage::Idle(_) => self.release(state, request),
            Stage::Holding(turn) if self.has(Rule::TenureEnds) => {
                self.begin_no_turn_up_to(state, client, turn.first);
            }
            _ => state.requests[request].outlived = true,
        }
    }

    /// Handles a grant, which counts for a request that still waits.
    fn deliver(&self, state: &mut State, client: ClientId, grant: Grant, may_retain: bool) {
        let Grant {
            request, fence, late, ..
        } = grant;
        match state.requests[request].stage {
            Stage::Waiting if late && self.has(Rule::RefuseLateGrants) => {
                self.withdraw(state, client, grant);
            }
            Stage::Waiting => {
                state.requests[request].retained = self.retains() && may_retain;
                self.has_turn(state, request, Turn { first: fence, fence });
                if state.clients[client].wanted == ANY_NEXT {
                    state.clients[client].wanted = fence;
                }
            }
            Stage::Holding(_) if late && !self.has(Rule::IgnoreOlderPush) => {
                state.clients[client].calls.push(Call::Withdraw(request));
            }
            _ => {}
        }
    }

    fn has_turn(&self, state: &mut State, request: RequestId, turn: Turn) {
        state.requests[request].stage = Stage::Holding(turn);
        let was_forced = turn.first <= state.requests[request].forced;
        let history = &mut state.history;
        if state.requests[request].permits.are_all() {
            history.went_back |= turn.fence <= history.newest_believed && !was_forced;
            history.newest_of_all_permits = history.newest_of_all_permits.max(turn.fence);
        } else {
            history.went_back |= turn.fence <= history.newest_of_all_permits;
        }
        history.newest_believed = history.newest_believed.max(turn.fence);
    }

    /// Whether the hold has a fence for another turn, which may begin as far as its client knows.
    pub fn may_go_on(&self, state: &State, request: RequestId, turn: Turn) -> bool {
        let is_wanted = state.clients[self.client_of(request)].wanted >= turn.first;
        turn.fence < turn.first + self.more_turns() && !is_wanted
    }

    /// A caller of the same process has the next turn. The server hears nothing of it.
    pub fn next_turn(&self, state: &mut State, request: RequestId) {
        if let Some(Turn { first, fence }) = state.requests[request].stage.held() {
            let fence = fence + 1;
            state.history.late_turn |= self.is_too_late_for_a_turn(state, request, first);
            self.has_turn(state, request, Turn { first, fence });
        }
    }

    /// Whether others wait for a retained hold, or it was taken away by force, and no message about that is
    /// under way to its client. If that was lost, turns may begin until the hold is as old as it may get.
    fn is_too_late_for_a_turn(&self, state: &State, id: RequestId, first: Fence) -> bool {
        let request = &state.requests[id];
        let is_wanted = request.forced >= first || !state.server.queue.is_empty();
        let messages = &state.clients[self.client_of(id)].pushes;
        let will_hear = messages.contains(&Message::Wanted(first));
        let may_not_know = state.history.lost_wanted == first && !request.outlived;
        request.retained && is_wanted && !will_hear && !may_not_know
    }

    /// The grant came too late: gives up its request for good, and waits on under a new id.
    fn withdraw(&self, state: &mut State, client: ClientId, grant: Grant) {
        let Grant { request, fence, .. } = grant;
        if !self.has(Rule::NewIdAfterWithdrawal) {
            // The obvious alternative: release this grant, and wait on under the same id.
            let give_back = if self.has(Rule::ReleaseNamesFence) {
                Call::Withdraw(request)
            } else {
                Call::Release(request, Turn { first: fence, fence })
            };
            state.clients[client].calls.push(give_back);
            self.ask(state, request, false);
            return;
        }
        state.requests[request].stage = Stage::Over;
        state.clients[client].calls.push(Call::Withdraw(request));
        if let Some(next) = self.spare(state, client) {
            state.requests[next].permits = state.requests[request].permits;
            state.requests[next].ticket = state.requests[request].ticket;
            state.requests[next].arrived = state.requests[request].arrived;
            state.requests[next].missed_turn = true;
            self.begin(state, next);
        }
    }

    /// The caller stops waiting.
    pub fn cancel(&self, state: &mut State, request: RequestId) {
        state.requests[request].stage = Stage::Over;
        if self.has(Rule::WithdrawAfterCancel) {
            state.clients[self.client_of(request)]
                .calls
                .push(Call::Withdraw(request));
        }
    }

    /// The turn of the holder is over. Its client keeps a retained hold that may have another turn, unless
    /// one of its own callers is queued.
    pub fn end_turn(&self, state: &mut State, request: RequestId) {
        let Stage::Holding(turn) = state.requests[request].stage else {
            return;
        };
        let client = self.client_of(request);
        if state.requests[request].retained
            && self.may_go_on(state, request, turn)
            && self.waiting(state, client).next().is_none()
        {
            state.requests[request].stage = Stage::Idle(turn);
        } else {
            self.release(state, request);
        }
    }

    /// The holder stops believing that it holds, and releases.
    pub fn release(&self, state: &mut State, request: RequestId) {
        if let Some(turn) = state.requests[request].stage.held() {
            state.requests[request].stage = Stage::Releasing;
            state.clients[self.client_of(request)]
                .calls
                .push(Call::Release(request, turn));
        }
    }

    pub fn renew(&self, state: &mut State, request: RequestId) {
        if let Some(turn) = state.requests[request].stage.held() {
            state.clients[self.client_of(request)]
                .calls
                .push(Call::Renew(request, turn.first));
        }
    }

    /// Handles the reply to a release. If the release found nothing, an earlier poll may have run after it,
    /// which queued the request again or made it the holder.
    pub fn released(&self, state: &mut State, id: RequestId, found: bool) {
        let request = &mut state.requests[id];
        if request.stage == Stage::Releasing {
            request.stage = Stage::Over;
            request.unanswered &= self.has(Rule::WithdrawAfterSuccess);
            if !found && self.has(Rule::WithdrawAfterLoss) {
                state.clients[self.client_of(id)].calls.push(Call::Withdraw(id));
            }
        }
    }

    /// Whether unanswered calls of an ended request may still run.
    pub fn last_withdrawal_is_due(&self, state: &State, request: RequestId) -> bool {
        let Client { crashed, calls, .. } = &state.clients[self.client_of(request)];
        let ended = &state.requests[request];
        ended.stage == Stage::Over
            && ended.unanswered
            && !crashed
            && calls.iter().all(|call| call.request() != request)
    }

    /// Sends the last withdrawal. It is past the `not_after` of all calls of the request, so none of them
    /// will run after it.
    pub fn send_last_withdrawal(&self, state: &mut State, request: RequestId) {
        let client = &mut state.clients[self.client_of(request)];
        if self.has(Rule::NotAfter) {
            let acquires = |call: &Call| matches!(call, Call::Acquire(_)) && call.request() == request;
            client.stuck.retain(|call| !acquires(call));
        }
        client.calls.push(Call::Withdraw(request));
        state.requests[request].unanswered = false;
    }

    /// The subscription is confirmed. The first time, the waitlist polls; after a reconnect, all requests ask
    /// again.
    pub fn subscribed(&self, state: &mut State, client: ClientId) {
        let this = &mut state.clients[client];
        this.subscribed = true;
        let reconnected = std::mem::replace(&mut this.was_subscribed, true);
        state.server.subscribed[client] = true;
        if !reconnected {
            if self.has(Rule::PollWhenSubscribed) {
                self.poll(state, client);
            }
        } else if self.has(Rule::AskAfterReconnect) {
            self.ask_all(state, client);
        }
    }

    /// Whether a poll of this waitlist would change anything. Polls that change nothing are left out.
    pub fn poll_has_news(&self, state: &State, client: ClientId) -> bool {
        let mut after = state.clone();
        let has_news = |first| match self.run_acquire(&mut after, &self.acquire_call(state, first, true)) {
            Answer::Granted { .. } => true,
            Answer::Queued { own_grant, .. } => {
                own_grant.is_some_and(|grant| state.requests[grant.request].stage == Stage::Waiting)
            }
        };
        self.firsts(state, client).into_iter().any(has_news) || after.server != state.server
    }
}
