//! The scripts, as in `lua/`, with what a quorum adds: floors, raised fences, tickets that are taken as they
//! are, and the word `earlier` in the reply to a renewal. Each runs as a whole.
//!
//! Notes of absence and subscriptions are the other model's. Here a push arrives, or is lost, or its receiver
//! is removed as unreachable.

use crate::quorum::protocol::Protocol;
use crate::quorum::rules::Rule;
use crate::quorum::state::{
    Attempt, Attempts, Call, ClientId, Fence, Grant, Hold, Place, Reply, Server, ServerId, State, Ticket,
};

/// What the server finds when it hands the lock over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Everybody,
    /// The first that would be pushed a grant is unreachable.
    NotTheFirst,
}

impl Protocol {
    /// Runs a call. Returns its reply, and `None` for a withdrawal: on a live connection its effect is known.
    pub fn run(
        &self,
        state: &mut State,
        server: ServerId,
        client: ClientId,
        call: Call,
        reach: Reach,
    ) -> Option<Reply> {
        match call {
            Call::Acquire { attempt, ticket } => {
                Some(self.run_acquire(state, server, client, attempt, ticket, reach))
            }
            Call::Renew { attempt, floor } => {
                let earlier = self.somebody_is_earlier(state, server, client, attempt);
                Some(self.run_renew(state, server, client, attempt, floor, earlier))
            }
            Call::Withdraw {
                attempts,
                floor,
                used,
            } => {
                self.run_withdraw(&mut state.servers[server], client, attempts, used);
                self.hand_over(state, server, None, floor, reach);
                None
            }
        }
    }

    /// `lua/acquire.lua`.
    fn run_acquire(
        &self,
        state: &mut State,
        server: ServerId,
        client: ClientId,
        attempt: Attempt,
        ticket: Ticket,
        reach: Reach,
    ) -> Reply {
        let this = &mut state.servers[server];
        if !this.is_held_by(client, attempt) {
            let place = this
                .queue
                .iter_mut()
                .find(|place| (place.client, place.attempt) == (client, attempt));
            match place {
                Some(place) => place.ticket = place.ticket.min(ticket),
                None => this.queue.push(Place {
                    ticket,
                    client,
                    attempt,
                }),
            }
            if self.has(Rule::OneTicket) {
                this.queue.sort_unstable();
            }
            self.hand_over(state, server, Some((client, attempt)), 0, reach);
        }
        let this = &state.servers[server];
        if this.is_held_by(client, attempt) {
            Reply::Granted(Grant {
                attempt,
                fence: this.fence,
                late: false,
            })
        } else {
            Reply::Queued(attempt)
        }
    }

    /// `lua/renew.lua`.
    fn run_renew(
        &self,
        state: &mut State,
        server: ServerId,
        client: ClientId,
        attempt: Attempt,
        floor: Fence,
        earlier: bool,
    ) -> Reply {
        let this = &mut state.servers[server];
        let fence = this.is_held_by(client, attempt).then(|| {
            this.fence = this.fence.max(floor);
            this.fence
        });
        Reply::Renewed {
            attempt,
            fence,
            earlier,
        }
    }

    /// Whether the first in the queue comes before this request.
    pub fn somebody_is_earlier(
        &self,
        state: &State,
        server: ServerId,
        client: ClientId,
        attempt: Attempt,
    ) -> bool {
        let place = Place {
            ticket: Protocol::usual_ticket(client),
            client,
            attempt,
        };
        let first = state.servers[server].queue.first();
        self.has(Rule::OneTicket) && first.is_some_and(|first| *first < place)
    }

    /// `lua/withdraw.lua`.
    fn run_withdraw(&self, this: &mut Server, client: ClientId, attempts: Attempts, used: Option<Fence>) {
        this.queue
            .retain(|place| place.client != client || !attempts.has(place.attempt));
        let held = (this.hold).take_if(|hold| hold.client == client && attempts.has(hold.attempt));
        if held.is_some() {
            match used {
                Some(used) => this.fence = this.fence.max(used),
                None => self.use_up(this),
            }
        }
    }

    /// A hold has ended without a word of the last fence that it used.
    pub fn use_up(&self, this: &mut Server) {
        if self.has(Rule::ReserveFences) {
            this.fence += self.more_turns();
        }
    }

    /// `lua/lib/next_holder.lua`: gives a free lock to the first reachable request in the queue.
    fn hand_over(
        &self,
        state: &mut State,
        server: ServerId,
        caller: Option<(ClientId, Attempt)>,
        floor: Fence,
        mut reach: Reach,
    ) {
        while state.servers[server].hold.is_none() && !state.servers[server].queue.is_empty() {
            let this = &mut state.servers[server];
            let Place {
                client,
                attempt,
                ticket,
            } = this.queue.remove(0);
            let is_pushed = caller != Some((client, attempt));
            if is_pushed && this.voters[usize::from(client)].is_cut_off {
                continue;
            }
            if is_pushed && reach == Reach::NotTheFirst {
                reach = Reach::Everybody;
                continue;
            }
            let least = if self.configuration.by_tickets {
                ticket
            } else {
                floor
            };
            this.fence = least.max(this.fence + 1);
            this.hold = Some(Hold { client, attempt });
            let fence = this.fence;
            if is_pushed && state.client(client).asks() {
                let pushes = &mut state.voter_mut(server, client).pushes;
                pushes.push(Grant {
                    attempt,
                    fence,
                    late: false,
                });
            }
        }
    }
}
