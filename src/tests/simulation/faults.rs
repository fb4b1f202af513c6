//! Injects faults into connections, processes and the server.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::connection::Ends;
use super::history::{Event, Fault};
use super::network::Network;
use super::plan::Plan;
use super::process::Process;
use super::server::Server;
use crate::LockManager;

/// One client, with the handles by which a test disturbs it.
pub(super) struct Peer {
    pub(super) manager: LockManager,
    pub(super) process: Arc<Process>,
    pub(super) ends: Arc<Ends>,
    pub(super) killed: bool,
    pub(super) closed: bool,
}

pub(super) struct World {
    pub(super) network: Arc<Network>,
    pub(super) server: Arc<Server>,
    pub(super) peers: Vec<Peer>,
    pub(super) rng: Rng,
    pub(super) clock_was_set: bool,
}

impl World {
    /// Injects random faults of the plan, one after the other, until the calm.
    pub(super) async fn inject_faults(&mut self, plan: &Plan) {
        let faults = &plan.faults;
        let longest = u64::try_from(plan.longest_gap.as_millis()).unwrap();
        let end = tokio::time::Instant::now() + plan.calm_after;
        loop {
            let pause = Duration::from_millis(self.rng.u64(1..=longest));
            if faults.is_empty() || tokio::time::Instant::now() + pause >= end {
                tokio::time::sleep_until(end).await;
                return;
            }
            tokio::time::sleep(pause).await;
            let fault = faults[self.rng.usize(..faults.len())];
            let victim = self.rng.usize(..self.peers.len());
            if let Some(lasts) = self.inject(fault, victim) {
                let client = (!fault.strikes_all()).then_some(victim);
                self.network.history.fault(fault, client, lasts);
            }
        }
    }

    /// Ends all faults that last, except stalls.
    pub(super) fn calm(&mut self) {
        self.network.calm();
        self.server.calm();
        for peer in self.peers.iter().filter(|peer| !peer.killed) {
            peer.process.resume();
        }
    }

    /// Injects a fault, if that is possible, and returns how long it lasts.
    fn inject(&mut self, fault: Fault, victim: usize) -> Option<Duration> {
        let span = Duration::from_millis(self.rng.u64(10..=6000));
        let last_alive = self.peers.iter().filter(|peer| !peer.killed).count() == 1;
        let peer = &mut self.peers[victim];
        let lasts = match fault {
            Fault::CommandsCut => return peer.ends.cut(false),
            Fault::CommandsSilent => return peer.ends.cut(true),
            Fault::MessagesCut => return peer.ends.subscribers.cut(false),
            Fault::MessagesHalfOpen => return peer.ends.subscribers.cut(true),
            Fault::SubscriptionLost => {
                peer.ends.subscribers.lose_one();
                Duration::ZERO
            }
            Fault::AtReplica => {
                peer.ends.subscribers.move_to_replica();
                Duration::ZERO
            }
            Fault::Stopped => {
                if peer.killed {
                    return None;
                }
                peer.process.stop();
                let process = Arc::clone(&peer.process);
                self.network.after(span, move || process.resume());
                span
            }
            Fault::Killed => {
                if peer.killed || last_alive {
                    return None;
                }
                peer.killed = true;
                peer.process.kill();
                peer.ends.cut(false);
                peer.ends.subscribers.cut(self.rng.bool());
                self.network.history.record(Event::Died { client: victim });
                Duration::ZERO
            }
            Fault::Refusing => {
                self.server.refuse(span);
                span
            }
            Fault::Stalled => {
                self.server.stall(span);
                span
            }
            Fault::Flushed => {
                self.server.flush();
                Duration::ZERO
            }
            Fault::NotedAbsent => {
                self.server.store().note_absent();
                Duration::ZERO
            }
            Fault::ScriptsForgotten => {
                self.server.forget_scripts();
                Duration::ZERO
            }
            Fault::ClockSetBack => {
                // Only once, because earlier calls can run late by the sum of all steps.
                if std::mem::replace(&mut self.clock_was_set, true) {
                    return None;
                }
                // The fault is recorded first, because the step can revive holds that had expired.
                self.network.history.fault(fault, None, span);
                self.server.set_back(span);
                return None;
            }
            Fault::Closed => {
                if peer.closed {
                    return None;
                }
                peer.closed = true;
                let manager = peer.manager.clone();
                // If the client could not release something, the checks at the end find it.
                peer.process.spawn(async move { drop(manager.close().await) });
                Duration::ZERO
            }
            _ => return None,
        };
        Some(lasts)
    }
}
