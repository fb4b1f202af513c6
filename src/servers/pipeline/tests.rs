//! Tests of what is written and when, on a connection whose replies the tests control.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Builder, EnterGuard, Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::time::deadline_queue::GivesUp;

const MAX_IN_FLIGHT: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(2);

/// A command with a name, and the properties that its sender gives it.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    priority: Priority,
    gives_up: GivesUp,
    given_up: Arc<AtomicBool>,
}

impl Command for Named {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn gives_up(&self) -> GivesUp {
        self.gives_up
    }

    fn prepare(self, _: ConnectionId) -> Result<Named, Failure> {
        match self.given_up.load(Ordering::Relaxed) {
            true => Err(Failure::GivenUp),
            false => Ok(self),
        }
    }
}

/// The unanswered commands on the present connection, and all commands that were ever written.
#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Written>>, Option<Handle>);

#[derive(Default)]
struct Written {
    open: Vec<(String, oneshot::Sender<Result<String, WireError>>)>,
    all: Vec<String>,
    /// The kind of the runtime on which the last command was sent.
    on: Option<RuntimeFlavor>,
}

impl Wire for ByHand {
    type Command = Named;
    type Reply = String;

    fn send(&self, command: Named, clock: Clock) -> Reply<ByHand> {
        let (reply, answer) = oneshot::channel();
        let mut written = self.0.lock().unwrap();
        written.on = Handle::try_current().ok().map(|runtime| runtime.runtime_flavor());
        written.all.push(command.name.clone());
        written.open.push((command.name, reply));
        Box::pin(async move {
            let answer = answer.await.expect("the test answers every call");
            (answer, clock.now())
        })
    }

    fn enter(&self) -> Option<EnterGuard<'_>> {
        self.1.as_ref().map(Handle::enter)
    }

    fn load(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let wire = self.clone();
        Box::pin(async move {
            let (loaded, _) = wire.send(named("load", Priority::Keep), Clock::Boot).await;
            loaded.map(drop).map_err(|error| error.failure)
        })
    }

    fn ping(nonce: &str) -> Named {
        named(&format!("ping {nonce}"), Priority::Keep)
    }

    fn echoes(reply: &String, nonce: &str) -> bool {
        *reply == format!("ping {nonce}")
    }
}

impl ByHand {
    /// All commands that were written so far, except PINGs.
    fn written(&self) -> Vec<String> {
        let written = self.0.lock().unwrap();
        let is_call = |name: &&String| !name.starts_with("ping");
        written.all.iter().filter(is_call).cloned().collect()
    }

    /// Answers all unanswered commands with their names, and waits until everything that follows has
    /// happened.
    async fn answer(&self) {
        let open = std::mem::take(&mut self.0.lock().unwrap().open);
        for (name, reply) in open {
            let _ = reply.send(Ok(name));
        }
        settle().await;
    }

    async fn fail(&self, failure: &Failure, kind: WireErrorKind) {
        let open = self.0.lock().unwrap().open.len();
        for _ in 0..open {
            self.fail_nth(0, failure, kind).await;
        }
    }

    /// Fails the n-th unanswered command.
    async fn fail_nth(&self, nth: usize, failure: &Failure, kind: WireErrorKind) {
        let (_, reply) = self.0.lock().unwrap().open.remove(nth);
        let failure = failure.clone();
        let _ = reply.send(Err(WireError { failure, kind }));
        settle().await;
    }
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

fn named(name: &str, priority: Priority) -> Named {
    Named {
        name: name.to_owned(),
        priority,
        gives_up: GivesUp::Unknown,
        given_up: Arc::default(),
    }
}

struct Fixture {
    pipeline: Arc<Pipeline<ByHand>>,
    condemned: mpsc::UnboundedReceiver<Replacement>,
    wire: ByHand,
}

type Outcome = JoinHandle<Result<Response<String>, Failure>>;

impl Fixture {
    fn down() -> Fixture {
        let spawn = |task| drop(tokio::spawn(task));
        let (pipeline, condemned) = Pipeline::new(
            ServerId::default(),
            Clock::tokio(),
            PATIENCE,
            MAX_IN_FLIGHT,
            Box::new(spawn),
        );
        Fixture {
            pipeline,
            condemned,
            wire: ByHand::default(),
        }
    }

    fn open() -> Fixture {
        let fixture = Fixture::down();
        fixture.pipeline.open(fixture.wire.clone());
        fixture
    }

    async fn call(&self, command: Named) -> Outcome {
        let call = Arc::clone(&self.pipeline).call(move || command.clone());
        let outcome = tokio::spawn(call);
        settle().await;
        outcome
    }

    /// Sends a call that asks for a lock.
    async fn ask(&self, name: &str) -> Outcome {
        self.call(named(name, Priority::Ask)).await
    }

    /// Fills the window.
    async fn fill(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for n in 0..MAX_IN_FLIGHT {
            outcomes.push(self.ask(&n.to_string()).await);
        }
        outcomes
    }
}

async fn failed(outcome: Outcome) -> Failure {
    outcome.await.unwrap().unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn renewals_never_wait_and_releases_go_first_and_then_those_that_were_queued_before() {
    let fixture = Fixture::open();
    let _full = fixture.fill().await;
    for (name, priority) in [
        ("ask", Priority::Ask),
        ("return", Priority::Return),
        ("end", Priority::End),
        ("another ask", Priority::Ask),
        ("another end", Priority::End),
        ("another return", Priority::Return),
        ("keep", Priority::Keep),
    ] {
        drop(fixture.call(named(name, priority)).await);
    }
    assert_eq!(fixture.wire.written(), ["0", "1", "2", "3", "keep"]);
    fixture.wire.answer().await;
    let after = &fixture.wire.written()[5..];
    assert_eq!(after, ["end", "another end", "return", "another return"]);
    fixture.wire.answer().await;
    assert_eq!(fixture.wire.written()[9..], ["ask", "another ask"]);
}

#[tokio::test(start_paused = true)]
async fn newcomer_does_not_take_a_free_place_from_a_call_in_the_backlog() {
    let fixture = Fixture::open();
    let _full = fixture.fill().await;
    drop(fixture.ask("first").await);
    // One place is free, but waiting calls are sent only when half of the window is.
    let (name, reply) = fixture.wire.0.lock().unwrap().open.remove(0);
    reply.send(Ok(name)).unwrap();
    settle().await;
    drop(fixture.ask("second").await);
    fixture.wire.answer().await;
    assert_eq!(
        fixture.wire.written()[MAX_IN_FLIGHT as usize..],
        ["first", "second"]
    );
}

#[tokio::test(start_paused = true)]
async fn releases_in_flight_do_not_exceed_the_window() {
    let fixture = Fixture::open();
    let _full = fixture.fill().await;
    let before = fixture.wire.written().len();
    for n in 0..2 * MAX_IN_FLIGHT {
        drop(fixture.call(named(&n.to_string(), Priority::End)).await);
    }
    for rounds in 0..=2 {
        assert_eq!(
            fixture.wire.written().len() - before,
            (rounds * MAX_IN_FLIGHT) as usize
        );
        fixture.wire.answer().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unread_answers_free_places_in_the_window() {
    let fixture = Fixture::open();
    let unread: Vec<_> = (0..MAX_IN_FLIGHT)
        .map(|n| {
            let pipeline = Arc::clone(&fixture.pipeline);
            let mut call = Box::pin(pipeline.call(move || named(&n.to_string(), Priority::Ask)));
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            call
        })
        .collect();
    let waits = fixture.ask("waits").await;
    assert!(!fixture.wire.written().contains(&"waits".to_owned()));
    fixture.wire.answer().await;
    fixture.wire.answer().await;
    assert_eq!(waits.await.unwrap().unwrap().value, "waits");
    drop(unread);
}

/// Otherwise the timer of a call would belong to the runtime of another caller, and end with it.
#[test]
fn call_that_waited_is_sent_on_the_runtime_of_its_connection() {
    let own = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let other = Builder::new_current_thread().enable_time().build().unwrap();
    let mut fixture = own.block_on(async { Fixture::down() });
    fixture.wire.1 = Some(own.handle().clone());
    own.block_on(async { fixture.pipeline.open(fixture.wire.clone()) });
    let full = other.block_on(async {
        (0..MAX_IN_FLIGHT)
            .map(|n| {
                let pipeline = Arc::clone(&fixture.pipeline);
                let mut call = Box::pin(pipeline.call(move || named(&n.to_string(), Priority::Ask)));
                let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
                call
            })
            .collect::<Vec<_>>()
    });
    let waits = own.block_on(fixture.ask("waits"));
    while fixture.pipeline.state().backlog.is_empty() {
        std::thread::yield_now();
    }
    // A PING that is answered would have its own task send the call.
    let open = std::mem::take(&mut fixture.wire.0.lock().unwrap().open);
    let (pings, calls): (Vec<_>, Vec<_>) = open.into_iter().partition(|(name, _)| name.starts_with("ping"));
    for (name, reply) in calls {
        reply.send(Ok(name)).unwrap();
    }
    other.block_on(async {
        for call in full {
            call.await.unwrap();
        }
    });
    let on = fixture.wire.0.lock().unwrap().on.take();
    assert_eq!(fixture.wire.written().last().unwrap(), "waits");
    assert_eq!(on, Some(RuntimeFlavor::MultiThread));
    for (name, reply) in pings {
        reply.send(Ok(name)).unwrap();
    }
    own.block_on(async {
        fixture.wire.answer().await;
        assert_eq!(waits.await.unwrap().unwrap().value, "waits");
    });
}

#[tokio::test(start_paused = true)]
async fn calls_with_no_time_for_an_answer_go_last() {
    let fixture = Fixture::open();
    let latency = Duration::from_millis(100);
    let _full = fixture.fill().await;
    sleep(latency).await;
    let before = fixture.wire.written().len();
    for (name, patience) in [
        ("soon", latency / 2),
        ("sooner", latency / 3),
        ("late", 3 * latency),
    ] {
        let gives_up = GivesUp::At(fixture.pipeline.clock().now().after(patience));
        drop(
            fixture
                .call(Named {
                    gives_up,
                    ..named(name, Priority::Ask)
                })
                .await,
        );
    }
    drop(fixture.ask("whenever").await);
    fixture.wire.answer().await;
    assert_eq!(
        fixture.wire.written()[before..],
        ["late", "whenever", "soon", "sooner"]
    );
}

#[tokio::test(start_paused = true)]
async fn call_waiting_longer_than_its_caller_fails() {
    let fixture = Fixture::open();
    let _full = fixture.fill().await;
    let gives_up = GivesUp::At(fixture.pipeline.clock().now().after(PATIENCE / 2));
    let outcome = fixture
        .call(Named {
            gives_up,
            ..named("a", Priority::Ask)
        })
        .await;
    sleep(PATIENCE / 2).await;
    fixture.wire.answer().await;
    assert!(outcome.is_finished(), "it waits forever");
    assert!(matches!(failed(outcome).await, Failure::GivenUp));
}

#[tokio::test(start_paused = true)]
async fn answers_read_late_take_no_place_in_the_window() {
    let fixture = Fixture::open();
    let _outcomes = fixture.fill().await;
    // The caller of the last call is the first to read its reply.
    for nth in [MAX_IN_FLIGHT as usize - 1, 0] {
        let (name, reply) = fixture.wire.0.lock().unwrap().open.remove(nth);
        reply.send(Ok(name)).unwrap();
        settle().await;
    }
    fixture.fill().await;
    assert_eq!(fixture.wire.written().len(), 2 * MAX_IN_FLIGHT as usize);
}

#[tokio::test(start_paused = true)]
async fn call_given_up_while_it_waited_is_not_written() {
    let fixture = Fixture::down();
    let (by_sender, by_caller) = (
        named("by its sender", Priority::Ask),
        named("by its caller", Priority::Ask),
    );
    let outcome = fixture.call(by_sender.clone()).await;
    fixture.call(by_caller).await.abort();
    let stays = fixture.ask("stays").await;
    by_sender.given_up.store(true, Ordering::Relaxed);
    fixture.pipeline.open(fixture.wire.clone());
    fixture.wire.answer().await;
    assert!(matches!(failed(outcome).await, Failure::GivenUp));
    assert_eq!(stays.await.unwrap().unwrap().value, "stays");
    assert_eq!(fixture.wire.written(), ["stays"]);
}

/// Race: Waits are given up while the server is away, and their withdrawals pile up.
#[tokio::test(start_paused = true)]
async fn callers_leaving_while_nothing_can_be_sent_are_forgotten() {
    let fixture = Fixture::down();
    let waiting = || fixture.pipeline.state().backlog.len();
    let (leaves, stays) = (fixture.ask("leaves").await, fixture.ask("stays").await);
    assert_eq!(waiting(), 2);
    leaves.abort();
    settle().await;
    assert_eq!(waiting(), 1);
    let failure = failed(stays).await;
    assert!(
        matches!(failure, Failure::NotExecuted(_)),
        "it has waited for long enough"
    );
    assert_eq!(waiting(), 0);
}

/// Race: Calls wait so long in the backlog behind a slow network that they are already late when they are
/// sent.
#[tokio::test(start_paused = true)]
async fn call_counts_as_sent_when_it_is_written() {
    let fixture = Fixture::down();
    let call = fixture.ask("a").await;
    sleep(PATIENCE / 2).await;
    let written = fixture.pipeline.clock().now();
    fixture.pipeline.open(fixture.wire.clone());
    sleep(PATIENCE / 2).await;
    fixture.wire.answer().await;
    let response = call.await.unwrap().unwrap();
    assert_eq!(
        (response.sent, response.received),
        (written, written.after(PATIENCE / 2))
    );
}

#[tokio::test(start_paused = true)]
async fn calls_without_their_scripts_are_repeated_in_order_before_newcomers() {
    let fixture = Fixture::open();
    let first = fixture.ask("first").await;
    let second = fixture.ask("second").await;
    let unknown = Failure::NotExecuted(ServerError::new("NOSCRIPT"));
    // The caller of the first call is the last to read its reply.
    fixture.wire.fail_nth(1, &unknown, WireErrorKind::NoScript).await;
    let newcomer = fixture.ask("newcomer").await;
    fixture.wire.fail_nth(0, &unknown, WireErrorKind::NoScript).await;
    assert_eq!(fixture.wire.written(), ["first", "second", "load"]);
    fixture.wire.answer().await;
    assert_eq!(fixture.wire.written()[3..], ["first", "second", "newcomer"]);
    fixture.wire.answer().await;
    for call in [first, second, newcomer] {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_call_fails_with_the_cause_once_its_patience_is_over() {
    let fixture = Fixture::down();
    fixture
        .pipeline
        .down(Failure::NotExecuted(ServerError::new("connection refused")));
    let began = fixture.pipeline.clock().now();
    let failure = failed(fixture.ask("a").await).await;
    assert!(matches!(&failure, Failure::NotExecuted(error) if error.to_string().contains("refused")));
    assert_eq!(fixture.pipeline.clock().now().since(began), PATIENCE);
    // If the failure is permanent, neither a waiting call nor a new one waits.
    let began = fixture.pipeline.clock().now();
    let waiting = fixture.ask("waiting").await;
    fixture
        .pipeline
        .down(Failure::Refused(ServerError::new("WRONGPASS")));
    let new = fixture.ask("new").await;
    for refused in [waiting, new] {
        assert!(matches!(failed(refused).await, Failure::Refused(_)));
    }
    assert_eq!(fixture.pipeline.clock().now(), began);
}

#[tokio::test(start_paused = true)]
async fn late_reader_of_forgotten_scripts_does_not_load_them_again() {
    let fixture = Fixture::open();
    let first = fixture.ask("first").await;
    let second = fixture.ask("second").await;
    let unknown = Failure::NotExecuted(ServerError::new("NOSCRIPT"));
    fixture.wire.fail_nth(1, &unknown, WireErrorKind::NoScript).await;
    let loaded = fixture.wire.0.lock().unwrap().open.pop().unwrap();
    loaded.1.send(Ok(loaded.0)).unwrap();
    sleep(PATIENCE / 2).await;
    fixture.wire.fail_nth(0, &unknown, WireErrorKind::NoScript).await;
    assert_eq!(
        fixture.wire.written(),
        ["first", "second", "load", "second", "first"]
    );
    fixture.wire.answer().await;
    for call in [first, second] {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_told_why_their_scripts_cannot_be_loaded() {
    let fixture = Fixture::open();
    let call = fixture.ask("call").await;
    let unknown = Failure::NotExecuted(ServerError::new("NOSCRIPT"));
    fixture.wire.fail(&unknown, WireErrorKind::NoScript).await;
    let newcomer = fixture.ask("newcomer").await;
    let denied = Failure::Refused(ServerError::new("NOPERM"));
    fixture.wire.fail(&denied, WireErrorKind::Other).await;
    for call in [call, newcomer] {
        assert!(matches!(failed(call).await, Failure::Refused(_)));
    }
    assert_eq!(fixture.wire.written(), ["call", "load"]);
}

#[tokio::test(start_paused = true)]
async fn failed_script_load_delays_no_call_on_the_next_connection() {
    let fixture = Fixture::open();
    let call = fixture.ask("call").await;
    let unknown = Failure::NotExecuted(ServerError::new("NOSCRIPT"));
    fixture.wire.fail(&unknown, WireErrorKind::NoScript).await;
    let (former, next) = (fixture.wire.clone(), ByHand::default());
    fixture.pipeline.open(next.clone());
    let newcomer = fixture.ask("newcomer").await;
    former.fail(&unknown, WireErrorKind::Other).await;
    assert_eq!(next.written(), ["call", "newcomer"]);
    next.answer().await;
    for call in [call, newcomer] {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_goes_first_after_a_script_load_even_in_a_full_window() {
    let fixture = Fixture::open();
    let _unanswered = fixture.fill().await;
    let mut waiting = Vec::new();
    for n in MAX_IN_FLIGHT..2 * MAX_IN_FLIGHT {
        waiting.push(fixture.ask(&n.to_string()).await);
    }
    // This reply shows that the earlier calls are answered too, so other calls are sent in their place. Those
    // stay unanswered.
    let unknown = Failure::NotExecuted(ServerError::new("NOSCRIPT"));
    fixture.wire.fail_nth(2, &unknown, WireErrorKind::NoScript).await;
    let written = ["0", "1", "2", "3", "4", "5", "6", "load"];
    assert_eq!(fixture.wire.written(), written);
    let _renewal = fixture.call(named("renewal", Priority::Keep)).await;
    let loaded = fixture.wire.0.lock().unwrap().open.pop().unwrap();
    loaded.1.send(Ok(loaded.0)).unwrap();
    sleep(PATIENCE / 2).await;
    assert_eq!(fixture.wire.written()[written.len()..], ["renewal"]);
}

#[tokio::test(start_paused = true)]
async fn call_behind_unanswered_calls_fails_once_its_patience_is_over() {
    let fixture = Fixture::open();
    let _unanswered = fixture.fill().await;
    let waits = fixture.ask("a").await;
    let failure = tokio::time::timeout(3 * PATIENCE, failed(waits)).await.unwrap();
    assert!(matches!(&failure, Failure::NotExecuted(error) if error.to_string().contains("does not answer")));
    assert!(!fixture.wire.written().contains(&"a".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_waiting_calls() {
    let fixture = Fixture::down();
    let waits = fixture.ask("a").await;
    fixture.pipeline.close();
    settle().await;
    assert!(waits.is_finished(), "at once");
    assert!(matches!(failed(waits).await, Failure::Closed));
    assert!(matches!(failed(fixture.ask("b").await).await, Failure::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_condemned_for_silence_alone() {
    let mut fixture = Fixture::open();
    let lost = Failure::Unknown(ServerError::new("no reply in time"));
    let (one, other) = (fixture.ask("one").await, fixture.ask("other").await);
    sleep(Duration::from_millis(1)).await;
    // One call is answered, so the server is alive.
    let (_, reply) = fixture.wire.0.lock().unwrap().open.remove(1);
    reply.send(Ok("other".to_owned())).unwrap();
    settle().await;
    fixture.wire.fail(&lost, WireErrorKind::Timeout).await;
    assert!(matches!(failed(one).await, Failure::Unknown(_)));
    other.await.unwrap().unwrap();
    assert!(fixture.condemned.try_recv().is_err());

    let silent = fixture.ask("silent").await;
    sleep(Duration::from_millis(1)).await;
    fixture.wire.fail(&lost, WireErrorKind::Timeout).await;
    assert!(matches!(failed(silent).await, Failure::Unknown(_)));
    assert_eq!(fixture.condemned.try_recv().unwrap().why, Why::Silent);
}

#[tokio::test(start_paused = true)]
async fn connection_that_echoes_another_ping_is_condemned() {
    let mut fixture = Fixture::open();
    let ping = tokio::spawn(Arc::clone(&fixture.pipeline).ping(7));
    settle().await;
    let (name, reply) = fixture.wire.0.lock().unwrap().open.remove(0);
    assert_eq!(name, "ping 7");
    reply.send(Ok("ping 6".to_owned())).unwrap();
    ping.await.unwrap();
    assert_eq!(fixture.condemned.try_recv().unwrap().why, Why::Desynchronised);
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_former_connection_take_no_place_in_the_window() {
    let fixture = Fixture::open();
    let _unanswered = fixture.fill().await;
    let next = fixture.ask("next").await;
    fixture.pipeline.open(fixture.wire.clone());
    settle().await;
    fixture.wire.answer().await;
    assert_eq!(next.await.unwrap().unwrap().value, "next");
}

/// Race: A caller waits for a place in its process and makes no calls, and its bound ends.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_not_asked_is_not_silent() {
    let Fixture { pipeline, wire, .. } = Fixture::open();
    let why = |since| pipeline.why_unheard(since);
    let began = pipeline.clock.now();
    sleep(Duration::from_secs(1)).await;
    assert!(why(began).is_none(), "it was not asked");
    let call = tokio::spawn(Arc::clone(&pipeline).call(|| named("a", Priority::Ask)));
    settle().await;
    assert!(why(began).is_none(), "it was asked just now");
    sleep(Duration::from_secs(1)).await;
    assert!(why(began).is_some());
    wire.answer().await;
    call.await.unwrap().unwrap();
    assert!(why(began).is_none(), "it has answered");
    let began = pipeline.clock.now();
    sleep(Duration::from_secs(1)).await;
    assert!(why(began).is_none(), "it was not asked again");
}

/// Race: A saturated server takes longer for an answer than a caller waits.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_as_slow_as_before_is_not_silent() {
    let fixture = Fixture::open();
    let slow = Duration::from_millis(100);
    let before = fixture.ask("before").await;
    sleep(slow).await;
    fixture.wire.answer().await;
    before.await.unwrap().unwrap();
    let began = fixture.pipeline.clock.now();
    let _asked = fixture.ask("a").await;
    sleep(3 * slow / 2).await;
    assert!(fixture.pipeline.why_unheard(began).is_none());
    sleep(slow / 2).await;
    assert!(fixture.pipeline.why_unheard(began).is_some());
}
