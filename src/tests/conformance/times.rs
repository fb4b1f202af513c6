//! How long the scripts keep the server busy, however many hold, wait or have died.
//!
//! Everything else waits while a script runs. So each does a bounded part of the work, and says that it must
//! be called again. `FAIRLOCK_TEST_SIZES` names other sizes, and `FAIRLOCK_TEST_LONGEST_MS` the time that no
//! script may take of the server's processor. Without it, the times are only printed.

use std::sync::Arc;
use std::time::Duration;

use super::server::Scripts;
use super::world::{START_US, client};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::rules::BOUND;
use crate::protocol::rules::lock::MAX_HOLDS;
use crate::protocol::script::{Declared, PubSubMode, ScriptCall};
use crate::protocol::{
    Acquire, Acquired, Inspect, MAX_WITHDRAWN, Mode, Operation, Release, ReleaseWhat, Renew, Withdraw,
};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::permits::MOST_PERMITS;
use crate::types::status::Kind;

const SIZES: [u64; 3] = [10, 100, 1_000];
const LEASE: Duration = Duration::from_secs(30);
const SECOND_US: u64 = 1_000_000;
/// No client of the others has this number.
const OWN: u64 = 1_000_000;
/// How many calls are sent at once.
const BATCH: u64 = 500;
/// Far more calls than any scene needs.
const MANY_CALLS: u64 = 10_000;

/// A server, and what is measured there.
struct Scene {
    scripts: Scripts,
    keys: Arc<Keys>,
    now_us: u64,
    /// How many hold, wait, or have died.
    size: u64,
    /// The longest time that a script took since the last row, and the number of calls.
    longest: Duration,
    calls: u32,
}

fn client_of(n: u64) -> ClientId {
    client(usize::try_from(n).expect("a small number"))
}

/// A request of client `n`.
fn request(kind: Kind, n: u64, weight: u32) -> RequestId {
    let (client, claim) = (client_of(n), Duration::from_secs(5));
    match kind {
        Kind::Lock => RequestId::new(&client, claim, n, None),
        Kind::Semaphore | Kind::ReadWrite => RequestId::with_permits(&client, claim, n, weight, MOST_PERMITS),
    }
}

impl Scene {
    fn of(kind: Kind, size: u64) -> Scene {
        let mut scripts = Scripts::start(BOUND, &client(0));
        // The server's own work in the background would be counted too.
        scripts.command(&["CONFIG", "SET", "activerehashing", "no"]);
        scripts.command(&["CONFIG", "SET", "hz", "1"]);
        scripts.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]);
        scripts.send();
        Scene {
            scripts,
            keys: Arc::new(Keys::of_kind(kind, "fairlock", "many").unwrap()),
            now_us: START_US,
            size,
            longest: Duration::ZERO,
            calls: 0,
        }
    }

    fn acquisition(&self, n: u64, weight: u32) -> Acquire {
        Acquire {
            keys: self.keys.clone(),
            request: request(self.keys.kind, n, weight),
            mode: Mode::Ask,
            lease: LEASE,
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            floor: None,
        }
    }

    fn releasing(&self, request: RequestId, what: ReleaseWhat) -> Release {
        Release {
            keys: self.keys.clone(),
            request,
            what,
            floor: None,
        }
    }

    fn inspection(&self) -> Inspect {
        Inspect {
            keys: self.keys.clone(),
            request: request(Kind::Lock, OWN, 1),
        }
    }

    fn withdrawal(&self, requests: impl Iterator<Item = u64>) -> Withdraw {
        let requests = requests.map(|n| request(self.keys.kind, n, 1));
        Withdraw {
            keys: self.keys.clone(),
            requests: requests.take(MAX_WITHDRAWN).collect(),
            floor: None,
        }
    }

    /// Makes a call, and notes how long the server was busy with it.
    fn ask<O: Operation>(&mut self, call: &O) -> O::Reply {
        self.now_us += 1;
        let script_call = call.script_call(PubSubMode::Plain, Declared::All);
        let before = self.scripts.busy();
        let reply = self.scripts.call_in(None, script_call, self.now_us);
        self.longest = self.longest.max(self.scripts.busy() - before);
        self.calls += 1;
        call.read(&reply.unwrap()).unwrap().1
    }

    /// Repeats a call as a client does, until it is complete.
    fn complete<O: Operation>(&mut self, call: &O, is_incomplete: impl Fn(&O::Reply) -> bool) -> O::Reply {
        for _ in 0..MANY_CALLS {
            let reply = self.ask(call);
            if !is_incomplete(&reply) {
                return reply;
            }
        }
        panic!("still incomplete after {MANY_CALLS} calls");
    }

    fn acquire(&mut self, n: u64, weight: u32) -> Acquired {
        let call = self.acquisition(n, weight);
        self.complete(&call, |reply| *reply == Acquired::Incomplete)
    }

    fn release(&mut self, request: RequestId, fence: Fence) {
        let call = self.releasing(request, ReleaseWhat::Grant(fence));
        self.complete(&call, |reply| reply.more);
    }

    fn force(&mut self, fence: Fence) {
        let mut from = Some(0);
        while let Some(place) = from {
            let what = ReleaseWhat::Force { fence, from: place };
            let reply = self.ask(&self.releasing(request(Kind::Lock, OWN, 1), what));
            from = reply.searched;
        }
    }

    fn granted(&mut self, n: u64, weight: u32) -> Fence {
        match self.acquire(n, weight) {
            Acquired::Granted { grant, .. } => grant.fence,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a call for each of the others, which is not measured.
    fn all(&mut self, call: impl Fn(&Scene, u64) -> ScriptCall) {
        for n in 0..self.size {
            self.now_us += 1;
            let script_call = call(self, n);
            self.scripts.call(script_call, self.now_us);
            if n % BATCH == BATCH - 1 {
                self.scripts.send();
            }
        }
        self.scripts.send();
    }

    fn all_ask(&mut self) {
        self.all(|scene, n| {
            scene
                .acquisition(n, 1)
                .script_call(PubSubMode::Plain, Declared::All)
        });
    }

    fn all_listen(&mut self) {
        for n in 0..self.size {
            let channel = self.keys.channel_of(&client_of(n));
            self.scripts.command(&["SUBSCRIBE", &channel]);
        }
        self.scripts.send();
    }

    fn command(&mut self, command: &[&str]) {
        self.scripts.command(command);
        self.scripts.send();
    }

    /// What follows is measured.
    fn starts(&mut self) {
        (self.longest, self.calls) = (Duration::ZERO, 0);
    }

    /// Ends a row of the table.
    fn row(&mut self, rows: &mut Vec<Row>, what: &str) {
        let of = match self.keys.kind {
            Kind::Lock => "lock",
            Kind::Semaphore | Kind::ReadWrite => "permits",
        };
        rows.push(Row {
            what: format!("{of}: {what}"),
            size: self.size,
            longest: std::mem::take(&mut self.longest),
            calls: std::mem::take(&mut self.calls),
        });
    }
}

struct Row {
    what: String,
    size: u64,
    longest: Duration,
    calls: u32,
}

/// As many readers hold.
fn held(size: u64) -> Scene {
    let mut scene = Scene::of(Kind::ReadWrite, size);
    scene.all_ask();
    scene.starts();
    scene
}

fn many_holds(size: u64, rows: &mut Vec<Row>) {
    let mut scene = held(size - 1);
    let inspection = scene.inspection();
    scene.ask(&inspection);
    scene.row(rows, "status, many hold");
    let fence = scene.granted(OWN, 1);
    scene.row(rows, "acquire, many hold");
    let renew = Renew {
        keys: scene.keys.clone(),
        request: request(Kind::ReadWrite, OWN, 1),
        fence,
        lease: LEASE,
        cap: ServerTime::MAX,
        on_demand: false,
    };
    scene.ask(&renew);
    scene.row(rows, "renew, many hold");
    scene.force(fence);
    scene.row(rows, "forced release");
    let withdraw = scene.withdrawal(0..size);
    scene.complete(&withdraw, |reply| reply.more);
    scene.row(rows, "withdrawal of holds");
}

fn timers(size: u64, rows: &mut Vec<Row>) {
    let mut scene = held(size);
    let timers = scene.keys.timers.clone();
    scene.command(&["DEL", &timers]);
    scene.acquire(OWN, MOST_PERMITS);
    scene.row(rows, "timers are lost");
    scene.now_us -= 3_600 * SECOND_US;
    scene.acquire(OWN, MOST_PERMITS);
    scene.row(rows, "clock set back");
    scene.now_us += 10 * SECOND_US;
    scene.all(|scene, n| {
        let mut call = scene.acquisition(n, 1);
        call.mode = Mode::Ask;
        call.script_call(PubSubMode::Plain, Declared::All)
    });
    scene.now_us += 3_600 * SECOND_US;
    scene.granted(OWN, MOST_PERMITS);
    scene.row(rows, "many holds are over");
}

fn early(size: u64, rows: &mut Vec<Row>) {
    let mut scene = held(size);
    // The clock is later by 1 µs at each call, and the fences are its times.
    let last_us = scene.now_us;
    scene.now_us += 25 * SECOND_US;
    scene.all(|scene, n| {
        let renew = Renew {
            keys: scene.keys.clone(),
            request: request(Kind::ReadWrite, n, 1),
            fence: Fence::new(last_us - size + 1 + n).unwrap(),
            lease: LEASE,
            cap: ServerTime::MAX,
            on_demand: false,
        };
        renew.script_call(PubSubMode::Plain, Declared::All)
    });
    scene.starts();
    scene.now_us += 20 * SECOND_US;
    scene.acquire(OWN, MOST_PERMITS);
    scene.row(rows, "many timers are early");
}

/// One holds, and so many wait.
fn queued(kind: Kind, size: u64, they_listen: bool) -> (Scene, Fence) {
    let mut scene = Scene::of(kind, size);
    if they_listen {
        scene.all_listen();
    }
    let fence = scene.granted(OWN, MOST_PERMITS);
    scene.all_ask();
    scene.starts();
    (scene, fence)
}

fn many_wait(kind: Kind, size: u64, rows: &mut Vec<Row>) {
    let (mut scene, fence) = queued(kind, size, true);
    let inspection = scene.inspection();
    scene.ask(&inspection);
    scene.row(rows, "status, many wait");
    let withdraw = scene.withdrawal(size / 2..size);
    scene.complete(&withdraw, |reply| reply.more);
    scene.row(rows, "withdrawal of waiters");
    scene.release(request(kind, OWN, MOST_PERMITS), fence);
    scene.row(rows, "release, many wait");

    let (mut scene, fence) = queued(kind, size, false);
    scene.release(request(kind, OWN, MOST_PERMITS), fence);
    scene.row(rows, "release, many dead waiters");
}

/// The most holds that an owner may have.
fn reentrant(rows: &mut Vec<Row>) {
    let most = MAX_HOLDS as u64;
    let mut scene = Scene::of(Kind::Lock, most);
    let owner = Owner::named("many");
    let owned = |n| RequestId::new(&client_of(1), Duration::from_secs(5), n, Some(&owner));
    let mut fence = None;
    for n in 0..most {
        let mut call = scene.acquisition(0, 1);
        call.request = owned(n);
        match scene.ask(&call) {
            Acquired::Granted { grant, .. } => fence = Some(grant.fence),
            other => panic!("{other:?}"),
        }
    }
    scene.row(rows, "acquire, many holds of one");
    let inspection = scene.inspection();
    scene.ask(&inspection);
    scene.row(rows, "status, many holds of one");
    scene.force(fence.unwrap());
    scene.row(rows, "forced release of all holds");
}

#[test]
fn no_script_keeps_the_server_busy_for_long() {
    let setting = |name| std::env::var(name).ok();
    let sizes = setting("FAIRLOCK_TEST_SIZES").map_or(SIZES.to_vec(), |sizes| {
        let sizes = sizes.split(',').map(|size| size.parse().expect("a size"));
        sizes.collect()
    });
    let most = setting("FAIRLOCK_TEST_LONGEST_MS").map(|ms| Duration::from_millis(ms.parse().expect("ms")));
    let mut rows = Vec::new();
    println!("{:<36} {:>7} {:>8} {:>8}", "", "of", "µs", "calls");
    for size in sizes {
        let before = rows.len();
        many_holds(size, &mut rows);
        timers(size, &mut rows);
        early(size, &mut rows);
        many_wait(Kind::ReadWrite, size, &mut rows);
        many_wait(Kind::Lock, size, &mut rows);
        reentrant(&mut rows);
        for row in &rows[before..] {
            let us = row.longest.as_micros();
            println!("{:<36} {:>7} {us:>8} {:>8}", row.what, row.size, row.calls);
        }
    }
    if let Some(most) = most {
        let late = rows.iter().filter(|row| row.longest > most);
        let late: Vec<_> = late.map(|row| (&row.what, row.size, row.longest)).collect();
        assert!(late.is_empty(), "longer than {most:?}: {late:?}");
    }
}
