//! Runs the rules and the scripts side by side.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::dump;
use super::expected::{Check, Expected};
use super::model::{Modelled, PubSub};
use super::server::{Scripts, Snapshot};
use super::step::{
    CLIENTS, Call, Floor, Key, LOCKS, PickFence, PickRequest, REQUESTS, SPIN_LEASES_MS, Step, Trouble, What,
    owned,
};
use crate::protocol::Operation;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::operations::CallKind;
use crate::protocol::rules::Rules;
use crate::protocol::rules::lock::Holder;
use crate::protocol::rules::{Now, Queue, RETENTION_MS};
use crate::protocol::script::{Declared, PubSubMode, ReplyError};
use crate::protocol::{
    Acquire, Inspect, Look, Push, Release, ReleaseWhat, Renew, SpinAcquire, SpinRelease, Withdraw,
};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// Sets the format mark at the beginning of a lock's summary, or removes it.
const FORMAT: &str = "
local summary = redis.call('HGET', KEYS[1], 'hold')
redis.call('HSET', KEYS[1], 'hold', ARGV[1] .. string.match(summary, '%d.*'))
";

pub(super) const START_US: u64 = 1_700_000_000_123_456;

/// The clients of all runs.
pub(super) fn client(n: usize) -> ClientId {
    ClientId::from_number(n as u128 + 1)
}

/// The state that all runs on one server share.
pub(super) struct Setting {
    pub(super) scripts: Scripts,
    /// The largest number of queue entries that one hand-over removes.
    pub(super) bound: usize,
    /// The kinds of replies that have occurred.
    pub(super) reached: BTreeSet<&'static str>,
    /// The number of calls.
    pub(super) calls: u64,
}

impl Setting {
    /// Starts a server. Its bound is so small that a queue of the test reaches it.
    pub(super) fn start() -> Setting {
        Setting::bounded(3)
    }

    pub(super) fn bounded(bound: usize) -> Setting {
        Setting {
            scripts: Scripts::start(bound, &client(0)),
            bound,
            reached: BTreeSet::new(),
            calls: 0,
        }
    }
}

pub(super) struct World<'a> {
    setting: &'a mut Setting,
    rules: Rules,
    pub_sub: PubSub,
    started: Instant,
    pub(super) now_us: u64,
    pub(super) keys: Vec<Arc<Keys>>,
    clients: Vec<ClientId>,
    pub(super) owners: Vec<Owner>,
    pub(super) requests: Vec<RequestId>,
    /// The fences that each lock has had.
    fences: Vec<Vec<Fence>>,
    /// Whether each lock is written in a newer format.
    newer: [bool; LOCKS],
    /// The holds in the hash of each lock after the last step.
    hashes: [String; LOCKS],
    /// What the queued snapshots must show.
    expected: Vec<Expected>,
}

impl World<'_> {
    pub(super) fn new(setting: &mut Setting) -> World<'_> {
        setting.scripts.reset();
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let owners: Vec<_> = (0..CLIENTS).map(|n| Owner::named(n.to_string())).collect();
        let requests = (0..REQUESTS).map(|n| {
            let owner = owned().contains(&n).then(|| &owners[n % 2]);
            let grant = Duration::from_millis([100, 1_000, 5_000][n % 4 % 3]);
            let client = &clients[n % CLIENTS];
            match owner {
                None if n >= 10 => RequestId::retaining(client, grant, n as u64),
                owner => RequestId::new(client, grant, n as u64, owner),
            }
        });
        World {
            rules: Rules::new(setting.bound),
            pub_sub: PubSub::default(),
            started: Instant::now(),
            now_us: START_US,
            keys: (0..LOCKS)
                .map(|n| Arc::new(Keys::new("fairlock", &format!("lock{n}")).unwrap()))
                .collect(),
            requests: requests.collect(),
            fences: vec![vec![Fence::new(1).unwrap()]; LOCKS],
            newer: [false; LOCKS],
            hashes: Default::default(),
            expected: Vec::new(),
            clients,
            owners,
            setting,
        }
    }

    /// Takes the steps, and compares all data after each.
    pub(super) fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        self.expect_all();
        self.check();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Call {
                lock,
                ref call,
                trouble,
            } => self.call(lock, call, trouble),
            Step::Subscribe { lock, client } => {
                let channel = self.keys[lock].channel_of(&self.clients[client]);
                self.pub_sub.subscribed.insert(channel.to_string());
                self.queue_command(lock, &["SUBSCRIBE", &channel]);
            }
            Step::Unsubscribe { lock, client } => {
                let channel = self.keys[lock].channel_of(&self.clients[client]);
                self.pub_sub.subscribed.remove(&*channel);
                self.queue_command(lock, &["UNSUBSCRIBE", &channel]);
            }
            Step::LocalTime { us } => self.now_us = self.now_us.checked_add_signed(us).unwrap(),
            Step::Delete { lock, key } => self.delete(lock, key),
            Step::DeleteAll => {
                self.rules.locks.clear();
                self.rules.spins.clear();
                self.newer = [false; LOCKS];
                self.setting.scripts.command(&["FLUSHALL"]);
                self.expect_all();
            }
            Step::Format { lock, newer } => {
                if self.is_written(lock) {
                    self.newer[lock] = newer;
                    let key = self.keys[lock].lock.clone();
                    self.queue_command(lock, &["EVAL", FORMAT, "1", &key, self.mark(lock)]);
                }
            }
        }
    }

    fn delete(&mut self, lock: usize, key: Key) {
        let keys = self.keys[lock].clone();
        let kept = self.rules.locks.entry(keys.lock.clone()).or_default();
        let key = match key {
            Key::Lock => {
                kept.written = None;
                self.newer[lock] = false;
                &keys.lock
            }
            Key::Queue => {
                kept.queue = Queue::default();
                &keys.queue
            }
            Key::Spin => {
                self.rules.spins.remove(&keys.spin);
                &keys.spin
            }
        };
        self.queue_command(lock, &["DEL", key]);
    }

    /// Queues a command of an operator, whose effect the model already has.
    fn queue_command(&mut self, lock: usize, command: &[&str]) {
        self.setting.scripts.command(command);
        self.expect(lock, None);
        // Such a command leaves the key's time to live as it was.
        if let Some(expected) = self.expected.last_mut() {
            expected.kept_ms = None;
        }
    }

    fn expect_all(&mut self) {
        (0..LOCKS).for_each(|lock| self.expect(lock, None));
    }

    fn call(&mut self, lock: usize, call: &Call, trouble: Option<Trouble>) {
        let keys = self.keys[lock].clone();
        match *call {
            Call::Acquire {
                request,
                mode,
                lease_ms,
                not_after_ms,
                ticket_us,
                floor,
            } => {
                let call = Acquire {
                    keys,
                    request: self.requests[request].clone(),
                    mode,
                    lease: Duration::from_millis(lease_ms),
                    not_after: Arc::new(self.time_at(not_after_ms)),
                    ticket: ticket_us.map(|us| self.ticket_at(us)),
                    floor: floor.map(|floor| self.floor(lock, floor)),
                };
                self.make(lock, call, trouble);
            }
            Call::Release { request, what, floor } => {
                let request = match what {
                    // Nobody takes a lock from itself by force.
                    What::Force(_) => RequestId::new(&self.clients[0], Duration::ZERO, u64::MAX, None),
                    _ => self.request(lock, request),
                };
                // Only a request that is its own owner has several turns.
                let what = match what {
                    What::Turns(which, _) if !request.is_owner() => What::Grant(which),
                    what => what,
                };
                let call = Release {
                    keys,
                    request,
                    what: match what {
                        What::Grant(which) => ReleaseWhat::Grant(self.fence(lock, which)),
                        What::Turns(which, more) => self.turns(lock, which, more),
                        What::Keep(which, most_ms, until_ms) => ReleaseWhat::Keep {
                            fence: self.fence(lock, which),
                            at_least: Duration::from_millis(most_ms),
                            until: self.time_at(until_ms),
                        },
                        What::Force(which) => ReleaseWhat::Force {
                            fence: self.fence(lock, which),
                            from: 0,
                        },
                    },
                    floor: floor.map(|floor| self.floor(lock, floor)),
                };
                self.make(lock, call, trouble);
            }
            Call::Withdraw { ref requests, floor } => {
                let call = Withdraw {
                    keys,
                    requests: requests
                        .iter()
                        .map(|request| self.request(lock, *request))
                        .collect(),
                    floor: floor.map(|floor| self.floor(lock, floor)),
                };
                self.make(lock, call, trouble);
            }
            Call::Renew {
                request,
                fence,
                lease_ms,
                cap_ms,
            } => {
                let call = Renew {
                    keys,
                    request: self.request(lock, request),
                    fence: self.fence(lock, fence),
                    lease: Duration::from_millis(lease_ms),
                    cap: self.time_at(cap_ms),
                    on_demand: false,
                };
                self.make(lock, call, trouble);
            }
            Call::Look {
                request,
                fence,
                lease_ms,
                cap_ms,
                floor,
                ticket_us,
            } => {
                let call = Look {
                    renew: Renew {
                        keys,
                        request: self.request(lock, request),
                        fence: self.fence(lock, fence),
                        lease: Duration::from_millis(lease_ms),
                        cap: self.time_at(cap_ms),
                        on_demand: false,
                    },
                    floor: self.floor(lock, floor),
                    ticket: self.ticket_at(ticket_us),
                };
                self.make(lock, call, trouble);
            }
            Call::Inspect => {
                let request = self.requests[0].clone();
                self.make(lock, Inspect { keys, request }, trouble);
            }
            Call::SpinAcquire {
                owner,
                request,
                lease_ms,
            } => {
                let call = SpinAcquire {
                    keys,
                    owner: self.owners[owner].clone(),
                    request: Uuid::from_u128(request as u128),
                    lease: Duration::from_millis(lease_ms),
                };
                self.make(lock, call, trouble);
            }
            Call::SpinRelease { owner } => {
                let owner = self.owners[owner].clone();
                self.make(lock, SpinRelease { keys, owner }, trouble);
            }
        }
    }

    /// Makes the call by the script and by the rules.
    fn make<O: Modelled>(&mut self, lock: usize, call: O, trouble: Option<Trouble>) {
        self.setting.calls += 1;
        let script_call = call.script_call(PubSubMode::Plain, Declared::All);
        // A release that hands over to nobody does not look at its floor. Only the server knows that before.
        let may_ignore_floor = O::KIND == CallKind::Release && self.now().is_behind(call.floor());
        if trouble.is_none() && !may_ignore_floor {
            self.setting.scripts.call(script_call, self.now_us);
            let check = self.outcome(lock, call, None);
            return self.expect(lock, Some(check));
        }
        // Only the server decides whether it refuses a call. If it does, it must not have changed anything.
        self.check();
        let reply = self.setting.scripts.call_in(trouble, script_call, self.now_us);
        let read = reply.as_ref().map(|reply| call.read(reply));
        match (trouble, read) {
            (Some(trouble), Err(error)) => {
                self.setting.reached.insert(trouble.refused::<O>(error));
            }
            (_, Ok(Err(ReplyError::ClockBehind))) if may_ignore_floor => {
                self.setting.reached.insert("clock behind");
            }
            _ => self.outcome(lock, call, trouble)(reply),
        }
        self.expect(lock, None);
    }

    /// Applies the rules, and returns a check of the server's reply.
    fn outcome<O: Modelled>(&mut self, lock: usize, call: O, trouble: Option<Trouble>) -> Check {
        let now = self.now();
        if self.newer[lock] && O::KNOWS_FORMATS {
            self.setting.reached.insert("newer format");
            return Box::new(move |reply| {
                let read = call.read(&reply.unwrap()).map(|_| ());
                assert_eq!(read, Err(ReplyError::NewerFormat));
            });
        }
        if O::KIND != CallKind::Release && now.is_behind(call.floor()) {
            self.setting.reached.insert("clock behind");
            return Box::new(move |reply| {
                let read = call.read(&reply.unwrap()).map(|_| ());
                assert_eq!(read, Err(ReplyError::ClockBehind));
            });
        }
        self.pub_sub.allowed = (trouble == Some(Trouble::NoPublish)).then(|| self.clients[0].to_string());
        self.pub_sub.denied = false;
        let expected = call.execute(&mut self.rules, now, &mut self.pub_sub);
        self.setting.reached.insert(O::kind(&expected));
        Box::new(move |reply| {
            let (time, reply) = call.read(&reply.unwrap()).unwrap();
            let is_untold = O::KIND == CallKind::Release && time == ServerTime::default();
            assert!(
                time.ms() == now.ms || is_untold,
                "the reply's time: {time:?}, not {now:?}"
            );
            assert_eq!(reply, expected, "the reply of the server and that of the rules");
        })
    }

    /// Queues a snapshot of a lock, which must match the present state of the rules.
    fn expect(&mut self, lock: usize, reply: Option<Check>) {
        let keys = &self.keys[lock];
        self.setting.scripts.queue_snapshot(keys);
        let (kept, spin) = (self.rules.locks.get(&keys.lock), self.rules.spins.get(&keys.spin));
        let data = dump::data(kept, self.mark(lock), spin);
        let holder = kept.and_then(|lock| lock.written.as_ref());
        let left_ms = holder.map_or(0, Holder::deadline).saturating_sub(self.now().ms);
        // A call that removes a note of absence writes no hold.
        let holds = data[0].split(", ").filter(|field| !field.starts_with("absent="));
        let holds = holds.collect::<Vec<_>>().join(", ");
        let is_written = holds != self.hashes[lock] && left_ms > 0;
        let fence = holder.and_then(|holder| Fence::new(holder.fence));
        if let Some(fence) = fence.filter(|fence| !self.fences[lock].contains(fence)) {
            self.fences[lock].push(fence);
        }
        self.hashes[lock] = holds;
        let pushes = std::mem::take(&mut self.pub_sub.messages);
        if !pushes.is_empty() {
            self.setting.reached.insert("a push");
        }
        let is_wanted = |(_, push): &(String, String)| matches!(Push::parse(push), Some(Push::Wanted(_)));
        if pushes.iter().any(is_wanted) {
            self.setting.reached.insert("a lock is wanted");
        }
        if data[0].contains("absent=") {
            self.setting.reached.insert("a client is absent");
        }
        self.expected.push(Expected {
            reply,
            data,
            kept_ms: is_written.then_some(left_ms + RETENTION_MS),
            pushes,
            last_ms: SPIN_LEASES_MS[0],
        });
    }

    /// Sends everything queued, and compares the snapshots.
    fn check(&mut self) {
        let all = self.setting.scripts.send();
        assert_eq!(all.len(), self.expected.len());
        for (seen, expected) in all.into_iter().zip(std::mem::take(&mut self.expected)) {
            expected.compare(seen, self.started);
        }
    }

    fn is_written(&self, lock: usize) -> bool {
        let kept = self.rules.locks.get(&self.keys[lock].lock);
        kept.is_some_and(|lock| lock.written.is_some())
    }

    /// The format mark at the beginning of a lock's summary.
    fn mark(&self, lock: usize) -> &'static str {
        if self.newer[lock] { "b " } else { "" }
    }

    fn now(&self) -> Now {
        Now {
            us: self.now_us,
            ms: self.now_us / 1000,
        }
    }

    /// The server time that is `offset_ms` away from now.
    fn time_at(&self, offset_ms: i64) -> ServerTime {
        ServerTime::from_ms(self.now().ms.checked_add_signed(offset_ms).unwrap())
    }

    /// The ticket that is `offset_us` away from now.
    fn ticket_at(&self, offset_us: i64) -> Ticket {
        Ticket(self.now_us.checked_add_signed(offset_us).unwrap())
    }

    fn request(&self, lock: usize, picked: PickRequest) -> RequestId {
        let (PickRequest::Holder(n) | PickRequest::Any(n)) = picked;
        let kept = self.rules.locks.get(&self.keys[lock].lock);
        let holder = kept.and_then(|lock| lock.written.as_ref());
        match holder.filter(|holder| matches!(picked, PickRequest::Holder(_)) && holder.is_held()) {
            Some(holder) => holder.holds.keys().cycle().nth(n).expect("a hold").clone(),
            None => self.requests[n].clone(),
        }
    }

    fn fence(&self, lock: usize, picked: PickFence) -> Fence {
        let fences = &self.fences[lock];
        match picked {
            PickFence::Present => fences[fences.len() - 1],
            PickFence::Former => fences[fences.len().saturating_sub(2)],
        }
    }

    /// The release of a hold that has used this fence and so many more.
    fn turns(&self, lock: usize, picked: PickFence, more: u64) -> ReleaseWhat {
        let first = self.fence(lock, picked);
        let last = Fence::new(first.get() + more).expect("a fence");
        ReleaseWhat::Turns { first, last }
    }

    /// All floors have 16 digits, like server times in µs.
    fn floor(&self, lock: usize, floor: Floor) -> Fence {
        let us = match floor {
            Floor::Now(us) => self.now_us.checked_add_signed(us),
            Floor::Fence(us) => {
                let fence = self.fence(lock, PickFence::Present).get();
                fence.max(START_US).checked_add_signed(us)
            }
        };
        us.and_then(Fence::new).unwrap()
    }

    /// Returns the server's reply without applying the rules.
    pub(super) fn ask<O: Operation>(&mut self, call: &O) -> O::Reply {
        self.ask_by(call, PubSubMode::Plain)
    }

    /// Like [`ask`](Self::ask), with another way of publishing.
    pub(super) fn ask_by<O: Operation>(&mut self, call: &O, way: PubSubMode) -> O::Reply {
        self.ask_in(None, call, way).unwrap()
    }

    /// Like [`try_ask`](Self::try_ask), with a call that declares the lock's key alone.
    pub(super) fn ask_alone<O: Operation>(&mut self, call: &O) -> Result<O::Reply, ReplyError> {
        self.try_ask(call, Declared::LockAlone)
    }

    /// Returns the server's reply, or why the client does not accept it.
    pub(super) fn try_ask<O: Operation>(
        &mut self,
        call: &O,
        declared: Declared,
    ) -> Result<O::Reply, ReplyError> {
        let script_call = call.script_call(PubSubMode::Plain, declared);
        let reply = self.setting.scripts.call_in(None, script_call, self.now_us);
        Ok(call.read(&reply.unwrap())?.1)
    }

    /// Like [`ask_by`](Self::ask_by), under a condition; returns the server's error if it refuses the call.
    pub(super) fn ask_in<O: Operation>(
        &mut self,
        trouble: Option<Trouble>,
        call: &O,
        way: PubSubMode,
    ) -> Result<O::Reply, String> {
        let script_call = call.script_call(way, Declared::All);
        let scripts = &mut self.setting.scripts;
        let reply = scripts.call_in(trouble, script_call, self.now_us);
        reply.map(|reply| call.read(&reply).unwrap().1)
    }

    /// Like [`ask`](Self::ask), by the fast paths of the script alone. `None` if they leave it to the rest.
    pub(super) fn ask_fast<O: Operation>(&mut self, call: &O, way: PubSubMode) -> Option<O::Reply> {
        let script_call = call.script_call(way, Declared::All);
        let reply = self.setting.scripts.call_fast(script_call, self.now_us)?;
        Some(call.read(&reply).unwrap().1)
    }

    /// Returns the state of the first lock.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.setting.scripts.queue_snapshot(&self.keys[0]);
        self.setting.scripts.send().remove(0)
    }

    /// Runs a command that does not concern the rules.
    pub(super) fn command(&mut self, command: &[&str]) {
        self.setting.scripts.command(command);
        self.setting.scripts.send();
    }
}
