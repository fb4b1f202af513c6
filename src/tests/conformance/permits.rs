//! Random calls for the permits of one semaphore or read/write lock, by the scripts and by the rules.

mod edges;
mod step;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::step::{CLIENTS, Call, Capacities, Key, PickFence, PickRequest, REQUESTS, Step, What};
use super::expected::{Check, Expected};
use super::model::{Modelled, PubSub};
use super::server::Snapshot;
use super::step::Trouble;
use super::world::{START_US, Setting, client};
use super::{dump, run_at_random};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::rules::Rules;
use crate::protocol::rules::permits::Permits;
use crate::protocol::rules::{Channels, Now, Queue, RETENTION_MS};
use crate::protocol::script::{Declared, PubSubMode, ReplyError};
use crate::protocol::{Acquire, Acquired, Inspect, Operation, Release, ReleaseWhat, Renew, Shrink, Withdraw};
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::permits::MOST_PERMITS;
use crate::types::status::Kind;

/// Number of runs.
const CASES: u32 = 1_000;
/// From this number of runs on, every kind of reply must occur.
const ENOUGH_CASES: u32 = 5_000;

/// The kinds of replies that must occur in many runs.
const KINDS: [&str; 25] = [
    "a client is absent",
    "granted by an earlier push",
    "granted",
    "busy",
    "queued",
    "expired call",
    "an acquire, incomplete",
    "a release, push denied",
    "a release, incomplete",
    "released",
    "a release, taken",
    "withdrawn",
    "withdrawn, incomplete",
    "renewed",
    "a renewal, taken",
    "inspected, held",
    "inspected, kept",
    "inspected, free",
    "a push of one grant",
    "a push of several grants",
    "a push of permits that stay taken",
    "several pushes",
    "granted over a full request",
    "refused: out of memory",
    "refused: no writes",
];

#[test]
fn scripts_of_permits_follow_the_rules() {
    run_at_random(
        CASES,
        (ENOUGH_CASES, &KINDS),
        step::cases(),
        |setting, (capacities, steps)| World::new(setting, capacities).run(&steps),
    );
}

struct World<'a> {
    setting: &'a mut Setting,
    rules: Rules,
    pub_sub: PubSub,
    started: Instant,
    now_us: u64,
    keys: Arc<Keys>,
    clients: Vec<ClientId>,
    requests: Vec<RequestId>,
    /// A fence that was granted before, or the least one.
    former: Fence,
    /// What the queued snapshots must show.
    expected: Vec<Expected>,
}

/// Whether a call that was answered like this leaves no permits for a request that waits.
trait OfPermits: Modelled {
    fn leaves_none(reply: &Self::Reply) -> bool;
}

impl OfPermits for Acquire {
    fn leaves_none(reply: &Acquired) -> bool {
        !matches!(reply, Acquired::Incomplete | Acquired::ExpiredCall)
    }
}

impl OfPermits for Release {
    fn leaves_none(reply: &Self::Reply) -> bool {
        !reply.more
    }
}

impl OfPermits for Shrink {
    fn leaves_none(reply: &Self::Reply) -> bool {
        !reply.more
    }
}

impl OfPermits for Withdraw {
    fn leaves_none(reply: &Self::Reply) -> bool {
        !reply.more
    }
}

impl OfPermits for Renew {
    fn leaves_none(_: &Self::Reply) -> bool {
        false
    }
}

impl OfPermits for Inspect {
    fn leaves_none(_: &Self::Reply) -> bool {
        false
    }
}

impl World<'_> {
    fn new(setting: &mut Setting, capacities: Capacities) -> World<'_> {
        setting.scripts.reset();
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let requests = (0..REQUESTS).map(|n| {
            let claim = Duration::from_millis([100, 1_000, 5_000][n / CLIENTS % 3]);
            let (weight, capacity) = capacities.of(n);
            RequestId::with_permits(&clients[n % CLIENTS], claim, n as u64, weight, capacity)
        });
        World {
            rules: Rules::new(setting.bound),
            pub_sub: PubSub::default(),
            started: Instant::now(),
            now_us: START_US,
            keys: Arc::new(Keys::of_kind(Kind::Semaphore, "fairlock", "permits").unwrap()),
            requests: requests.collect(),
            former: Fence::new(1).unwrap(),
            expected: Vec::new(),
            clients,
            setting,
        }
    }

    /// Takes the steps, and compares all data after each. Then gives everything back.
    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        self.now_us += 1_000_000_000;
        let withdraw = Withdraw {
            keys: self.keys.clone(),
            requests: self.requests.clone(),
            floor: None,
        };
        while self.permits().used > 0 || self.permits().queue.len() > 0 {
            self.make(withdraw.clone(), None);
        }
        self.check();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Call { ref call, trouble } => self.call(call, trouble),
            Step::Subscribe { client } => {
                let channel = self.keys.channel_of(&self.clients[client]);
                self.pub_sub.subscribed.insert(channel.to_string());
                self.command(&["SUBSCRIBE", &channel]);
            }
            Step::Unsubscribe { client } => {
                let channel = self.keys.channel_of(&self.clients[client]);
                self.pub_sub.subscribed.remove(&*channel);
                self.command(&["UNSUBSCRIBE", &channel]);
            }
            Step::Time { us } => self.now_us = self.now_us.checked_add_signed(us).unwrap(),
            Step::Delete { key } => self.delete(key),
        }
    }

    fn delete(&mut self, key: Key) {
        let keys = self.keys.clone();
        let permits = self.rules.permits(&keys.lock);
        let key = match key {
            Key::All => {
                *permits = Permits::default();
                return self.command(&["FLUSHALL"]);
            }
            Key::Lock => {
                let (timers, queue) = (&mut permits.timers, &mut permits.queue);
                *permits = Permits {
                    timers: std::mem::take(timers),
                    queue: std::mem::take(queue),
                    ..Permits::default()
                };
                &keys.lock
            }
            Key::Queue => {
                permits.queue = Queue::default();
                &keys.queue
            }
            Key::Timers => {
                permits.timers = Queue::default();
                &keys.timers
            }
        };
        self.command(&["DEL", key]);
    }

    /// Queues a command of an operator, whose effect the model already has.
    fn command(&mut self, command: &[&str]) {
        self.setting.scripts.command(command);
        self.expect(None);
    }

    fn call(&mut self, call: &Call, trouble: Option<Trouble>) {
        let keys = self.keys.clone();
        match *call {
            Call::Acquire {
                request,
                mode,
                lease_ms,
                not_after_ms,
                ticket_us,
            } => {
                let call = Acquire {
                    keys,
                    request: self.request(request),
                    mode,
                    lease: Duration::from_millis(lease_ms),
                    not_after: Arc::new(self.time_at(not_after_ms)),
                    ticket: ticket_us.map(|us| Ticket(self.now_us.checked_add_signed(us).unwrap())),
                    floor: None,
                };
                self.make(call, trouble);
            }
            Call::Release { request, fence, what } => {
                let (mut request, mut fence) = (self.request(request), self.fence(request, fence));
                let what = match what {
                    What::Grant => ReleaseWhat::Grant(fence),
                    What::Keep(most_ms, until_ms) => ReleaseWhat::Keep {
                        fence,
                        at_least: Duration::from_millis(most_ms),
                        until: self.time_at(until_ms),
                    },
                    What::Force(n) => {
                        let holds = self.permits().holds.values();
                        fence = holds
                            .cycle()
                            .nth(n)
                            .and_then(|hold| Fence::new(hold.fence))
                            .unwrap_or(fence);
                        request = RequestId::new(&self.clients[0], Duration::ZERO, u64::MAX, None);
                        ReleaseWhat::Force { fence, from: 0 }
                    }
                    What::Shrink(permits) => {
                        let call = Shrink {
                            keys,
                            request,
                            fence,
                            permits,
                        };
                        return self.make(call, trouble);
                    }
                };
                let call = Release {
                    keys,
                    request,
                    what,
                    floor: None,
                };
                self.make(call, trouble);
            }
            Call::Withdraw { ref requests } => {
                let requests = requests.iter().map(|request| self.request(*request)).collect();
                let call = Withdraw {
                    keys,
                    requests,
                    floor: None,
                };
                self.make(call, trouble);
            }
            Call::Renew {
                request,
                fence,
                lease_ms,
                cap_ms,
            } => {
                let call = Renew {
                    keys,
                    request: self.request(request),
                    fence: self.fence(request, fence),
                    lease: Duration::from_millis(lease_ms),
                    cap: self.time_at(cap_ms),
                    on_demand: false,
                };
                self.make(call, trouble);
            }
            Call::Inspect => {
                let request = RequestId::new(&self.clients[0], Duration::ZERO, 1, None);
                self.make(Inspect { keys, request }, trouble);
            }
        }
    }

    /// Makes the call by the script and by the rules.
    fn make<O: OfPermits>(&mut self, call: O, trouble: Option<Trouble>) {
        self.setting.calls += 1;
        let script_call = call.script_call(PubSubMode::Plain, Declared::All);
        let Some(trouble) = trouble else {
            self.setting.scripts.call(script_call, self.now_us);
            let check = self.outcome(call, None);
            return self.expect(Some(check));
        };
        // Only the server decides whether it refuses a call. If it does, it must not have changed anything.
        self.check();
        match self
            .setting
            .scripts
            .call_in(Some(trouble), script_call, self.now_us)
        {
            Err(error) => {
                self.setting.reached.insert(trouble.refused::<O>(&error));
            }
            Ok(reply) => self.outcome(call, Some(trouble))(Ok(reply)),
        }
        self.expect(None);
    }

    /// Applies the rules, and returns a check of the server's reply.
    fn outcome<O: OfPermits>(&mut self, call: O, trouble: Option<Trouble>) -> Check {
        let now = self.now();
        self.pub_sub.allowed = (trouble == Some(Trouble::NoPublish)).then(|| self.clients[0].to_string());
        self.pub_sub.denied = false;
        let before: BTreeSet<_> = self.permits().holds.values().map(|hold| hold.fence).collect();
        let overtaken = self.permits().overtaken.clone();
        let expected = call.execute(&mut self.rules, now, &mut self.pub_sub);
        self.setting.reached.insert(O::kind(&expected));
        if self.permits().overtaken != overtaken {
            self.setting.reached.insert("granted over a full request");
        }
        self.check_promises(&before, O::leaves_none(&expected));
        Box::new(move |reply| {
            let (time, reply) = call.read(&reply.unwrap()).unwrap();
            assert_eq!(time.ms(), now.ms, "the reply's time");
            assert_eq!(reply, expected, "the reply of the server and that of the rules");
        })
    }

    /// What must be so after each call. `before` are the fences of the holds before it. After most calls, no
    /// permits are left for a request that waits.
    fn check_promises(&mut self, before: &BTreeSet<u64>, leaves_none: bool) {
        let keys = self.keys.clone();
        let permits = self.rules.permits(&keys.lock);
        let weights = permits.holds.values().map(|hold| hold.weight);
        assert_eq!(permits.used, weights.sum::<u32>(), "the permits in use");
        let last = permits.holds.iter().max_by_key(|(_, hold)| hold.fence);
        if let Some((request, hold)) = last.filter(|(_, hold)| !before.contains(&hold.fence)) {
            assert!(permits.used <= request.capacity(), "too many permits are in use");
            self.former = Fence::new(hold.fence).unwrap();
        }
        let mut slots = BTreeSet::new();
        for (request, hold) in &permits.holds {
            let is_new = hold
                .slot
                .is_none_or(|slot| slot < request.capacity() && slots.insert(slot));
            assert!(is_new, "{request} has the slot {:?}", hold.slot);
            let is_alone = hold.weight < MOST_PERMITS || permits.holds.len() == 1;
            assert!(is_alone, "a writer has others beside it");
        }
        let head = permits.queue.order.first().filter(|_| leaves_none);
        if let Some((_, head)) = head {
            let is_listening = self
                .pub_sub
                .subscribers(&keys.channel_of(&ClientId::from_wire(head.client())))
                > 0;
            let fits = permits.used + head.weight() <= head.capacity();
            let is_reachable = !permits.absent.has(head.client()) && is_listening;
            assert!(!(fits && is_reachable), "{head} waits for nothing");
        }
    }

    /// Queues a snapshot, which must match the present state of the rules.
    fn expect(&mut self, reply: Option<Check>) {
        self.setting.scripts.queue_snapshot(&self.keys);
        let pushes = std::mem::take(&mut self.pub_sub.messages);
        for (_, push) in &pushes {
            self.setting.reached.insert(match push.split(' ').count() {
                1 => "a push of permits that stay taken",
                5 => "a push of one grant",
                _ => "a push of several grants",
            });
        }
        if pushes.len() > 1 {
            self.setting.reached.insert("several pushes");
        }
        if !self.rules.permits(&self.keys.lock).absent.is_empty() {
            self.setting.reached.insert("a client is absent");
        }
        let now_ms = self.now().ms;
        let permits = self.rules.permits(&self.keys.lock);
        let holds = permits.holds.values();
        let left_ms = holds.map(|hold| hold.deadline.saturating_sub(now_ms).min(hold.lease));
        // A renewal after the clock was set back leaves the other holds to the next call.
        let is_settled = permits.seen <= now_ms;
        let kept_ms = left_ms
            .max()
            .filter(|_| is_settled)
            .map(|left_ms| left_ms + RETENTION_MS);
        self.expected.push(Expected {
            reply,
            data: dump::of_permits(permits),
            kept_ms,
            pushes,
            last_ms: RETENTION_MS,
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

    fn permits(&mut self) -> &Permits {
        self.rules.permits(&self.keys.lock)
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

    fn request(&mut self, picked: PickRequest) -> RequestId {
        let (PickRequest::Holder(n) | PickRequest::Any(n)) = picked;
        let named: Vec<_> = self
            .permits()
            .holds
            .keys()
            .filter(|request| !request.is_kept())
            .cloned()
            .collect();
        match named.get(n % named.len().max(1)) {
            Some(holder) if matches!(picked, PickRequest::Holder(_)) => holder.clone(),
            _ => self.requests[n].clone(),
        }
    }

    fn fence(&mut self, request: PickRequest, picked: PickFence) -> Fence {
        let request = self.request(request);
        let former = self.former;
        let permits = self.permits();
        let hold = permits
            .holds
            .get(&request)
            .or_else(|| permits.holds.get(&request.kept()));
        match picked {
            PickFence::Its => hold.and_then(|hold| Fence::new(hold.fence)).unwrap_or(former),
            PickFence::Former => former,
        }
    }
}
