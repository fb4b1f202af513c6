//! What goes wrong with the world: connections, processes, the server.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::history::{Event, Fault};
use super::line::Ends;
use super::network::Network;
use super::process::Process;
use super::server::Server;
use crate::LockManager;

/// One client, as seen from outside.
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
}

impl World {
    /// Has some of these go wrong, one after the other, for so long.
    pub(super) async fn misbehave(&mut self, faults: &[Fault], span: Duration) {
        let end = tokio::time::Instant::now() + span;
        loop {
            let pause = Duration::from_millis(self.rng.u64(1..=1500));
            if faults.is_empty() || tokio::time::Instant::now() + pause >= end {
                tokio::time::sleep_until(end).await;
                return;
            }
            tokio::time::sleep(pause).await;
            let fault = faults[self.rng.usize(..faults.len())];
            if self.happens(fault) {
                self.network.history.fault(fault);
            }
        }
    }

    /// Ends all that can end.
    pub(super) fn calm(&mut self) {
        self.network.calm();
        self.server.calm();
        for peer in self.peers.iter().filter(|peer| !peer.killed) {
            peer.process.go_on();
        }
    }

    fn happens(&mut self, fault: Fault) -> bool {
        let span = Duration::from_millis(self.rng.u64(10..=6000));
        let victim = self.rng.usize(..self.peers.len());
        let last_alive = self.peers.iter().filter(|peer| !peer.killed).count() == 1;
        let peer = &mut self.peers[victim];
        match fault {
            Fault::CommandsCut => peer.ends.cut(false),
            Fault::CommandsSilent => peer.ends.cut(true),
            Fault::MessagesCut => peer.ends.ears.cut(false),
            Fault::MessagesHalfOpen => peer.ends.ears.cut(true),
            Fault::Deaf => peer.ends.ears.lose_one(),
            Fault::Stopped => {
                if peer.killed {
                    return false;
                }
                peer.process.stop();
                let process = Arc::clone(&peer.process);
                self.network.after(span, move || process.go_on());
            }
            Fault::Killed => {
                if peer.killed || last_alive {
                    return false;
                }
                peer.killed = true;
                peer.process.kill();
                peer.ends.cut(false);
                peer.ends.ears.cut(self.rng.bool());
                self.network.history.record(Event::Died { client: victim });
            }
            Fault::Refusing => self.server.refuse(span),
            Fault::Stalled => self.server.stall(span),
            Fault::Flushed => self.server.flush(),
            Fault::RecordsForgotten => self.server.store.forget_records(),
            Fault::Closed => {
                if peer.closed {
                    return false;
                }
                peer.closed = true;
                let manager = peer.manager.clone();
                // What it could not release shows in the end.
                peer.process.spawn(async move { drop(manager.close().await) });
            }
            _ => return false,
        }
        true
    }
}
