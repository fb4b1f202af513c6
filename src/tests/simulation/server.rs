//! The simulated server: the in-memory store, which can refuse calls, stall, or lose data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::history::{Effect, Event, History};
use crate::fence::Fence;
use crate::store::ids::RequestId;
use crate::store::memory::{Connection, MemoryStore};
use crate::store::pipeline::{Prioritized, Priority};
use crate::store::{
    Acquire, Acquired, Answer, Call, ConnectionId, Inspect, Inspected, Look, Looked, Release, ReleaseWhat,
    Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Store, Withdraw,
    Withdrawn,
};
use crate::sync::locked;
use crate::time::deadline_queue::GivesUp;

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
    /// The holds as they were last recorded in the history, with their deadlines.
    holds: Mutex<BTreeMap<String, BTreeMap<RequestId, u64>>>,
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
            holds: Mutex::default(),
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
        locked(&self.holds).clear();
        self.note_holds();
    }

    /// Records the holds that have changed.
    fn note_holds(&self) {
        let now = self.store().now_ms();
        let holds = self.store().holds();
        let mut before = locked(&self.holds);
        let keys: BTreeSet<&String> = before.keys().chain(holds.keys()).collect();
        for key in keys {
            let (old, new) = (before.get(key), holds.get(key));
            if old.unwrap_or(&BTreeMap::new()) != new.unwrap_or(&BTreeMap::new()) {
                let left = new.into_iter().flatten().map(|(request, deadline)| {
                    let left = Duration::from_millis(deadline.saturating_sub(now));
                    (request.clone(), left)
                });
                self.history.holds(key, left);
            }
        }
        *before = holds;
    }

    pub(super) fn holds(&self, key: &str, fence: Fence) -> bool {
        self.store()
            .held()
            .iter()
            .any(|hold| hold.key == key && (hold.fence..=hold.last).contains(&fence))
    }

    /// Executes a call, and records its effect.
    pub(super) fn execute<O: Operation>(
        &self,
        client: usize,
        connection: &Connection,
        operation: &O,
    ) -> Option<Answer<O::Reply>> {
        if let Some((key, fence)) = operation.revokes() {
            self.history.record(Event::Revoked { key, fence });
        }
        self.drift();
        // There is no answer if the connection was closed in the meantime.
        let answer = operation.call(connection).now_or_never()?.ok()?;
        let effect = operation.effect(&answer.reply);
        self.history.record(Event::Executed { client, effect });
        self.note_holds();
        Some(answer)
    }
}

/// A call of the [`Store`] that a client makes.
pub(super) trait Operation: Prioritized + fmt::Debug + Send + Sync + 'static {
    type Reply: Send + 'static;

    fn needs_scripts(&self) -> bool {
        true
    }

    /// When the caller gives up.
    fn gives_up(&self) -> GivesUp {
        GivesUp::Unknown
    }

    /// The request that the call may grant or queue.
    fn request(&self) -> Option<&RequestId> {
        None
    }

    /// The requests that it withdraws.
    fn withdraws(&self) -> &[RequestId] {
        &[]
    }

    /// Fills in what is only known when the call is written. Returns `None` if it is too late to write it.
    fn stamped(self, _: ConnectionId) -> Option<Self>
    where
        Self: Sized,
    {
        Some(self)
    }

    fn call(&self, connection: &Connection) -> Call<Self::Reply>;

    fn effect(&self, reply: &Self::Reply) -> Effect;

    /// The hold that the call releases by force.
    fn revokes(&self) -> Option<(String, Fence)> {
        None
    }
}

impl Operation for Acquire {
    type Reply = Acquired;

    fn gives_up(&self) -> GivesUp {
        self.not_after.gives_up()
    }

    fn request(&self) -> Option<&RequestId> {
        Some(&self.request)
    }

    fn stamped(self, on: ConnectionId) -> Option<Acquire> {
        let not_after = Arc::new(self.not_after.written(on)?);
        Some(Acquire { not_after, ..self })
    }

    fn call(&self, connection: &Connection) -> Call<Acquired> {
        connection.acquire(self.clone())
    }

    fn effect(&self, reply: &Acquired) -> Effect {
        Effect::Acquire(self.clone(), reply.clone())
    }
}

impl Operation for Release {
    type Reply = Released;

    fn call(&self, connection: &Connection) -> Call<Released> {
        connection.release(self.clone())
    }

    fn effect(&self, reply: &Released) -> Effect {
        Effect::Release(self.clone(), *reply)
    }

    fn revokes(&self) -> Option<(String, Fence)> {
        match self.what {
            ReleaseWhat::Force(fence) => Some((self.keys.lock.clone(), fence)),
            ReleaseWhat::Grant(_) | ReleaseWhat::Turns { .. } | ReleaseWhat::Keep { .. } => None,
        }
    }
}

impl Operation for Withdraw {
    type Reply = Withdrawn;

    fn withdraws(&self) -> &[RequestId] {
        &self.requests
    }

    fn call(&self, connection: &Connection) -> Call<Withdrawn> {
        connection.withdraw(self.clone())
    }

    fn effect(&self, _: &Withdrawn) -> Effect {
        Effect::Withdraw(self.clone())
    }
}

impl Operation for Renew {
    type Reply = Renewed;

    fn call(&self, connection: &Connection) -> Call<Renewed> {
        connection.renew(self.clone())
    }

    fn effect(&self, reply: &Renewed) -> Effect {
        Effect::Renew(self.clone(), *reply)
    }
}

impl Operation for Look {
    type Reply = Looked;

    fn call(&self, connection: &Connection) -> Call<Looked> {
        connection.look(self.clone())
    }

    fn effect(&self, reply: &Looked) -> Effect {
        Effect::Renew(self.renew.clone(), reply.renewed)
    }
}

impl Operation for Inspect {
    type Reply = Inspected;

    fn call(&self, connection: &Connection) -> Call<Inspected> {
        connection.inspect(self.clone())
    }

    fn effect(&self, _: &Inspected) -> Effect {
        Effect::Other("inspect")
    }
}

impl Operation for SpinAcquire {
    type Reply = SpinAcquired;

    fn call(&self, connection: &Connection) -> Call<SpinAcquired> {
        connection.spin_acquire(self.clone())
    }

    fn effect(&self, _: &SpinAcquired) -> Effect {
        Effect::Other("spin acquire")
    }
}

impl Operation for SpinRelease {
    type Reply = SpinReleased;

    fn call(&self, connection: &Connection) -> Call<SpinReleased> {
        connection.spin_release(self.clone())
    }

    fn effect(&self, _: &SpinReleased) -> Effect {
        Effect::Other("spin release")
    }
}

/// A call that asks for the server's time.
#[derive(Clone, Debug)]
pub(super) struct Time;

impl Prioritized for Time {
    fn priority(&self) -> Priority {
        Priority::Ask
    }
}

impl Operation for Time {
    type Reply = ();

    fn needs_scripts(&self) -> bool {
        false
    }

    fn call(&self, connection: &Connection) -> Call<()> {
        connection.time()
    }

    fn effect(&self, (): &()) -> Effect {
        Effect::Other("time")
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
