//! The state machine: what can happen next, and what follows from it.

use std::time::Instant;

use stateright::{Model, Property};

use crate::quorum::configuration::Configuration;
use crate::quorum::properties;
use crate::quorum::rules::Rule;
use crate::quorum::server::Reach;
use crate::quorum::state::{CLIENTS, Client, ClientId, Fence, SERVERS, Server, ServerId, State};

/// A configuration of the protocol that can be explored.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub configuration: Configuration,
    /// No new states are explored after this time.
    until: Instant,
}

/// The name of each action begins with its actor. Servers are numbered by the order in which the state before
/// the action has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    UserAcquires(ClientId),
    UserCancels(ClientId),
    UserReleases(ClientId),
    UserPassesTurn(ClientId),
    ClientReadsReply(ClientId, ServerId),
    ClientReadsPush(ClientId, ServerId),
    /// The timer of its waitlist. It only acts when the reply would change something.
    ClientPolls(ClientId, ServerId),
    /// A look at a vote of a ballot that is short. It is only taken when it would find something.
    ClientLooks(ClientId, ServerId),
    ClientLooksWithoutReason(ClientId, ServerId),
    ClientClaims(ClientId),
    ClientSendsLastWithdrawal(ClientId, ServerId),
    ClientSeesVoteRunOut(ClientId, ServerId),
    ClientDies(ClientId),
    ServerRunsCall(ServerId, ClientId),
    ServerRunsCallAndCannotReachTheFirst(ServerId, ClientId),
    ServerRunsStuckCall(ServerId, ClientId, usize),
    StuckCallVanishes(ServerId, ClientId, usize),
    LeaseEnds(ServerId),
    ServerRestartsEmpty(ServerId),
    ServerVotesAgain(ServerId),
    ConnectionBreaks(ClientId, ServerId),
    ClientIsCutOff(ClientId, ServerId),
    ClientIsConnectedAgain(ClientId, ServerId),
    ClientLeaves(ClientId, ServerId),
    ClientComesBack(ClientId, ServerId),
    PushIsLost(ClientId, ServerId),
}

impl Protocol {
    pub fn until(configuration: Configuration, until: Instant) -> Protocol {
        Protocol { configuration, until }
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.configuration.has(rule)
    }

    pub fn clients(&self) -> impl Iterator<Item = ClientId> + use<> {
        0..self.configuration.clients
    }

    /// How many fences each request reserves beyond its first one. One is enough: a server that does not know
    /// of it grants it again.
    pub fn more_turns(&self) -> Fence {
        u8::from(self.configuration.budget.turns > 0)
    }

    fn links(&self) -> impl Iterator<Item = (ServerId, ClientId)> + use<> {
        let clients = self.configuration.clients;
        (0..SERVERS).flat_map(move |server| (0..clients).map(move |client| (server, client)))
    }

    /// What happens sooner or later without any fault, and without a user. The ends of leases are separate,
    /// because they take so long.
    fn due(&self, state: &State, actions: &mut Vec<Action>) {
        for (server, client) in self.links() {
            let voter = state.voter(server, client);
            let mute = state.servers[server].mute;
            if !voter.calls.is_empty() && !mute && !voter.is_cut_off {
                actions.push(Action::ServerRunsCall(server, client));
            }
            for index in 0..voter.stuck.len() {
                if !mute {
                    actions.push(Action::ServerRunsStuckCall(server, client, index));
                }
                actions.push(Action::StuckCallVanishes(server, client, index));
            }
            if !voter.replies.is_empty() {
                actions.push(Action::ClientReadsReply(client, server));
            }
            if !voter.pushes.is_empty() {
                actions.push(Action::ClientReadsPush(client, server));
            }
            if self.has(Rule::Timer) && self.poll_has_news(state, server, client) {
                actions.push(Action::ClientPolls(client, server));
            }
            if self.look_has_news(state, server, client) {
                actions.push(Action::ClientLooks(client, server));
            }
            if self.leaves(state, server, client) {
                actions.push(Action::ClientLeaves(client, server));
            }
            if self.comes_back(state, server, client) {
                actions.push(Action::ClientComesBack(client, server));
            }
            if !self.left_unanswered(state, server, client).is_empty() {
                actions.push(Action::ClientSendsLastWithdrawal(client, server));
            }
        }
    }

    pub fn something_is_due(&self, state: &State) -> bool {
        let mut due = Vec::new();
        self.due(state, &mut due);
        !due.is_empty()
    }

    /// Nothing is due, and no user holds the lock.
    pub fn is_quiet(&self, state: &State) -> bool {
        let held = state.clients.iter().any(|client| client.believes());
        !held && !self.something_is_due(state)
    }

    /// A lease is going to end that nobody renews.
    pub fn awaits_lease(&self, state: &State) -> bool {
        (0..SERVERS).any(|server| {
            self.ends_unprovoked(state, server)
                || self.clients().any(|client| self.runs_out(state, server, client))
        })
    }

    /// A vote runs out, since it cannot be renewed.
    fn runs_out(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        let voter = state.voter(server, client);
        voter.vote.is_some() && (state.servers[server].mute || voter.is_cut_off)
    }

    /// The hold of a server ends that is not renewed, and nothing is under way that could change that.
    fn ends_unprovoked(&self, state: &State, server: ServerId) -> bool {
        state.servers[server]
            .hold
            .is_some_and(|hold| match state.client(hold.client) {
                _ if state.voter(server, hold.client).is_cut_off => true,
                Client::Dead => true,
                Client::Done => {
                    state.voter(server, hold.client).is_idle()
                        && self.left_unanswered(state, server, hold.client).is_empty()
                }
                _ => false,
            })
    }

    /// The lease of a hold may end, because its client has stopped to renew it, or is too slow.
    fn lease_may_end(&self, state: &State, server: ServerId) -> bool {
        let Some(hold) = state.servers[server].hold else {
            return false;
        };
        let voter = state.voter(server, hold.client);
        let counts = voter.attempt == hold.attempt && voter.vote.is_some() && self.has(Rule::StopAtDeadline);
        !counts && (state.budget.ended_leases > 0 || self.ends_unprovoked(state, server))
    }

    /// What else may happen, as often as the budget allows.
    fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        for client in self.clients() {
            let stage = state.client(client);
            let unclaimed = matches!(stage, Client::Holding { claimed: false, .. });
            let runs = stage.asks() || stage == Client::Done && has_calls(state, client);
            add(
                actions,
                [
                    (stage == Client::Absent, Action::UserAcquires(client)),
                    (stage.believes(), Action::UserReleases(client)),
                    (
                        budget.cancels > 0 && stage == Client::Waiting,
                        Action::UserCancels(client),
                    ),
                    (
                        budget.turns > 0 && self.has_turns_left(state, client),
                        Action::UserPassesTurn(client),
                    ),
                    (budget.claims > 0 && unclaimed, Action::ClientClaims(client)),
                    (budget.crashes > 0 && runs, Action::ClientDies(client)),
                ],
            );
        }
        for (server, client) in self.links() {
            let voter = state.voter(server, client);
            let mute = state.servers[server].mute;
            let counts = voter.vote.is_some();
            let is_cut_off = voter.is_cut_off;
            let is_called = !voter.calls.is_empty() && !is_cut_off;
            let answers = is_called || !voter.replies.is_empty();
            let pushes = || self.next_call_pushes(state, server, client);
            add(
                actions,
                [
                    (
                        budget.looks > 0 && counts && !voter.is_renewing() && !is_cut_off,
                        Action::ClientLooksWithoutReason(client, server),
                    ),
                    (
                        counts && (mute || is_cut_off || budget.ended_leases > 0),
                        Action::ClientSeesVoteRunOut(client, server),
                    ),
                    (
                        budget.unreachable > 0 && is_called && !mute && pushes(),
                        Action::ServerRunsCallAndCannotReachTheFirst(server, client),
                    ),
                    (
                        budget.disconnects > 0 && answers,
                        Action::ConnectionBreaks(client, server),
                    ),
                    (
                        budget.cuts > 0 && state.client(client).asks() && !is_cut_off,
                        Action::ClientIsCutOff(client, server),
                    ),
                    (is_cut_off, Action::ClientIsConnectedAgain(client, server)),
                    (
                        budget.lost_pushes > 0 && !voter.pushes.is_empty(),
                        Action::PushIsLost(client, server),
                    ),
                ],
            );
        }
        for (server, this) in state.servers.iter().enumerate() {
            let counts = this.voters.iter().any(|voter| voter.vote.is_some());
            add(
                actions,
                [
                    (self.lease_may_end(state, server), Action::LeaseEnds(server)),
                    (
                        budget.restarts > 0 && !this.mute,
                        Action::ServerRestartsEmpty(server),
                    ),
                    (this.mute && !counts, Action::ServerVotesAgain(server)),
                ],
            );
        }
    }
}

fn has_calls(state: &State, client: ClientId) -> bool {
    (0..SERVERS).any(|server| !state.voter(server, client).calls.is_empty())
}

fn add<const N: usize>(actions: &mut Vec<Action>, possible: [(bool, Action); N]) {
    let can_happen = possible.into_iter().filter(|(can, _)| *can);
    actions.extend(can_happen.map(|(_, action)| action));
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let server = |fence| Server {
            fence,
            ..Server::default()
        };
        vec![State {
            servers: self.configuration.fences.map(server),
            clients: [Client::default(); CLIENTS],
            budget: self.configuration.budget,
            history: Default::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.due(state, actions);
        self.possible(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        let state = &mut next;
        match action {
            Action::UserAcquires(client) => self.begin(state, client),
            Action::UserCancels(client) => {
                state.budget.cancels -= 1;
                self.cancel(state, client);
            }
            Action::UserReleases(client) => self.release(state, client),
            Action::UserPassesTurn(client) => {
                state.budget.turns -= 1;
                self.pass_turn(state, client);
            }
            Action::ClientReadsReply(client, server) => {
                let reply = state.voter_mut(server, client).replies.remove(0);
                self.on_reply(state, server, client, reply);
            }
            Action::ClientReadsPush(client, server) => {
                let push = state.voter_mut(server, client).pushes.remove(0);
                self.on_grant(state, server, client, push);
            }
            Action::ClientPolls(client, server) => self.ask(state, server, client),
            Action::ClientLooks(client, server) => self.look(state, server, client),
            Action::ClientLooksWithoutReason(client, server) => {
                state.budget.looks -= 1;
                self.look(state, server, client);
            }
            Action::ClientClaims(client) => {
                state.budget.claims -= 1;
                self.claim(state, client);
            }
            Action::ClientSendsLastWithdrawal(client, server) => {
                self.send_last_withdrawal(state, server, client);
            }
            Action::ClientSeesVoteRunOut(client, server) => {
                if !self.runs_out(state, server, client) {
                    state.budget.ended_leases -= 1;
                    self.forget_order(state);
                }
                self.lose_vote(state, server, client);
            }
            Action::ClientDies(client) => {
                state.budget.crashes -= 1;
                self.die(state, client);
            }
            Action::ServerRunsCall(server, client) => self.serve(state, server, client, Reach::Everybody),
            Action::ServerRunsCallAndCannotReachTheFirst(server, client) => {
                state.budget.unreachable -= 1;
                self.forget_order(state);
                self.serve(state, server, client, Reach::NotTheFirst);
            }
            Action::ServerRunsStuckCall(server, client, index) => {
                let call = state.voter_mut(server, client).stuck.remove(index);
                self.run(state, server, client, call, Reach::Everybody);
            }
            Action::StuckCallVanishes(server, client, index) => {
                state.voter_mut(server, client).stuck.remove(index);
            }
            Action::LeaseEnds(server) => {
                if !self.ends_unprovoked(state, server) {
                    state.budget.ended_leases -= 1;
                    self.forget_order(state);
                }
                self.end_lease(state, server);
            }
            Action::ServerRestartsEmpty(server) => {
                state.budget.restarts -= 1;
                self.restart(state, server);
            }
            Action::ServerVotesAgain(server) => state.servers[server].mute = false,
            Action::ConnectionBreaks(client, server) => {
                state.budget.disconnects -= 1;
                self.break_connection(state, server, client);
            }
            Action::ClientIsCutOff(client, server) => {
                state.budget.cuts -= 1;
                self.cut_off(state, server, client);
            }
            Action::ClientIsConnectedAgain(client, server) => {
                state.voter_mut(server, client).is_cut_off = false;
            }
            Action::ClientLeaves(client, server) => self.leave(state, server, client),
            Action::ClientComesBack(client, server) => self.ask(state, server, client),
            Action::PushIsLost(client, server) => {
                state.budget.lost_pushes -= 1;
                state.voter_mut(server, client).pushes.remove(0);
            }
        }
        state.servers.sort_unstable();
        Some(next)
    }

    fn within_boundary(&self, _: &State) -> bool {
        Instant::now() < self.until
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        properties::all()
    }
}
