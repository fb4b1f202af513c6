//! The state machine: what can happen next, and what follows from it.

use std::time::Instant;

use stateright::{Model, Property};

use crate::single::configuration::{Configuration, Listening};
use crate::single::properties;
use crate::single::rules::Rule;
use crate::single::state::{
    Client, ClientId, Hold, Message, Request, RequestId, Server, Stage, State, Ticket, Timer,
};

/// A configuration of the protocol that can be explored.
#[derive(Clone, Debug)]
pub struct Protocol {
    configuration: Configuration,
    /// The client of each request.
    clients: Vec<ClientId>,
    /// No new states are explored after this time.
    until: Instant,
}

/// The name of each action begins with its actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    UserAcquires(RequestId),
    UserCancels(RequestId),
    UserReleases(RequestId),
    /// Another user of the same process has the next turn of a hold, after the former one or once it is idle.
    UserTakesTurn(RequestId),
    ClientReadsReply(ClientId),
    ClientReadsPush(ClientId),
    ClientSubscribes(ClientId),
    /// The timer of its waitlist. It only acts when the reply would change something.
    ClientPollsByTimer(ClientId),
    ClientPollsWithoutReason(ClientId),
    ClientRenews(RequestId),
    /// The hold is as old as a retained one may get.
    ClientEndsRetention(RequestId),
    ClientLosesLease(RequestId),
    ClientSendsLastWithdrawal(RequestId),
    ClientReadsLate(ClientId),
    ClientCrashes(ClientId),
    ServerRunsCall(ClientId),
    /// The call finds that its caller has given up by then, and does nothing.
    ServerRunsCallTooLate(ClientId),
    ServerRunsStuckCall(ClientId, usize),
    ServerNoticesLostSubscription(ClientId),
    DeadlinePasses(RequestId),
    TimerRunsOutEarly(RequestId),
    TimersAreLost,
    NoteIsWritten(ClientId),
    NoteIsLost(ClientId),
    StuckCallVanishes(ClientId, usize),
    ConnectionBreaks(ClientId),
    SubscriptionBreaks(ClientId),
    SubscriptionMovesToReplica(ClientId),
    PushIsLost(ClientId),
    OperatorForcesRelease,
}

impl Protocol {
    pub fn until(configuration: Configuration, until: Instant) -> Protocol {
        let spares = configuration.spares;
        let ids = |(client, callers): (ClientId, &usize)| vec![client; callers + spares];
        let clients = configuration.callers.iter().enumerate().flat_map(ids).collect();
        Protocol {
            configuration,
            clients,
            until,
        }
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.configuration.rules.has(rule)
    }

    /// Whether this is a lock, and not a semaphore or a read/write lock.
    pub fn is_lock(&self) -> bool {
        self.configuration.permits.is_empty()
    }

    pub fn client_of(&self, request: RequestId) -> ClientId {
        self.clients[request]
    }

    /// How many fences each hold reserves beyond its first one.
    pub fn more_turns(&self) -> u8 {
        self.configuration.budget.turns
    }

    /// Whether clients may keep their holds between turns.
    pub fn retains(&self) -> bool {
        self.configuration.retains
    }

    pub fn ids_of(&self, client: ClientId) -> impl Iterator<Item = RequestId> + use<'_> {
        (0..self.clients.len()).filter(move |&request| self.clients[request] == client)
    }

    /// The first ids of a client are for its callers, and the last ones are spare.
    fn callers_of(&self, client: ClientId) -> impl Iterator<Item = RequestId> {
        self.ids_of(client).take(self.configuration.callers[client])
    }

    pub fn spare(&self, state: &State, client: ClientId) -> Option<RequestId> {
        self.ids_of(client)
            .skip(self.configuration.callers[client])
            .find(|&request| state.requests[request].stage == Stage::Unused)
    }

    /// Whether the server can tell the client of this request.
    pub fn is_reachable(&self, state: &State, request: RequestId) -> bool {
        let client = self.client_of(request);
        !state.server.absent[client] && self.counts_as_listener(state, client)
    }

    pub fn counts_as_listener(&self, state: &State, client: ClientId) -> bool {
        let uncounted = self.configuration.listening == Listening::Uncounted;
        state.server.subscribed[client] || uncounted
    }

    /// Records whether a request in the queue was there before the one that got the permits. `used` is how
    /// many were in use before.
    pub fn note_overtaken(&self, state: &mut State, granted: (Ticket, RequestId), used: u8) {
        let by = state.requests[granted.1].permits;
        for &(_, other) in &state.server.queue {
            let other = &mut state.requests[other];
            let came_before = other.stage == Stage::Waiting
                && !other.missed_turn
                && other.arrived.is_some_and(|arrived| arrived < granted.0);
            if came_before {
                other.overtaken += by.weight;
                state.history.overtaken |= used < other.permits.capacity;
                state.history.overtaken_often |= other.overtaken > by.capacity;
            }
        }
    }

    /// What happens sooner or later without any fault. The leases of dead holders are separate, because they
    /// take so long.
    pub fn due(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, this) in state.clients.iter().enumerate() {
            if !this.calls.is_empty() {
                actions.push(Action::ServerRunsCall(client));
            }
            for index in 0..this.stuck.len() {
                actions.push(Action::ServerRunsStuckCall(client, index));
                actions.push(Action::StuckCallVanishes(client, index));
            }
            if state.server.subscribed[client] && !this.subscribed {
                actions.push(Action::ServerNoticesLostSubscription(client));
            }
            if this.crashed {
                continue;
            }
            if !this.replies.is_empty() {
                actions.push(Action::ClientReadsReply(client));
            }
            if !this.pushes.is_empty() {
                actions.push(Action::ClientReadsPush(client));
            }
            let driven = self
                .waiting(state, client)
                .any(|request| state.requests[request].ticket.is_some());
            let is_deaf = client == 0 && self.configuration.listening == Listening::FirstIsDeaf;
            if (driven || self.retains()) && !this.subscribed && !is_deaf {
                actions.push(Action::ClientSubscribes(client));
            }
            let idle = this.calls.is_empty() && this.replies.is_empty();
            if driven && idle && self.has(Rule::Timer) && self.poll_has_news(state, client) {
                actions.push(Action::ClientPollsByTimer(client));
            }
            for request in self.ids_of(client) {
                match state.requests[request].stage {
                    Stage::Holding(_) => actions.push(Action::UserReleases(request)),
                    Stage::Idle(_) if self.has(Rule::IdleEnds) => {
                        actions.push(Action::ClientEndsRetention(request))
                    }
                    _ if self.last_withdrawal_is_due(state, request) => {
                        actions.push(Action::ClientSendsLastWithdrawal(request))
                    }
                    _ => {}
                }
            }
        }
        let unclaimed = state
            .server
            .held()
            .filter(|hold| self.claim_window_ends(state, hold));
        actions.extend(unclaimed.map(|hold| Action::DeadlinePasses(hold.request)));
    }

    /// The hold was pushed and has not been claimed.
    fn claim_window_ends(&self, state: &State, hold: &Hold) -> bool {
        hold.pushed && self.has(Rule::ClaimWindow) && self.expires_unprovoked(state, hold.request)
    }

    /// The lease of this holder ends and is not renewed, and nothing is under way that could change that.
    pub fn expires_unprovoked(&self, state: &State, holder: RequestId) -> bool {
        let client = &state.clients[self.client_of(holder)];
        !state.requests[holder].stage.is_held()
            && (client.crashed || client.is_idle() && !self.last_withdrawal_is_due(state, holder))
    }

    /// What else may happen, as often as the budget allows.
    fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        for (client, this) in state.clients.iter().enumerate().filter(|(_, this)| !this.crashed) {
            if self.comes_too_late(state, client) {
                actions.push(Action::ServerRunsCallTooLate(client));
            }
            let next = self
                .callers_of(client)
                .find(|&caller| state.requests[caller].stage == Stage::Unused);
            actions.extend(next.map(Action::UserAcquires));
            for request in self.ids_of(client) {
                match state.requests[request].stage {
                    Stage::Waiting if budget.cancels > 0 => actions.push(Action::UserCancels(request)),
                    Stage::Holding(turn) | Stage::Idle(turn) => {
                        let may_go_on = self.may_go_on(state, request, turn);
                        if budget.turns > 0 && may_go_on {
                            actions.push(Action::UserTakesTurn(request));
                        }
                        let this = &state.requests[request];
                        // Its age matters only if its client has missed that it is wanted.
                        let is_missed = this.retained && state.history.lost_wanted == turn.first;
                        if this.stage.believes() && may_go_on && is_missed && !this.outlived {
                            actions.push(Action::ClientEndsRetention(request));
                        }
                        if budget.slowness > 0 {
                            actions.push(Action::ClientLosesLease(request));
                        }
                        if budget.renewals > 0 {
                            actions.push(Action::ClientRenews(request));
                        }
                    }
                    _ => {}
                }
            }
            let faults = [
                (
                    budget.disconnects,
                    !this.calls.is_empty() || !this.replies.is_empty(),
                    Action::ConnectionBreaks(client),
                ),
                (
                    budget.lost_subscriptions,
                    this.subscribed,
                    Action::SubscriptionBreaks(client),
                ),
                (
                    budget.replica_subscriptions,
                    this.subscribed && state.server.subscribed[client],
                    Action::SubscriptionMovesToReplica(client),
                ),
                (
                    budget.lost_pushes,
                    !this.pushes.is_empty(),
                    Action::PushIsLost(client),
                ),
                (
                    budget.stray_notes,
                    !state.server.absent[client] && !state.server.queue.is_empty(),
                    Action::NoteIsWritten(client),
                ),
                (
                    budget.slowness,
                    this.clone().unread_grants().any(|grant| !grant.late),
                    Action::ClientReadsLate(client),
                ),
                (budget.crashes, true, Action::ClientCrashes(client)),
                (
                    budget.polls,
                    self.waiting(state, client).next().is_some(),
                    Action::ClientPollsWithoutReason(client),
                ),
            ];
            actions.extend(
                faults
                    .into_iter()
                    .filter(|(left, can, _)| *left > 0 && *can)
                    .map(|(_, _, action)| action),
            );
        }
        let noted = (0..state.clients.len()).filter(|&client| state.server.absent[client]);
        actions.extend(noted.filter(|_| budget.lost_notes).map(Action::NoteIsLost));
        for hold in state
            .server
            .held()
            .filter(|hold| !self.claim_window_ends(state, hold))
        {
            let believed = state.requests[hold.request].stage.is_held();
            if !believed && (budget.slowness > 0 || self.expires_unprovoked(state, hold.request)) {
                actions.push(Action::DeadlinePasses(hold.request));
            }
            if believed && budget.early_timers > 0 && hold.timer == Timer::Runs {
                actions.push(Action::TimerRunsOutEarly(hold.request));
            }
        }
        if budget.forced_releases > 0 && state.server.held().next().is_some() {
            actions.push(Action::OperatorForcesRelease);
        }
        if budget.lost_timers > 0 && !state.server.holds.is_empty() {
            actions.push(Action::TimersAreLost);
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = self.configuration.callers.len();
        let mut requests = vec![Request::default(); self.clients.len()];
        let callers = (0..clients).flat_map(|client| self.callers_of(client));
        for (caller, permits) in callers.zip(self.configuration.permits) {
            requests[caller].permits = *permits;
        }
        vec![State {
            server: Server {
                next_ticket: 1,
                absent: vec![false; clients],
                subscribed: vec![false; clients],
                ..Server::default()
            },
            clients: vec![Client::default(); clients],
            requests,
            budget: self.configuration.budget,
            history: Default::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.due(state, actions);
        self.possible(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::UserAcquires(request) => self.begin(state, request),
            Action::UserCancels(request) => {
                state.budget.cancels -= 1;
                self.cancel(state, request);
            }
            Action::UserReleases(request) => self.end_turn(state, request),
            Action::UserTakesTurn(request) => {
                state.budget.turns -= 1;
                self.next_turn(state, request);
            }
            Action::ClientEndsRetention(request) => self.retention_ends(state, request),
            Action::ClientReadsReply(client) => {
                let reply = state.clients[client].replies.remove(0);
                self.on_reply(state, client, reply);
            }
            Action::ClientReadsPush(client) => {
                let message = state.clients[client].pushes.remove(0);
                self.on_message(state, client, message);
            }
            Action::ClientSubscribes(client) => self.subscribed(state, client),
            Action::ClientPollsByTimer(client) => self.poll(state, client),
            Action::ClientPollsWithoutReason(client) => {
                state.budget.polls -= 1;
                self.poll(state, client);
            }
            Action::ClientRenews(request) => {
                state.budget.renewals -= 1;
                self.renew(state, request);
            }
            Action::ClientLosesLease(request) => {
                state.budget.slowness -= 1;
                self.release(state, request);
            }
            Action::ClientSendsLastWithdrawal(request) => self.send_last_withdrawal(state, request),
            Action::ClientReadsLate(client) => {
                state.budget.slowness -= 1;
                self.delay_reading(state, client);
            }
            Action::ClientCrashes(client) => {
                state.budget.crashes -= 1;
                self.crash(state, client);
            }
            Action::ServerRunsCall(client) => self.serve(state, client),
            Action::ServerRunsCallTooLate(client) => drop(state.clients[client].calls.remove(0)),
            Action::ServerRunsStuckCall(client, index) => self.run_stuck(state, client, index),
            Action::ServerNoticesLostSubscription(client) => state.server.subscribed[client] = false,
            Action::DeadlinePasses(request) => {
                if !self.expires_unprovoked(state, request) {
                    state.budget.slowness -= 1;
                }
                self.expire(state, request);
            }
            Action::TimerRunsOutEarly(request) => {
                state.budget.early_timers -= 1;
                let holds = state.server.holds.iter_mut();
                holds
                    .filter(|hold| hold.request == request)
                    .for_each(|hold| hold.timer = Timer::RanOutEarly);
            }
            Action::TimersAreLost => {
                state.budget.lost_timers -= 1;
                state
                    .server
                    .holds
                    .iter_mut()
                    .for_each(|hold| hold.timer = Timer::Lost);
            }
            Action::NoteIsWritten(client) => {
                state.budget.stray_notes -= 1;
                state.server.absent[client] = true;
                state.clients[client].is_silent = true;
            }
            Action::NoteIsLost(client) => {
                state.server.absent[client] = false;
                // The client may get one more grant that it leaves unclaimed.
                state.clients[client].is_silent = false;
            }
            Action::StuckCallVanishes(client, index) => drop(state.clients[client].stuck.remove(index)),
            Action::ConnectionBreaks(client) => {
                state.budget.disconnects -= 1;
                self.disconnect(state, client);
            }
            Action::SubscriptionBreaks(client) => {
                state.budget.lost_subscriptions -= 1;
                self.lose_subscription(state, client);
            }
            Action::SubscriptionMovesToReplica(client) => {
                state.budget.replica_subscriptions -= 1;
                state.server.subscribed[client] = false;
            }
            Action::PushIsLost(client) => {
                state.budget.lost_pushes -= 1;
                if let Message::Wanted(fence) = state.clients[client].pushes.remove(0) {
                    state.history.lost_wanted = fence;
                }
            }
            Action::OperatorForcesRelease => {
                state.budget.forced_releases -= 1;
                self.force_release(state);
            }
        }
        Some(next)
    }

    fn within_boundary(&self, _: &State) -> bool {
        Instant::now() < self.until
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        let mut properties = properties::all();
        if !self.is_lock() {
            properties.extend(properties::of_permits());
        }
        properties
    }
}
