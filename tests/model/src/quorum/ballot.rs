//! The ballot: what a client makes of its votes, and what it does with the hold that they are.

use crate::quorum::protocol::Protocol;
use crate::quorum::rules::Rule;
use crate::quorum::state::{Attempts, Call, Client, ClientId, Fence, QUORUM, SERVERS, ServerId, State};

impl Protocol {
    /// Asks all servers at once.
    pub fn begin(&self, state: &mut State, client: ClientId) {
        if self.order_counts(state) {
            for other in 0..client {
                let knowing = state.servers.iter().filter(|server| server.knows(other)).count();
                if state.client(other) == Client::Waiting && knowing >= QUORUM {
                    state.history.came_before[usize::from(client)] |= 1 << other;
                }
            }
        }
        state.clients[usize::from(client)] = Client::Waiting;
        for server in 0..SERVERS {
            state.voter_mut(server, client).attempt = 1;
            self.ask(state, server, client);
        }
    }

    /// A vote or its fence is new. The ballot is decided when a majority of votes carry one fence. If they
    /// carry different ones, those below the largest are raised.
    ///
    /// A holder counts whatever votes it has: those that decided its ballot are enough to make all later
    /// fences larger.
    pub fn count(&self, state: &mut State, client: ClientId) {
        let votes: Vec<Fence> = state.votes(client).collect();
        if state.client(client) != Client::Waiting || votes.len() < QUORUM {
            return;
        }
        let largest = votes.iter().copied().max().unwrap_or(0);
        let carried = |fence: &Fence| votes.iter().filter(|vote| *vote == fence).count();
        let agreed = if self.has(Rule::OneFence) {
            votes.iter().copied().find(|fence| carried(fence) >= QUORUM)
        } else {
            Some(largest)
        };
        match agreed {
            Some(fence) => self.hold(state, client, fence),
            None => self.raise(state, client, largest),
        }
    }

    /// Raises the votes with a smaller fence, one call at a time for each.
    fn raise(&self, state: &mut State, client: ClientId, floor: Fence) {
        for server in 0..SERVERS {
            let voter = state.voter(server, client);
            if voter.vote.is_some_and(|fence| fence < floor) && !voter.is_renewing() {
                self.renew(state, server, client, floor);
            }
        }
    }

    /// From now on the client believes that it holds the lock.
    fn hold(&self, state: &mut State, client: ClientId, fence: Fence) {
        let came_before = state.history.came_before[usize::from(client)];
        state.history.overtaken |= came_before != 0;
        state.history.note_fence(fence);
        state.enter(
            client,
            Client::Holding {
                first: fence,
                fence,
                claimed: false,
            },
        );
    }

    /// Whether the client holds the lock, with a fence for another turn.
    pub fn has_turns_left(&self, state: &State, client: ClientId) -> bool {
        match state.client(client) {
            Client::Holding { first, fence, .. } => fence < first + self.more_turns(),
            _ => false,
        }
    }

    /// The holder passes its turn on inside its process. The servers hear nothing of it.
    pub fn pass_turn(&self, state: &mut State, client: ClientId) {
        if let Client::Holding { fence, .. } = &mut state.clients[usize::from(client)] {
            *fence += 1;
            state.history.note_fence(*fence);
        }
    }

    /// The ballot is not decided, and has too few votes.
    pub fn is_short(state: &State, client: ClientId) -> bool {
        state.client(client) == Client::Waiting && state.votes(client).count() < QUORUM
    }

    /// Whether a look at this vote would find that it should be yielded. Looks that find nothing are left
    /// out.
    pub fn look_has_news(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        let voter = state.voter(server, client);
        Protocol::is_short(state, client)
            && voter.vote.is_some()
            && !voter.is_renewing()
            && !state.servers[server].mute
            && !voter.is_cut_off
            && self.has(Rule::YieldToEarlier)
            && self.somebody_is_earlier(state, server, client, voter.attempt)
    }

    /// Renews a vote, to hear whether somebody is earlier.
    pub fn look(&self, state: &mut State, server: ServerId, client: ClientId) {
        self.renew(state, server, client, 0);
    }

    fn renew(&self, state: &mut State, server: ServerId, client: ClientId, floor: Fence) {
        let attempt = state.voter(server, client).attempt;
        self.send(state, server, client, Call::Renew { attempt, floor });
    }

    /// Handles the reply to the renewal of a vote that counted until now.
    pub fn on_renewed(&self, state: &mut State, server: ServerId, client: ClientId, earlier: bool) {
        if state.voter(server, client).vote.is_none() {
            self.lose_vote(state, server, client);
            return;
        }
        let may_yield = Protocol::is_short(state, client)
            || state.client(client).believes() && !self.has(Rule::HolderYieldsNothing);
        if earlier && may_yield && self.has(Rule::YieldToEarlier) {
            let vote = state.voter(server, client).vote;
            self.begin_again(state, server, client, 0);
            if !self.has(Rule::UncountBeforeYield) {
                state.voter_mut(server, client).vote = vote;
            }
        }
        self.count(state, client);
    }

    /// Whether a request at this server is only in the way of others, because the servers that the client
    /// reaches are no majority.
    fn is_in_the_way(state: &State, server: ServerId, client: ClientId) -> bool {
        !state.reaches_majority(client) && state.reaches(server, client)
    }

    pub fn leaves(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        self.has(Rule::LeaveWithoutMajority)
            && state.client(client) == Client::Waiting
            && !state.voter(server, client).is_left
            && Protocol::is_in_the_way(state, server, client)
    }

    /// Withdraws everything from a server, and asks it again only when a majority is reached.
    pub fn leave(&self, state: &mut State, server: ServerId, client: ClientId) {
        let told = self.told(0);
        let voter = state.voter_mut(server, client);
        let withdrawal = Call::Withdraw {
            attempts: std::mem::take(&mut voter.leaving).and(Attempts::of(voter.attempt)),
            floor: 0,
            used: voter.leaving_used.take().max(told),
        };
        voter.attempt += 1;
        voter.vote = None;
        voter.is_left = true;
        self.send(state, server, client, withdrawal);
    }

    /// Whether a server that was left is asked again now.
    pub fn comes_back(&self, state: &State, server: ServerId, client: ClientId) -> bool {
        self.has(Rule::ComeBackOnceReached)
            && state.client(client) == Client::Waiting
            && state.voter(server, client).is_left
            && !Protocol::is_in_the_way(state, server, client)
    }

    /// A vote counts no more: its lease is nearly over, or the server does not know it. A hold with too few
    /// votes is lost; otherwise the client asks that server again. Later turns of the hold may use all fences
    /// that the vote reserved.
    pub fn lose_vote(&self, state: &mut State, server: ServerId, client: ClientId) {
        let vote = state.voter_mut(server, client).vote.take();
        let believes = state.client(client).believes();
        if believes && state.votes(client).count() < QUORUM {
            self.release(state, client);
        } else {
            let may_be_used = vote.filter(|_| believes && self.has(Rule::LostVoteUsesAll));
            let used = may_be_used.map_or(0, |fence| fence + self.more_turns());
            self.begin_again(state, server, client, used);
        }
    }

    /// The first renewal of a holder. With it the holder asks again for the votes that it has not got.
    pub fn claim(&self, state: &mut State, client: ClientId) {
        if let Client::Holding { claimed, .. } = &mut state.clients[usize::from(client)] {
            *claimed = true;
            for server in 0..SERVERS {
                if state.voter(server, client).vote.is_none() {
                    self.ask(state, server, client);
                }
            }
        }
    }

    pub fn release(&self, state: &mut State, client: ClientId) {
        if let Client::Holding { fence, .. } = state.client(client) {
            self.let_go(state, client, Some(fence));
        }
    }

    pub fn cancel(&self, state: &mut State, client: ClientId) {
        if self.has(Rule::WithdrawAfterCancel) {
            self.let_go(state, client, None);
        } else {
            self.finish(state, client);
        }
    }

    /// Withdraws everything from all servers, and tells them the last fence that was used.
    pub fn let_go(&self, state: &mut State, client: ClientId, used: Option<Fence>) {
        for server in 0..SERVERS {
            if state.voter(server, client).vote.is_some() || self.has(Rule::ReleaseEverywhere) {
                self.withdraw_all(state, server, client, used);
            }
        }
        self.finish(state, client);
    }

    fn finish(&self, state: &mut State, client: ClientId) {
        state.enter(client, Client::Done);
        for server in 0..SERVERS {
            state.voter_mut(server, client).forget();
        }
    }
}
