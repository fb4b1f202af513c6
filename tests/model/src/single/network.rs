//! Faults: connections that close while their calls still run, messages that are lost, and processes that are
//! slow or die.

use crate::single::protocol::Protocol;
use crate::single::rules::Rule;
use crate::single::state::{Answer, Call, ClientId, Permits, Reply, RequestId, Stage, State};

/// The outcome of a call.
enum Outcome {
    Acquired(Answer),
    Released { found: bool },
    Renewed,
}

impl Protocol {
    /// The server runs the next call of a live connection, and answers it.
    pub fn serve(&self, state: &mut State, client: ClientId) {
        let call = state.clients[client].calls.remove(0);
        match (self.run(state, &call), call) {
            (Outcome::Acquired(_), call @ Call::Acquire(_))
                if state.server.is_incomplete() && self.has(Rule::RebuildTimers) =>
            {
                // The client makes the call again at once. It does so with a release too, but without that
                // the next call of anybody makes the other timers.
                state.clients[client].calls.insert(0, call);
            }
            (Outcome::Acquired(answer), Call::Acquire(call)) => {
                state.requests[call.request].missed_turn &= !call.returns;
                state.clients[client].replies.push(Reply { call, answer });
            }
            (Outcome::Released { found }, Call::Release(request, _)) => {
                self.released(state, request, found);
            }
            _ => {}
        }
    }

    /// Whether the next call of a live connection may run after the bound of its caller, who has given up.
    pub fn comes_too_late(&self, state: &State, client: ClientId) -> bool {
        let next = state.clients[client].calls.first();
        next.is_some_and(|call| {
            matches!(call, Call::Acquire(_)) && state.requests[call.request()].stage == Stage::Over
        })
    }

    /// The server runs a call of a closed connection.
    pub fn run_stuck(&self, state: &mut State, client: ClientId, index: usize) {
        let call = state.clients[client].stuck.remove(index);
        self.run(state, &call);
    }

    fn run(&self, state: &mut State, call: &Call) -> Outcome {
        let outcome = match call {
            Call::Acquire(acquire) => Outcome::Acquired(self.run_acquire(state, acquire)),
            Call::Release(request, turn) => Outcome::Released {
                found: self.run_release(state, *request, Some(*turn)),
            },
            Call::Withdraw(request) => Outcome::Released {
                found: self.run_release(state, *request, None),
            },
            Call::Renew(request, fence) => {
                self.run_renew(state, *request, *fence);
                Outcome::Renewed
            }
        };
        if !matches!(outcome, Outcome::Renewed) {
            state.history.left_free |= self.leaves_free(state, call);
        }
        outcome
    }

    /// Whether this call ends with enough permits free for the first reachable request of those that are not
    /// full. One that asks by this call counts as reachable.
    fn leaves_free(&self, state: &State, call: &Call) -> bool {
        let asks = |request| matches!(call, Call::Acquire(acquire) if acquire.request == request);
        for &(_, request) in &state.server.queue {
            let Permits { weight, capacity } = state.requests[request].permits;
            let used = state.server.used;
            if used < capacity && (asks(request) || self.is_reachable(state, request)) {
                return used.max(state.server.granted_over_first(request)) + weight <= capacity;
            }
        }
        false
    }

    /// The command connection is replaced, and unanswered calls are sent again. The subscriber connection is
    /// replaced too, so that both lead to one server. When it has subscribed, all requests ask again.
    pub fn disconnect(&self, state: &mut State, client: ClientId) {
        for call in self.close_connection(state, client) {
            match call {
                Call::Acquire(acquire) => {
                    if state.requests[acquire.request].stage == Stage::Waiting {
                        self.ask(state, acquire.request, false);
                    }
                }
                Call::Release(..) | Call::Withdraw(_) => state.clients[client].calls.push(call),
                Call::Renew(..) => {}
            }
        }
        if state.clients[client].was_subscribed {
            self.lose_subscription(state, client);
        } else if self.has(Rule::AskAfterReconnect) {
            self.ask_all(state, client);
        }
    }

    /// The process dies, and none of its holders believes anything any more.
    pub fn crash(&self, state: &mut State, client: ClientId) {
        self.close_connection(state, client);
        let this = &mut state.clients[client];
        this.crashed = true;
        this.subscribed = false;
        this.pushes.clear();
        for (id, request) in state.requests.iter_mut().enumerate() {
            if self.client_of(id) == client {
                request.stage = Stage::Over;
                request.unanswered = false;
            }
        }
    }

    /// Closes the command connection. Returns the unanswered calls.
    fn close_connection(&self, state: &mut State, client: ClientId) -> Vec<Call> {
        let this = &mut state.clients[client];
        let calls = std::mem::take(&mut this.calls);
        this.stuck.extend(calls.iter().cloned());
        this.stuck.sort_unstable();
        this.stuck.dedup();
        let answers_lost = std::mem::take(&mut this.replies)
            .into_iter()
            .map(|reply| Call::Acquire(reply.call));
        let unanswered: Vec<_> = answers_lost.chain(calls).collect();
        for call in &unanswered {
            if matches!(call, Call::Acquire(_)) {
                state.requests[call.request()].unanswered = true;
            }
        }
        unanswered
    }

    /// The subscriber connection is lost. The server may take a while to notice.
    pub fn lose_subscription(&self, state: &mut State, client: ClientId) {
        let this = &mut state.clients[client];
        this.subscribed = false;
        this.pushes.clear();
        let replied = this.replies.iter_mut().map(|reply| &mut reply.call);
        let asked = this.calls.iter_mut().filter_map(|call| match call {
            Call::Acquire(acquire) => Some(acquire),
            _ => None,
        });
        replied.chain(asked).for_each(|acquire| acquire.listens = false);
        if self.has(Rule::RetainSubscribed) {
            self.retain_none(state, client);
        }
    }

    /// The deadline of a hold passes on the server. Its holder has stopped believing before that, because
    /// its own deadline is never later. A client that reads the grant from now on can tell that it is over.
    pub fn expire(&self, state: &mut State, request: RequestId) {
        for hold in state
            .server
            .holds
            .iter_mut()
            .filter(|hold| hold.request == request)
        {
            hold.over = true;
            state.requests[hold.request].missed_turn |= state.requests[hold.request].stage == Stage::Waiting;
            let unread_grants = state.clients[self.client_of(hold.request)].unread_grants();
            for grant in unread_grants.filter(|grant| grant.fence == hold.fence) {
                grant.late = true;
            }
        }
    }

    /// The client is so slow that little is left of the grants it is about to read.
    pub fn delay_reading(&self, state: &mut State, client: ClientId) {
        state.clients[client]
            .unread_grants()
            .for_each(|grant| grant.late = true);
    }
}
