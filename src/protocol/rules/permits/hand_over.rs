//! Gives permits to the requests in the queue.

use super::OpenPermits;
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Grant;
use crate::protocol::push::Push;
use crate::protocol::rules::lock::Channels;
use crate::time::server_time::millis;

/// A call steps over so many full requests at most.
const STEPS: usize = 64;

/// What a hand-over has done so far.
#[derive(Debug)]
struct Progress {
    /// Another request may be the first in the queue now, or more permits stay taken.
    is_new: bool,
    removed: usize,
}

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
    /// A request is full if as many permits are in use as its capacity. One with a larger capacity overtakes
    /// full ones, but only while what was granted over the first of them fits into its capacity. So nobody is
    /// overtaken for good.
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
        let mut progress = Progress { is_new, removed: 0 };
        loop {
            let (told, is_done) = self.take_from_queue(mine, &mut progress, channels);
            match (self.tell(told, channels), is_done) {
                (_, false) => return true,
                (true, true) => {}
                (false, true) => break,
            }
        }
        let first = self.permits.queue.order.first().map(|(_, first)| first);
        let is_told = self.is_told_of_time(&progress);
        if let Some(first) = first.filter(|first| is_told && mine.is_none_or(|(mine, _)| mine != *first)) {
            channels.publish(
                &format!("{}{}", self.keys.channel, first.client()),
                &Push::Kept.write(),
            );
        }
        self.unsettled
    }

    /// Whether the first request must hear that permits stay taken.
    fn is_told_of_time(&self, progress: &Progress) -> bool {
        self.permits.taken_until > self.now.ms && (progress.is_new || progress.removed > 0)
    }

    /// Returns the grants of each client that must be told, in the order of its first one. Also returns
    /// whether the end was reached, and not the bound.
    fn take_from_queue(
        &mut self,
        mine: Option<(&RequestId, u64)>,
        progress: &mut Progress,
        channels: &dyn Channels,
    ) -> (Vec<Vec<Grant>>, bool) {
        // The largest capacity that is known, or less.
        let largest = mine.map_or(0, |(mine, _)| mine.capacity()).max(self.used_before);
        let mut told: Vec<Vec<Grant>> = Vec::new();
        // How many full requests were stepped over, and the first of them.
        let (mut stepped, mut first) = (0, None);
        loop {
            let Some((_, head)) = self.permits.queue.order.iter().nth(stepped).cloned() else {
                return (told, true);
            };
            let own_lease = mine.filter(|(mine, _)| **mine == head).map(|(_, lease)| lease);
            let is_full = self.free_for(&head) == 0;
            let steps = is_full && largest > head.capacity();
            // Of several full requests, only the first must be reachable.
            let is_asked = !is_full || first.is_none() && (steps || self.is_told_of_time(progress));
            let is_waiting = own_lease.is_some() || !is_asked || self.is_reachable(head.client(), channels);
            if steps && is_waiting && stepped < STEPS {
                stepped += 1;
                first = first.or(Some(head));
                continue;
            }
            let granted_over = first.as_ref().map_or(0, |first| self.permits.overtaken_by(first));
            let is_blocked = !self.fits(&head) || granted_over + head.weight() > head.capacity();
            // What is blocked waits, unless it cannot be reached. Then it would only keep the others out.
            if is_blocked && is_waiting {
                return (told, true);
            }
            if progress.removed == self.bound {
                return (told, false);
            }
            self.permits.queue.remove(&head);
            progress.removed += 1;
            if let Some(first) = first.as_ref().filter(|_| is_waiting) {
                self.permits.overtaken = Some((first.clone(), granted_over + head.weight()));
            }
            if let Some(lease) = own_lease {
                self.grant(&head, lease, false);
            } else if !is_waiting {
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
