//! The simulated server: the in-memory store, which can refuse calls, stall, or lose data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::history::{Effect, Event, History};
use crate::protocol::ids::ClientId;
use crate::protocol::{
    Acquire, Acquired, Answer, Connections, Look, Looked, Mode, Release, ReleaseWhat, Released, Renew,
    Renewed, Withdraw,
};
use crate::servers::memory::{Connection, MemoryStore, Written};
use crate::sync::locked;
use crate::tests::double::{AnyOperation, AnyReply};
use crate::types::fence::Fence;

#[derive(Debug)]
pub(super) struct Server {
    store: MemoryStore,
    /// How many µs the server's clock gains per second.
    drift_ppm: u32,
    began: Instant,
    /// What the clock has gained so far.
    gained: Mutex<Duration>,
    history: Arc<History>,
    refuses_until: Mutex<Instant>,
    stalls_until: Mutex<Instant>,
    knows_scripts: AtomicBool,
    /// The holds and the heads of the queues, as they were last recorded in the history.
    written: Mutex<BTreeMap<String, Written>>,
}

impl Server {
    pub(super) fn new(store: MemoryStore, drift_ppm: u32, history: Arc<History>) -> Arc<Server> {
        Arc::new(Server {
            store,
            drift_ppm,
            began: Instant::now(),
            gained: Mutex::default(),
            history,
            refuses_until: Mutex::new(Instant::now()),
            stalls_until: Mutex::new(Instant::now()),
            knows_scripts: AtomicBool::new(true),
            written: Mutex::default(),
        })
    }

    /// Returns the store, with its clock up to date.
    pub(super) fn store(&self) -> &MemoryStore {
        self.drift();
        &self.store
    }

    /// Advances the store's clock by the drift since the last call.
    fn drift(&self) {
        let gained = self.began.elapsed() * self.drift_ppm / 1_000_000;
        let before = std::mem::replace(&mut *locked(&self.gained), gained);
        self.store.set_forward(gained - before);
    }

    pub(super) fn refuse(&self, span: Duration) {
        *locked(&self.refuses_until) = Instant::now() + span;
    }

    /// Executes nothing for this time. Nothing ends a stall earlier: calls that arrived before the end would
    /// run after calls that arrive later on the same connection.
    pub(super) fn stall(&self, span: Duration) {
        let mut until = locked(&self.stalls_until);
        *until = (*until).max(Instant::now() + span);
    }

    /// Ends refusals. A stall ends by itself.
    pub(super) fn calm(&self) {
        self.refuse(Duration::ZERO);
    }

    pub(super) fn stalled(&self) -> Option<Instant> {
        Some(*locked(&self.stalls_until)).filter(|until| *until > Instant::now())
    }

    pub(super) fn refuses(&self) -> bool {
        *locked(&self.refuses_until) > Instant::now()
    }

    pub(super) fn knows_scripts(&self) -> bool {
        self.knows_scripts.load(Ordering::Relaxed)
    }

    pub(super) fn learn_scripts(&self) {
        self.knows_scripts.store(true, Ordering::Relaxed);
    }

    pub(super) fn forget_scripts(&self) {
        self.knows_scripts.store(false, Ordering::Relaxed);
    }

    pub(super) fn flush(&self) {
        for hold in self.store().held() {
            self.history.record(Event::Revoked {
                key: hold.key,
                fence: hold.fence,
            });
        }
        self.store().flush();
        self.note_holds();
    }

    pub(super) fn set_back(&self, span: Duration) {
        self.store().set_back(span);
        // All holds last longer now, so all are recorded again.
        locked(&self.written).clear();
        self.note_holds();
    }

    /// Records the holds that have changed, and the heads of the queues.
    fn note_holds(&self) {
        let now = self.store().now_ms();
        let written = self.store().written();
        let mut before = locked(&self.written);
        let keys: BTreeSet<&String> = before.keys().chain(written.keys()).collect();
        let nothing = Written::default();
        for key in keys {
            let (old, new) = (before.get(key), written.get(key).unwrap_or(&nothing));
            if old.unwrap_or(&nothing) != new {
                self.history.holds(key, new, now);
            }
        }
        *before = written;
    }

    /// How many permits the hold with this fence has, if it is there.
    pub(super) fn held(&self, key: &str, fence: Fence) -> Option<u32> {
        let held = self.store().held();
        let mut held = held.iter().filter(|hold| hold.key == key);
        let hold = held.find(|hold| (hold.fence..=hold.last).contains(&fence))?;
        Some(hold.weight)
    }

    /// Executes a call, and records its effect.
    pub(super) fn execute(
        &self,
        client: usize,
        connection: &Connection,
        operation: &AnyOperation,
    ) -> Option<Answer<AnyReply>> {
        if let Some((key, fence)) = revoked_by(operation) {
            self.history.record(Event::Revoked { key, fence });
        }
        self.drift();
        // There is no answer if the connection was closed in the meantime.
        let answer = connection.call(operation.clone()).now_or_never()?.ok()?;
        self.executed(client, effect(operation, &answer.reply));
        if let (Some(call), Some(Acquired::Contended(_))) = (operation.get::<Acquire>(), answer.reply.get()) {
            let Acquire {
                keys, request, mode, ..
            } = call;
            let channel = keys.channel_of(&ClientId::from_wire(request.client()));
            if *mode == Mode::Poll && self.store.listens(&channel) {
                let key = keys.lock.clone();
                self.history.record(Event::Listens { client, key });
            }
        }
        Some(answer)
    }

    /// Tells the time.
    pub(super) fn time(&self, client: usize, connection: &Connection) -> Option<Answer<()>> {
        self.drift();
        let answer = connection.time().now_or_never()?.ok()?;
        self.executed(client, Effect::Other("time"));
        Some(answer)
    }

    fn executed(&self, client: usize, effect: Effect) {
        self.history.record(Event::Executed { client, effect });
        self.note_holds();
    }
}

/// The hold that a call releases by force.
fn revoked_by(operation: &AnyOperation) -> Option<(String, Fence)> {
    let release: &Release = operation.get()?;
    match release.what {
        ReleaseWhat::Force { fence, .. } => Some((release.keys.lock.clone(), fence)),
        ReleaseWhat::Grant(_) | ReleaseWhat::Turns { .. } | ReleaseWhat::Keep { .. } => None,
    }
}

fn effect(operation: &AnyOperation, reply: &AnyReply) -> Effect {
    if let (Some(call), Some(reply)) = (operation.get::<Acquire>(), reply.get::<Acquired>()) {
        return Effect::Acquire(call.clone(), reply.clone());
    }
    if let (Some(call), Some(reply)) = (operation.get::<Release>(), reply.get::<Released>()) {
        return Effect::Release(call.clone(), *reply);
    }
    if let (Some(call), Some(reply)) = (operation.get::<Renew>(), reply.get::<Renewed>()) {
        return Effect::Renew(call.clone(), *reply);
    }
    if let (Some(call), Some(reply)) = (operation.get::<Look>(), reply.get::<Looked>()) {
        return Effect::Renew(call.renew.clone(), reply.renewed);
    }
    match operation.get::<Withdraw>() {
        Some(call) => Effect::Withdraw(call.clone()),
        None => Effect::Other("another call"),
    }
}

mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::tests::simulation::plan::Plan;

    /// Otherwise a call that arrived during the stall would run after a later one of its connection.
    #[tokio::test(start_paused = true)]
    async fn nothing_ends_a_stall_early() {
        let plan = Plan::draw(&mut Rng::with_seed(1));
        let server = Server::new(MemoryStore::new(), 0, History::new(plan.timing()));
        let end = Instant::now() + Duration::from_secs(4);
        server.stall(Duration::from_secs(4));
        server.stall(Duration::from_secs(1));
        assert_eq!(server.stalled(), Some(end));
        server.calm();
        assert_eq!(server.stalled(), Some(end));
        tokio::time::sleep_until(end).await;
        assert_eq!(server.stalled(), None);
    }
}
