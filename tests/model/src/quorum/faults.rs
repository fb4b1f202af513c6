//! Faults: servers that forget, clients that die, leases that end, connections that close while their calls
//! still run.

use crate::quorum::configuration::Budget;
use crate::quorum::protocol::Protocol;
use crate::quorum::rules::Rule;
use crate::quorum::server::Reach;
use crate::quorum::state::{
    Attempts, Call, Client, ClientId, Fence, Grant, Reply, SERVERS, ServerId, State, Voter,
};

impl Protocol {
    /// The server runs the next call of a live connection, and answers it.
    pub fn serve(&self, state: &mut State, server: ServerId, client: ClientId, reach: Reach) {
        let call = state.voter_mut(server, client).calls.remove(0);
        let reply = self.run(state, server, client, call, reach);
        let asks = state.client(client).asks();
        let voter = state.voter_mut(server, client);
        if let Some(reply) = reply.filter(|reply| asks && voter.heeds(reply)) {
            voter.replies.push(reply);
        }
    }

    /// Whether the next call of a live connection makes the server push a grant.
    pub fn next_call_pushes(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        let mut after = *state;
        self.serve(&mut after, server, client, Reach::Everybody);
        let pushes = |state: &State| -> usize {
            let voters = state.servers[server].voters.iter();
            voters.map(|voter| voter.pushes.len()).sum()
        };
        pushes(&after) > pushes(state)
    }

    /// Both connections between a client and a server are replaced. Unanswered calls are sent again.
    pub fn break_connection(&self, state: &mut State, server: ServerId, client: ClientId) {
        let voter = state.voter_mut(server, client);
        let (attempts, used) = close_connection(voter);
        if !attempts.is_empty() {
            voter.calls.push(Call::Withdraw {
                attempts,
                floor: 0,
                used,
            });
        }
        self.connect_again(state, server, client);
    }

    /// The client has no connection to the server from now on.
    pub fn cut_off(&self, state: &mut State, server: ServerId, client: ClientId) {
        self.break_connection(state, server, client);
        state.voter_mut(server, client).is_cut_off = true;
        self.forget_order(state);
    }

    fn connect_again(&self, state: &mut State, server: ServerId, client: ClientId) {
        let voter = state.voter(server, client);
        if state.client(client).asks() && voter.vote.is_none() && !voter.is_left {
            self.ask(state, server, client);
        }
        self.count(state, client);
    }

    /// The process of a client dies, and it believes nothing any more.
    pub fn die(&self, state: &mut State, client: ClientId) {
        state.enter(client, Client::Dead);
        for server in 0..SERVERS {
            let voter = state.voter_mut(server, client);
            close_connection(voter);
            voter.forget();
            voter.unanswered = Attempts::NONE;
        }
        self.forget_order(state);
    }

    /// The server loses everything, and votes for nobody until all its votes have run out.
    pub fn restart(&self, state: &mut State, server: ServerId) {
        let more_turns = self.more_turns();
        let this = &mut state.servers[server];
        if this.hold.take().is_some() {
            // The clock, which fences follow, passes those that the vote reserved.
            this.fence += more_turns;
        }
        this.queue = Default::default();
        this.mute = self.has(Rule::MuteAfterForgetting);
        if !self.has(Rule::FencesOutliveMemory) || self.configuration.by_tickets {
            this.fence = 0;
        }
        for client in self.clients() {
            let voter = state.voter_mut(server, client);
            // What was sent to the former process is gone with it. What that one said was read before, or
            // is never read: nothing happens on this server in between.
            *voter = Voter {
                attempt: voter.attempt,
                vote: voter.vote,
                is_cut_off: voter.is_cut_off,
                is_left: voter.is_left,
                ..Voter::default()
            };
            self.connect_again(state, server, client);
        }
        self.forget_order(state);
    }

    /// The deadline of the hold passes on the server. A client that reads the grant from now on can tell.
    pub fn end_lease(&self, state: &mut State, server: ServerId) {
        let this = &mut state.servers[server];
        let Some(hold) = this.hold.take() else {
            return;
        };
        self.use_up(this);
        let voter = state.voter_mut(server, hold.client);
        let replied = voter.replies.iter_mut().filter_map(|reply| match reply {
            Reply::Granted(grant) => Some(grant),
            _ => None,
        });
        let unread = replied.chain(voter.pushes.iter_mut());
        unread
            .filter(|grant| grant.attempt == hold.attempt)
            .for_each(|grant: &mut Grant| grant.late = true);
    }

    /// Whether the order of the queues may be judged: nobody died, forgot, was slow or unreachable.
    pub fn order_counts(&self, state: &State) -> bool {
        self.was_undisturbed(state) && state.budget.unreachable == self.configuration.budget.unreachable
    }

    /// Nobody died, forgot or was slow.
    pub fn was_undisturbed(&self, state: &State) -> bool {
        let had = &self.configuration.budget;
        let disturbances =
            |budget: &Budget| (budget.crashes, budget.restarts, budget.ended_leases, budget.cuts);
        disturbances(&state.budget) == disturbances(had)
    }

    pub fn forget_order(&self, state: &mut State) {
        state.history.came_before = Default::default();
    }
}

/// Returns the requests whose withdrawal was not answered, and the last fence that it tells.
fn close_connection(voter: &mut Voter) -> (Attempts, Option<Fence>) {
    let mut withdrawn = Attempts::NONE;
    let mut last_used = None;
    for call in voter.calls.iter() {
        match call {
            Call::Acquire { attempt, .. } => voter.unanswered = voter.unanswered.and(Attempts::of(*attempt)),
            Call::Withdraw { attempts, used, .. } => {
                withdrawn = withdrawn.and(*attempts);
                last_used = last_used.max(*used);
            }
            Call::Renew { .. } => {}
        }
        let changes = !matches!(call, Call::Renew { floor: 0, .. });
        if changes && !voter.stuck.contains(call) {
            voter.stuck.push(*call);
        }
    }
    voter.stuck.sort_unstable();
    voter.calls = Default::default();
    voter.replies = Default::default();
    voter.pushes = Default::default();
    (withdrawn, last_used)
}
