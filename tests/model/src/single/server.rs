//! The scripts, as in `lua/`. Each runs as a whole. Left out: re-entrance, tries, and the bound of a
//! hand-over. A lock is a semaphore of one permit, without timers.

use crate::single::protocol::Protocol;
use crate::single::rules::Rule;
use crate::single::state::{
    Acquire, Answer, Client, ClientId, Fence, Grant, Hold, Message, Permits, RequestId, Server, State,
    Ticket, Timer, Turn,
};

impl Server {
    pub fn is_queued(&self, request: RequestId) -> bool {
        self.queue.iter().any(|&(_, queued)| queued == request)
    }

    /// The holds whose deadlines have not passed.
    pub fn held(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(|hold| !hold.over)
    }

    pub fn is_held_by(&self, request: RequestId) -> bool {
        self.held().any(|hold| hold.request == request)
    }

    /// How many permits were granted over the first request in the queue, unless this one is the first.
    pub fn granted_over_first(&self, request: RequestId) -> u8 {
        let first = self.queue.first().map(|&(_, first)| first);
        let overtaken = self
            .overtaken
            .filter(|&(last, _)| Some(last) == first && last != request);
        overtaken.map_or(0, |(_, permits)| permits)
    }

    /// Whether some timers are still to be made again.
    pub fn is_incomplete(&self) -> bool {
        self.holds.iter().any(|hold| hold.timer == Timer::Lost)
    }

    fn grant_of(&self, request: RequestId) -> Option<Grant> {
        let hold = self.held().find(|hold| hold.request == request)?;
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
        let Acquire { request, ticket, .. } = *call;
        let client = self.client_of(request);
        self.drop_ended(state, Some(client));
        let known = self.has(Rule::RequestIds);
        if let Some(grant) = state.server.grant_of(request).filter(|_| known) {
            let was_queued = false;
            // Other holds may have been over.
            self.hand_over(state, None);
            return self.granted(state, grant, was_queued);
        }
        let found_nobody = state.server.queue.is_empty();

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
        state.server.absent[client] &= !self.has(Rule::CallRemovesNote);
        state.clients[client].is_silent = false;
        let is_granted = self.hand_over(state, Some(request));
        if let Some(grant) = state.server.grant_of(request).filter(|_| is_granted) {
            if !state
                .server
                .queue
                .iter()
                .any(|&(queued, _)| queued >= next_ticket)
            {
                // No client was told of this ticket.
                state.server.next_ticket = next_ticket;
            }
            return self.granted(state, grant, !enqueued);
        }
        if found_nobody {
            // Those who come later find this request in the queue, and tell nobody.
            self.tell_wanted(state);
        }
        let server = &state.server;
        let place = server.queue.iter().find(|&&(_, queued)| queued == request);
        let own_grant = server
            .held()
            .find(|hold| self.client_of(hold.request) == client && hold.request != request)
            .and_then(|hold| server.grant_of(hold.request));
        Answer::Queued {
            ticket: place.map_or(0, |&(ticket, _)| ticket),
            enqueued,
            own_grant: own_grant.filter(|_| self.has(Rule::TellOwnGrant)),
        }
    }

    fn granted(&self, state: &State, grant: Grant, was_queued: bool) -> Answer {
        Answer::Granted {
            grant,
            was_queued,
            alone: self.retains() && state.server.queue.is_empty(),
        }
    }

    /// Publishes to the client of the holder that its hold is wanted, whether or not the client is seen to
    /// listen.
    fn tell_wanted(&self, state: &mut State) {
        if let Some(hold) = state.server.holds.first().filter(|_| self.retains()) {
            let client = &mut state.clients[self.client_of(hold.request)];
            if client.subscribed {
                client.pushes.push(Message::Wanted(hold.fence));
            }
        }
    }

    /// `lua/release.lua` for an operator, who takes the lock away from its holder.
    pub fn force_release(&self, state: &mut State) {
        self.drop_ended(state, None);
        if self.has(Rule::ForcedTellsHolder) {
            self.tell_wanted(state);
        }
        for hold in std::mem::take(&mut state.server.holds) {
            self.use_up(state, &hold);
            state.server.used -= hold.weight;
            state.requests[hold.request].forced = hold.fence;
        }
        self.hand_over(state, None);
    }

    /// `lua/release.lua` for the grant under this fence; without a fence, `lua/withdraw.lua`. Returns whether
    /// there was such a hold.
    pub fn run_release(&self, state: &mut State, request: RequestId, turn: Option<Turn>) -> bool {
        let by_id = turn.is_none() || !self.has(Rule::ReleaseNamesFence);
        let fence_counts = |hold: &Hold| turn.is_some_and(|turn| turn.first == hold.fence);
        let counts = |hold: &Hold| hold.request == request && (by_id || fence_counts(hold));
        if let ([only], Some(_), true) = (&mut state.server.holds[..], turn, self.is_lock()) {
            // Nobody has had the lock since.
            only.over &= !counts(only);
        }
        self.drop_ended(state, Some(self.client_of(request)));
        let place = state.server.holds.iter().position(counts);
        if let Some(place) = place {
            let hold = state.server.holds.remove(place);
            state.server.used -= hold.weight;
            match turn {
                None => self.use_up(state, &hold),
                Some(turn) if self.has(Rule::TellLastFence) => {
                    state.server.fence = state.server.fence.max(turn.fence)
                }
                Some(_) => {}
            }
        }
        if turn.is_none() {
            state.server.queue.retain(|&(_, queued)| queued != request);
        }
        self.hand_over(state, None);
        place.is_some()
    }

    /// `lua/renew.lua`.
    pub fn run_renew(&self, state: &mut State, request: RequestId, fence: Fence) {
        let Server { holds, used, .. } = &mut state.server;
        let mut held = holds.iter_mut().filter(|hold| !hold.over);
        if let Some(hold) = held.find(|hold| hold.request == request && hold.fence == fence) {
            // Its timer is early from now on: this script writes nothing but the hold.
            hold.pushed = false;
        } else if holds.iter().all(|hold| hold.over) && !self.has(Rule::RenewNeverCreates) {
            *used = state.requests[request].permits.weight;
            *holds = vec![Hold {
                request,
                fence,
                weight: *used,
                pushed: false,
                over: false,
                timer: Timer::Runs,
            }];
        }
    }

    /// A hold has ended without a word of the last fence that it used.
    fn use_up(&self, state: &mut State, hold: &Hold) {
        if self.has(Rule::ReserveFences) {
            state.server.fence = state.server.fence.max(hold.fence + self.more_turns());
        }
    }

    /// Drops the holds whose deadlines have passed. The client of one that was never claimed is dead or
    /// asleep, and is noted absent, unless it makes this call. Afterwards no timer is early. Of the lost
    /// ones, one is made again: the scripts make a part of them.
    fn drop_ended(&self, state: &mut State, caller: Option<ClientId>) {
        let mut makes_one = self.has(Rule::RebuildTimers);
        let holds = std::mem::take(&mut state.server.holds);
        for mut hold in holds {
            if hold.timer == Timer::Lost && std::mem::take(&mut makes_one) {
                hold.timer = Timer::Runs;
            }
            let is_over = match hold.timer {
                Timer::Runs => hold.over,
                Timer::RanOutEarly => hold.over || !self.has(Rule::TimersAreEarly),
                Timer::Lost => false,
            };
            if !is_over {
                if hold.timer == Timer::RanOutEarly {
                    hold.timer = Timer::Runs;
                }
                state.server.holds.push(hold);
                continue;
            }
            self.use_up(state, &hold);
            state.server.used -= hold.weight;
            let client = self.client_of(hold.request);
            if caller != Some(client) && hold.pushed {
                state.clients[client].is_silent = true;
                state.server.absent[client] |= self.has(Rule::NoteUnclaimed);
            }
        }
    }

    /// `lua/lib/next_holder.lua` and `lua/lib/permits_hand_over.lua`: gives the permits that are free to the
    /// first reachable requests in the queue, or the free lock to the first one. Returns whether the caller's
    /// is among them.
    fn hand_over(&self, state: &mut State, caller: Option<RequestId>) -> bool {
        let mut passed_over = Vec::new();
        let mut told = Vec::new();
        let mut is_granted = false;
        let mut fence = state.server.fence + 1;
        // How many requests at the head of the queue stay there.
        let mut stay = 0;
        while let Some(&place) = state.server.queue.get(stay) {
            let request = place.1;
            let client = self.client_of(request);
            let Permits { weight, capacity } = state.requests[request].permits;
            let used = state.server.used;
            let is_full = used >= capacity;
            let mine = caller == Some(request);
            let reachable = mine || self.is_reachable(state, request);
            // A script does not look as far, and guesses from what it has read.
            let steps = is_full
                && self.has(Rule::LargerCapacityOvertakes)
                && (state.server.queue.iter())
                    .any(|&(_, other)| state.requests[other].permits.capacity > used);
            let granted_over = state.server.granted_over_first(request);
            let overtakes_too_often = granted_over + weight > capacity && self.has(Rule::BoundOvertaking);
            let waits = used + weight > capacity || overtakes_too_often;
            // Of several full requests, only the first must be reachable.
            let stays = match is_full {
                true => reachable || !steps || stay > 0,
                false => waits && (reachable || !self.has(Rule::PassOverDeadHead)),
            };
            if stays {
                if !steps && self.has(Rule::HeadBlocks) {
                    break;
                }
                stay += 1;
                continue;
            }
            state.server.queue.remove(stay);
            let grant = Grant {
                request,
                fence,
                pushed: true,
                late: false,
            };
            if reachable {
                if let Some(&(_, first)) = state.server.queue.first().filter(|_| stay > 0) {
                    state.server.overtaken = Some((first, granted_over + weight));
                }
                state.server.fence = fence;
                state.server.used += weight;
                state.server.holds.push(Hold {
                    request,
                    fence,
                    weight,
                    pushed: !mine,
                    over: false,
                    timer: Timer::Runs,
                });
                if mine {
                    is_granted = true;
                } else {
                    state.history.granted_to_silent |= state.clients[client].is_silent;
                    tell(state, client, grant, &mut told);
                }
                self.note_overtaken(state, place, used);
                if !self.has(Rule::GrantAllThatFit) {
                    break;
                }
                if self.has(Rule::OneFenceEach) {
                    fence += 1;
                }
                continue;
            }
            if !state.server.absent[client]
                && state.clients[client].subscribed
                && !self.has(Rule::CountBeforePublishing)
            {
                // The client receives the message all the same, at a replica.
                tell(state, client, grant, &mut told);
                if self.has(Rule::OwnFences) {
                    state.server.fence = fence;
                    fence += 1;
                }
            }
            state.requests[request].missed_turn = true;
            let is_silent = state.clients[client].is_silent;
            state.history.passed_over |= self.counts_as_listener(state, client) && !is_silent;
            if !self.has(Rule::RemoveUnreachable) {
                passed_over.push(place);
            }
            if !self.has(Rule::HandOverGoesOn) {
                break;
            }
        }
        state.server.queue.extend(passed_over);
        state.server.queue.sort_unstable();
        if state.server.queue.is_empty() {
            // Nobody is left whom a note would pass over.
            state.server.absent.fill(false);
        }
        is_granted
    }
}

/// Publishes a grant. The clients that this script has told get no second message, but a longer one.
fn tell(state: &mut State, client: ClientId, grant: Grant, told: &mut Vec<ClientId>) {
    let Client {
        subscribed, pushes, ..
    } = &mut state.clients[client];
    match pushes.last_mut().filter(|_| told.contains(&client)) {
        _ if !*subscribed => {}
        Some(Message::Grants(grants)) => grants.push(grant),
        _ => {
            pushes.push(Message::Grants(vec![grant]));
            told.push(client);
        }
    }
}
