//! Random calls under a clock of the test's own, made of the rules and of the scripts on a real server: the replies,
//! all data and all pushes must be the same after each.

mod edges;
mod lifetimes;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::lock::{Channels, Lock, Now};
use super::rules::Rules;
use crate::key::{ClientId, Keys, Owner, Request};
use crate::lease::{Fence, ServerTime, Ticket};
use crate::script::Operation;
use crate::store::{
    Acquire, Acquired, Inspect, Mode, Release, ReleaseOutcome, ReleaseWhat, Renew, Renewed, SpinAcquire,
    SpinAcquired, SpinRelease,
};
use server::Scripts;

const LOCKS: usize = 2;
const CLIENTS: usize = 3;
const REQUESTS: usize = 15;
const START_US: u64 = 1_700_000_000_123_456;
/// Few enough for a queue of the test to reach it.
const BOUND: usize = 3;
/// The spin lock's time is the server's own, whatever the test's clock shows: it must not run out.
const SPIN_LEASE: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        lock: usize,
        request: usize,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: i64,
        ticket_us: Option<i64>,
        heartbeat_ms: u64,
    },
    Release {
        lock: usize,
        request: usize,
        what: What,
    },
    Renew {
        lock: usize,
        request: usize,
        fence: Which,
        lease_ms: u64,
        cap_ms: i64,
    },
    Inspect {
        lock: usize,
    },
    SpinAcquire {
        lock: usize,
        owner: usize,
    },
    SpinRelease {
        lock: usize,
        owner: usize,
    },
    Subscribe {
        lock: usize,
        client: usize,
    },
    Unsubscribe {
        lock: usize,
        client: usize,
    },
    Tick {
        us: i64,
    },
}

#[derive(Clone, Copy, Debug)]
enum What {
    Grant(Which),
    Out,
    Force(Which),
}

/// A fence: the lock's own, or one that it had before.
#[derive(Clone, Copy, Debug)]
enum Which {
    Present,
    Former,
}

fn step() -> impl Strategy<Value = Step> {
    let lock = || 0..LOCKS;
    let request = || 0..REQUESTS;
    let client = || 0..CLIENTS;
    let lease = || prop::sample::select(vec![100, 1_000, 5_000, 30_000]);
    let which = || prop_oneof![4 => Just(Which::Present), 1 => Just(Which::Former)];
    let mode = prop_oneof![
        1 => Just(Mode::Try), 2 => Just(Mode::Wait), 4 => Just(Mode::Open), 3 => Just(Mode::Question)
    ];
    let not_after = prop_oneof![9 => Just(2_000), 1 => -100..100_i64];
    let ticket = prop_oneof![3 => Just(None), 1 => (-5_000_000..1_000_000_i64).prop_map(Some)];
    let heartbeat = prop::sample::select(vec![1_000, 15_000]);
    let what = prop_oneof![
        4 => which().prop_map(What::Grant), 2 => Just(What::Out), 1 => which().prop_map(What::Force)
    ];
    let cap = prop_oneof![3 => Just(86_400_000), 1 => -1_000..10_000_i64];
    let tick = prop_oneof![
        4 => 0..2_000_i64, 3 => 0..1_500_000_i64, 2 => 0..12_000_000_i64, 1 => -6_000_000..0_i64
    ];
    prop_oneof![
        12 => (lock(), request(), mode, lease(), not_after, ticket, heartbeat).prop_map(
            |(lock, request, mode, lease_ms, not_after_ms, ticket_us, heartbeat_ms)| Step::Acquire {
                lock, request, mode, lease_ms, not_after_ms, ticket_us, heartbeat_ms
            }
        ),
        7 => (lock(), request(), what)
            .prop_map(|(lock, request, what)| Step::Release { lock, request, what }),
        4 => (lock(), request(), which(), lease(), cap).prop_map(
            |(lock, request, fence, lease_ms, cap_ms)| Step::Renew { lock, request, fence, lease_ms, cap_ms }
        ),
        1 => lock().prop_map(|lock| Step::Inspect { lock }),
        1 => (lock(), client()).prop_map(|(lock, owner)| Step::SpinAcquire { lock, owner }),
        1 => (lock(), client()).prop_map(|(lock, owner)| Step::SpinRelease { lock, owner }),
        3 => (lock(), client()).prop_map(|(lock, client)| Step::Subscribe { lock, client }),
        1 => (lock(), client()).prop_map(|(lock, client)| Step::Unsubscribe { lock, client }),
        4 => tick.prop_map(|us| Step::Tick { us }),
    ]
}

/// The model's side of pub/sub.
#[derive(Default)]
struct Wires {
    subscribed: BTreeSet<String>,
    messages: Vec<(String, String)>,
}

impl Channels for Wires {
    fn receivers(&self, channel: &str) -> usize {
        usize::from(self.subscribed.contains(channel))
    }

    fn publish(&mut self, channel: &str, message: &str) -> usize {
        let receivers = self.receivers(channel);
        if receivers > 0 {
            self.messages.push((channel.to_owned(), message.to_owned()));
        }
        receivers
    }
}

/// One run of both.
struct World<'a> {
    scripts: &'a mut Scripts,
    rules: Rules,
    wires: Wires,
    now_us: u64,
    keys: Vec<Arc<Keys>>,
    clients: Vec<ClientId>,
    owners: Vec<Owner>,
    requests: Vec<Request>,
    fences: Vec<Vec<Fence>>,
}

impl World<'_> {
    fn new(scripts: &mut Scripts) -> World<'_> {
        scripts.reset();
        let clients: Vec<_> = (1..=CLIENTS as u128).map(ClientId::from_number).collect();
        let owners: Vec<_> = (0..CLIENTS).map(|n| Owner::named(n.to_string())).collect();
        let requests = (0..REQUESTS).map(|n| {
            // Each client has requests that are their own owners, and of an owner that all clients share.
            let owner = (n % 5 >= 3).then(|| &owners[n % 2]);
            let grant = Duration::from_millis([100, 1_000, 5_000][n % 4 % 3]);
            Request::new(&clients[n % CLIENTS], grant, n as u64, owner)
        });
        World {
            rules: Rules::with_bound(BOUND),
            wires: Wires::default(),
            now_us: START_US,
            keys: (0..LOCKS)
                .map(|n| Arc::new(Keys::new("fairlock", &format!("lock{n}")).unwrap()))
                .collect(),
            requests: requests.collect(),
            fences: vec![vec![Fence::new(1).unwrap()]; LOCKS],
            clients,
            owners,
            scripts,
        }
    }

    fn now(&self) -> Now {
        Now {
            us: self.now_us,
            ms: self.now_us / 1000,
        }
    }

    /// The server time that is so far from now.
    fn time_at(&self, offset_ms: i64) -> ServerTime {
        ServerTime::from_ms(self.now().ms.checked_add_signed(offset_ms).unwrap())
    }

    fn fence(&self, lock: usize, which: Which) -> Fence {
        let fences = &self.fences[lock];
        match which {
            Which::Present => fences[fences.len() - 1],
            Which::Former => fences[fences.len().saturating_sub(2)],
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Acquire {
                lock,
                request,
                mode,
                lease_ms,
                not_after_ms,
                ticket_us,
                heartbeat_ms,
            } => {
                let ticket = |us| Ticket(self.now_us.checked_add_signed(us).unwrap());
                let call = Acquire {
                    keys: self.keys[lock].clone(),
                    request: self.requests[request].clone(),
                    mode,
                    lease: Duration::from_millis(lease_ms),
                    not_after: self.time_at(not_after_ms),
                    ticket: ticket_us.map(ticket),
                    heartbeat: Duration::from_millis(heartbeat_ms),
                };
                let expected = self.rules.acquire(&call, self.now(), &mut self.wires);
                self.same(&call, &expected);
            }
            Step::Release { lock, request, what } => {
                let call = Release {
                    keys: self.keys[lock].clone(),
                    request: self.requests[request].clone(),
                    what: match what {
                        What::Grant(which) => ReleaseWhat::Grant(self.fence(lock, which)),
                        What::Out => ReleaseWhat::Out,
                        What::Force(which) => ReleaseWhat::Force(self.fence(lock, which)),
                    },
                };
                let expected = self.rules.release(&call, self.now(), &mut self.wires);
                self.same(&call, &expected);
            }
            Step::Renew {
                lock,
                request,
                fence,
                lease_ms,
                cap_ms,
            } => {
                let call = Renew {
                    keys: self.keys[lock].clone(),
                    request: self.requests[request].clone(),
                    fence: self.fence(lock, fence),
                    lease: Duration::from_millis(lease_ms),
                    cap: self.time_at(cap_ms),
                };
                let expected = self.rules.renew(&call, self.now());
                self.same(&call, &expected);
            }
            Step::Inspect { lock } => {
                let call = Inspect {
                    keys: self.keys[lock].clone(),
                    request: self.requests[0].clone(),
                };
                let expected = self.rules.inspect(&call, self.now());
                self.same(&call, &expected);
            }
            Step::SpinAcquire { lock, owner } => {
                let call = SpinAcquire {
                    keys: self.keys[lock].clone(),
                    owner: self.owners[owner].clone(),
                    lease: SPIN_LEASE,
                };
                let expected = self.rules.spin_acquire(&call, self.now());
                let found = self.ask(&call);
                match (&found, &expected) {
                    (SpinAcquired::Busy(_), SpinAcquired::Busy(_)) => {}
                    _ => assert_eq!(found, expected),
                }
            }
            Step::SpinRelease { lock, owner } => {
                let call = SpinRelease {
                    keys: self.keys[lock].clone(),
                    owner: self.owners[owner].clone(),
                };
                let expected = self.rules.spin_release(&call, self.now());
                self.same(&call, &expected);
            }
            Step::Subscribe { lock, client } => {
                let channel = self.keys[lock].channel_of(&self.clients[client]).to_string();
                self.scripts.subscribe(&channel);
                self.wires.subscribed.insert(channel);
            }
            Step::Unsubscribe { lock, client } => {
                let channel = self.keys[lock].channel_of(&self.clients[client]).to_string();
                if self.wires.subscribed.remove(&channel) {
                    self.scripts.unsubscribe(&channel);
                }
            }
            Step::Tick { us } => self.now_us = self.now_us.checked_add_signed(us).unwrap(),
        }
        assert_eq!(
            self.scripts.messages(),
            std::mem::take(&mut self.wires.messages),
            "the pushes"
        );
        self.compare_data();
    }

    fn ask<O: Operation>(&mut self, call: &O) -> O::Reply {
        let reply = self.scripts.call(&call.invocation(), self.now_us);
        let (time, reply) = call.read(&reply).unwrap();
        assert_eq!(time.ms(), self.now().ms, "the reply's time");
        reply
    }

    fn same<O: Operation>(&mut self, call: &O, expected: &O::Reply)
    where
        O::Reply: PartialEq + Debug,
    {
        assert_eq!(&self.ask(call), expected, "the reply");
    }

    fn compare_data(&mut self) {
        for (n, keys) in self.keys.iter().enumerate() {
            let lock = self.rules.locks.get(&keys.lock);
            let fence = lock
                .and_then(|lock| lock.written.as_ref())
                .map(|holder| holder.fence);
            if let Some(fence) = fence.and_then(Fence::new).filter(|f| !self.fences[n].contains(f)) {
                self.fences[n].push(fence);
            }
            let spin = self.rules.spins.get(&keys.spin);
            let expected = [
                lock.map(hash).unwrap_or_default(),
                lock.map(queue).unwrap_or_default(),
                lock.map(clients).unwrap_or_default(),
                spin.map(|spin| vec![spin.owner.to_string(), spin.count.to_string()])
                    .unwrap_or_default(),
            ];
            assert_eq!(self.scripts.data(keys), expected, "the data of lock {n}");
        }
    }
}

/// The lock's hash as `HGETALL` tells it, by field.
fn hash(lock: &Lock) -> Vec<String> {
    let Some(holder) = &lock.written else {
        return Vec::new();
    };
    let request = holder.request.as_ref();
    let first = request.and_then(|request| holder.holds.get(request));
    let mut fields = BTreeMap::from([
        ("v".to_owned(), "1".to_owned()),
        ("fence".to_owned(), holder.fence.to_string()),
        (
            "owner".to_owned(),
            holder.owner.as_ref().map_or("", Owner::as_str).to_owned(),
        ),
        (
            "request".to_owned(),
            request.map_or("", Request::as_str).to_owned(),
        ),
        (
            "until".to_owned(),
            holder.latest().map_or(0, |(_, hold)| hold.deadline).to_string(),
        ),
        ("lease".to_owned(), first.map_or(0, |hold| hold.lease).to_string()),
        ("pushed".to_owned(), u8::from(holder.pushed).to_string()),
        ("holds".to_owned(), holder.holds.len().to_string()),
    ]);
    if holder.holds.len() > 1 {
        for (request, hold) in &holder.holds {
            fields.insert(
                format!("h:{request}"),
                format!("{} {}", hold.deadline, hold.lease),
            );
        }
    }
    fields
        .into_iter()
        .flat_map(|(field, value)| [field, value])
        .collect()
}

fn queue(lock: &Lock) -> Vec<String> {
    let order = lock.queue.order.iter();
    order
        .flat_map(|(ticket, request)| [request.to_string(), ticket.to_string()])
        .collect()
}

fn clients(lock: &Lock) -> Vec<String> {
    let order: BTreeSet<_> = lock
        .clients
        .iter()
        .map(|(client, until)| (until, client))
        .collect();
    order
        .into_iter()
        .flat_map(|(until, client)| [client.clone(), until.to_string()])
        .collect()
}

#[test]
fn the_scripts_do_what_the_rules_say() {
    let mut scripts = Scripts::start(BOUND);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let scripts = std::cell::RefCell::new(&mut scripts);
    let outcome = TestRunner::new(config).run(&prop::collection::vec(step(), 1..120), |steps| {
        let mut scripts = scripts.borrow_mut();
        let mut world = World::new(&mut scripts);
        for step in &steps {
            world.step(step);
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
