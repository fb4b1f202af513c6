//! Gives permits to the requests in the queue.

use super::OpenPermits;
use crate::store::ids::RequestId;
use crate::store::interface::Grant;
use crate::store::memory::lock::Channels;
use crate::store::push::Push;
use crate::time::server_time::millis;

impl OpenPermits<'_> {
    fn is_reachable(&self, client: &str, channels: &dyn Channels) -> bool {
        self.permits.is_alive(client, self.now)
            && channels.subscribers(&format!("{}{client}", self.keys.channel)) > 0
    }

    /// Gives out as many permits as there are, from the head of the queue on, and stops at the first request
    /// for which there are too few. `mine` is the caller's own request and its lease. If that is queued, it
    /// is granted without a message. Returns whether a bound was reached: then the call must be repeated.
    ///
    /// A refused message leaves permits over, so the next requests get them, with messages of their own.
    ///
    /// Permits that stay taken come back by time, and nobody releases them. So the client of a request is
    /// told to ask for that time when its request becomes the first. `is_new` says that this may be so, or
    /// that more permits stay taken.
    pub(crate) fn hand_over(
        &mut self,
        is_new: bool,
        mine: Option<(&RequestId, u64)>,
        channels: &mut dyn Channels,
    ) -> bool {
        let mut removed = 0;
        loop {
            let (told, is_done) = self.take_from_queue(mine, &mut removed, channels);
            match (self.tell(told, channels), is_done) {
                (_, false) => return true,
                (true, true) => {}
                (false, true) => break,
            }
        }
        let first = self.permits.queue.order.first().map(|(_, first)| first);
        let is_told = (is_new || removed > 0) && self.permits.taken_until > self.now.ms;
        if let Some(first) = first.filter(|first| is_told && mine.is_none_or(|(mine, _)| mine != *first)) {
            channels.publish(
                &format!("{}{}", self.keys.channel, first.client()),
                &Push::Kept.write(),
            );
        }
        self.unsettled
    }

    /// Returns the grants of each client that must be told, in the order of its first one. Also returns
    /// whether the end was reached, and not the bound.
    fn take_from_queue(
        &mut self,
        mine: Option<(&RequestId, u64)>,
        removed: &mut usize,
        channels: &dyn Channels,
    ) -> (Vec<Vec<Grant>>, bool) {
        let mut told: Vec<Vec<Grant>> = Vec::new();
        loop {
            let Some((_, head)) = self.permits.queue.order.first().cloned() else {
                return (told, true);
            };
            let own_lease = mine.filter(|(mine, _)| **mine == head).map(|(_, lease)| lease);
            let has_free = self.free_for(&head) > 0;
            let is_reachable =
                own_lease.is_some() || (has_free && self.is_reachable(head.client(), channels));
            // What does not fit waits, unless it cannot be reached. Then it would only keep the others out.
            if !self.fits(&head) && (is_reachable || !has_free) {
                return (told, true);
            }
            if *removed == self.bound {
                return (told, false);
            }
            self.permits.queue.remove(&head);
            *removed += 1;
            if let Some(lease) = own_lease {
                self.grant(&head, lease, false);
            } else if !is_reachable {
                self.permits.clients.remove(head.client());
            } else if let Some(grant) = self.grant(&head, millis(head.grant()), true) {
                let of_client = |grants: &&mut Vec<Grant>| grants[0].request.client() == head.client();
                match told.iter_mut().find(of_client) {
                    Some(grants) => grants.push(grant),
                    None => told.push(vec![grant]),
                }
            }
        }
    }

    /// Tells each client its grants, in one message. The grants of a refused message are void: their requests
    /// stay removed, as if the client could not be reached, and no fence is given out again. Returns whether
    /// a message was refused.
    fn tell(&mut self, told: Vec<Vec<Grant>>, channels: &mut dyn Channels) -> bool {
        let mut is_refused = false;
        for grants in told {
            let client = grants[0].request.client().to_owned();
            let channel = format!("{}{client}", self.keys.channel);
            let requests: Vec<_> = grants.iter().map(|grant| grant.request.clone()).collect();
            if !channels.publish(&channel, &Push::Granted(grants).write()) {
                is_refused = true;
                self.permits.clients.remove(&client);
                for request in requests {
                    self.drop_hold(&request);
                }
            }
        }
        is_refused
    }
}
