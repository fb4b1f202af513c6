//! Tests of what is written and when, on a connection whose replies the tests control.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::*;
use crate::time::deadline_queue::GivesUp;

const MAX_IN_FLIGHT: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    static CLOCK: Clock = Clock::tokio();
}

fn now() -> LocalTime {
    CLOCK.with(Clock::now)
}

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

    fn prepare(&mut self, _: ConnectionId) -> Result<(), Failure> {
        match self.given_up.load(Ordering::Relaxed) {
            true => Err(Failure::GivenUp),
            false => Ok(()),
        }
    }
}

/// The unanswered commands on the present connection, and all commands that were ever sent.
#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    open: Vec<(String, Told<String>)>,
    all: Vec<String>,
}

impl Wire for ByHand {
    type Command = Named;
    type Reply = String;

    fn send(&self, command: Named, told: impl FnOnce(Named) -> Told<String> + Send + 'static) {
        let mut written = self.0.lock().unwrap();
        let name = command.name.clone();
        written.all.push(name.clone());
        written.open.push((name, told(command)));
    }

    fn load(&self, then: impl FnOnce(Result<(), Failure>) + Send + 'static) {
        let mut then = Some(then);
        self.send(named("load", Priority::Keep), |_| {
            Box::new(move |said, _| {
                if let Some(then) = then.take() {
                    then(said.map(drop).map_err(Failure::from));
                }
            })
        });
    }
}

impl ByHand {
    /// All commands that were sent so far.
    fn written(&self) -> Vec<String> {
        self.0.lock().unwrap().all.clone()
    }

    /// Answers all unanswered commands with their names, and waits until everything that follows has
    /// happened.
    async fn answer(&self) {
        let open = std::mem::take(&mut self.0.lock().unwrap().open);
        for (name, mut told) in open {
            told(Ok(name), now());
        }
        settle().await;
    }

    /// Answers the n-th unanswered command with its name.
    async fn answer_nth(&self, nth: usize) {
        let (name, mut told) = self.0.lock().unwrap().open.remove(nth);
        told(Ok(name), now());
        settle().await;
    }

    /// Answers the unanswered commands of this name.
    async fn answer_all(&self, name: &str) {
        let open = std::mem::take(&mut self.0.lock().unwrap().open);
        let (named, others): (Vec<_>, Vec<_>) = open.into_iter().partition(|(other, _)| other == name);
        self.0.lock().unwrap().open = others;
        for (name, mut told) in named {
            told(Ok(name), now());
        }
        settle().await;
    }

    /// Ends all unanswered commands without a reply.
    async fn fail(&self, why: impl Fn() -> Unanswered) {
        let open = std::mem::take(&mut self.0.lock().unwrap().open);
        for (_, mut told) in open {
            told(Err(why()), now());
        }
        settle().await;
    }
}

fn missing() -> Unanswered {
    Unanswered::Error("NOSCRIPT No matching script".to_owned())
}

fn denied() -> Unanswered {
    Unanswered::Error("NOPERM no permissions".to_owned())
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
        let (pipeline, condemned) = Pipeline::new(
            ServerId::default(),
            CLOCK.with(|clock| *clock),
            PATIENCE,
            MAX_IN_FLIGHT,
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
        let call = Arc::clone(&self.pipeline).call(command);
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
    fixture.wire.answer_nth(0).await;
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
            let mut call = Box::pin(pipeline.call(named(&n.to_string(), Priority::Ask)));
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
        let gives_up = GivesUp::At(now().after(patience));
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
    let gives_up = GivesUp::At(now().after(PATIENCE / 2));
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
async fn late_replies_count_as_soon_as_they_are_read() {
    let mut fixture = Fixture::open();
    let outcomes = fixture.fill().await;
    let asked = now();
    sleep(PATIENCE).await;
    for (_, told) in &mut fixture.wire.0.lock().unwrap().open {
        told(Err(Unanswered::Late), now());
    }
    for outcome in outcomes {
        assert!(matches!(failed(outcome).await, Failure::Unknown(_)));
    }
    assert_eq!(fixture.condemned.try_recv().unwrap().why, Why::Silent);
    drop(fixture.ask("waits").await);
    assert_eq!(fixture.wire.written().len(), MAX_IN_FLIGHT as usize);
    assert!(fixture.pipeline.why_unheard(asked).is_some());
    fixture.wire.answer().await;
    assert_eq!(fixture.wire.written()[MAX_IN_FLIGHT as usize..], ["waits"]);
    assert!(fixture.pipeline.why_unheard(asked).is_none());
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
    let written = now();
    fixture.pipeline.open(fixture.wire.clone());
    sleep(PATIENCE / 2).await;
    fixture.wire.answer().await;
    let response = call.await.unwrap().unwrap();
    assert_eq!(
        (response.sent, response.received),
        (written, written.after(PATIENCE / 2))
    );
}

/// Race: A caller has not read that its script is missing when the scripts are there again.
#[tokio::test(start_paused = true)]
async fn calls_without_their_scripts_are_repeated_in_order_before_newcomers() {
    let fixture = Fixture::open();
    let mut first = Box::pin(Arc::clone(&fixture.pipeline).call(named("first", Priority::Ask)));
    let polled = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let second = fixture.ask("second").await;
    fixture.wire.fail(missing).await;
    let newcomer = fixture.ask("newcomer").await;
    assert_eq!(fixture.wire.written(), ["first", "second", "load"]);
    fixture.wire.answer().await;
    assert_eq!(fixture.wire.written()[3..], ["first", "second", "newcomer"]);
    fixture.wire.answer().await;
    first.await.unwrap();
    for call in [second, newcomer] {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_its_script_whose_caller_is_gone_is_not_repeated() {
    let fixture = Fixture::open();
    fixture.ask("gone").await.abort();
    let waits = fixture.ask("waits").await;
    fixture.wire.fail(missing).await;
    waits.abort();
    settle().await;
    assert!(fixture.pipeline.state().backlog.is_empty());
    fixture.wire.answer().await;
    assert_eq!(fixture.wire.written(), ["gone", "waits", "load"]);
}

#[tokio::test(start_paused = true)]
async fn calls_fail_on_a_server_that_keeps_forgetting_the_scripts() {
    let fixture = Fixture::open();
    let call = fixture.ask("a").await;
    for _ in 0..SENDINGS {
        fixture.wire.fail(missing).await;
        fixture.wire.answer_all("load").await;
    }
    assert!(matches!(failed(call).await, Failure::NotExecuted(_)));
}

#[tokio::test(start_paused = true)]
async fn waiting_call_fails_with_the_cause_once_its_patience_is_over() {
    let fixture = Fixture::down();
    fixture
        .pipeline
        .down(Failure::NotExecuted(ServerError::new("connection refused")));
    let began = now();
    let failure = failed(fixture.ask("a").await).await;
    assert!(matches!(&failure, Failure::NotExecuted(error) if error.to_string().contains("refused")));
    assert_eq!(now().since(began), PATIENCE);
    // If the failure is permanent, neither a waiting call nor a new one waits.
    let began = now();
    let waiting = fixture.ask("waiting").await;
    fixture
        .pipeline
        .down(Failure::Refused(ServerError::new("WRONGPASS")));
    let new = fixture.ask("new").await;
    for refused in [waiting, new] {
        assert!(matches!(failed(refused).await, Failure::Refused(_)));
    }
    assert_eq!(now(), began);
}

#[tokio::test(start_paused = true)]
async fn calls_are_told_why_their_scripts_cannot_be_loaded() {
    let fixture = Fixture::open();
    let call = fixture.ask("call").await;
    fixture.wire.fail(missing).await;
    let newcomer = fixture.ask("newcomer").await;
    fixture.wire.fail(denied).await;
    for call in [call, newcomer] {
        assert!(matches!(failed(call).await, Failure::Refused(_)));
    }
    assert_eq!(fixture.wire.written(), ["call", "load"]);
}

#[tokio::test(start_paused = true)]
async fn failed_script_load_delays_no_call_on_the_next_connection() {
    let fixture = Fixture::open();
    let call = fixture.ask("call").await;
    fixture.wire.fail(missing).await;
    let (former, next) = (fixture.wire.clone(), ByHand::default());
    fixture.pipeline.open(next.clone());
    let mut calls = fixture.fill().await;
    calls.push(call);
    former.fail(missing).await;
    assert_eq!(next.written(), ["call", "0", "1", "2"]);
    for _ in 0..2 {
        next.answer().await;
    }
    for call in calls {
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
    // Half of the window is free, so other calls are sent, and stay unanswered.
    fixture.wire.answer_nth(0).await;
    fixture.wire.answer_nth(0).await;
    let written = ["0", "1", "2", "3", "4", "5"];
    assert_eq!(fixture.wire.written(), written);
    let (_, mut told) = fixture.wire.0.lock().unwrap().open.remove(0);
    told(Err(missing()), now());
    let _renewal = fixture.call(named("renewal", Priority::Keep)).await;
    for name in ["3", "4"] {
        fixture.wire.answer_all(name).await;
    }
    assert_eq!(fixture.wire.written()[written.len()..], ["load"]);
    fixture.wire.answer_all("load").await;
    assert_eq!(
        fixture.wire.written()[written.len() + 1..],
        ["renewal", "2", "6", "7"]
    );
}

#[tokio::test(start_paused = true)]
async fn renewal_without_its_script_is_repeated_whatever_the_window_allows() {
    let fixture = Fixture::open();
    let _renewal = fixture.call(named("renewal", Priority::Keep)).await;
    let _unanswered = fixture.fill().await;
    let (_, mut told) = fixture.wire.0.lock().unwrap().open.remove(0);
    told(Err(missing()), now());
    settle().await;
    fixture.wire.answer_all("load").await;
    assert_eq!(fixture.wire.written().last().unwrap(), "renewal");
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
    let (one, other) = (fixture.ask("one").await, fixture.ask("other").await);
    sleep(Duration::from_millis(1)).await;
    // One call is answered, so the server is alive.
    fixture.wire.answer_nth(1).await;
    fixture.wire.fail(|| Unanswered::Late).await;
    assert!(matches!(failed(one).await, Failure::Unknown(_)));
    other.await.unwrap().unwrap();
    assert!(fixture.condemned.try_recv().is_err());

    let silent = fixture.ask("silent").await;
    sleep(Duration::from_millis(1)).await;
    fixture.wire.fail(|| Unanswered::Late).await;
    assert!(matches!(failed(silent).await, Failure::Unknown(_)));
    assert_eq!(fixture.condemned.try_recv().unwrap().why, Why::Silent);
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
    let began = now();
    sleep(Duration::from_secs(1)).await;
    assert!(why(began).is_none(), "it was not asked");
    let call = tokio::spawn(Arc::clone(&pipeline).call(named("a", Priority::Ask)));
    settle().await;
    assert!(why(began).is_none(), "it was asked just now");
    sleep(Duration::from_secs(1)).await;
    assert!(why(began).is_some());
    wire.answer().await;
    call.await.unwrap().unwrap();
    assert!(why(began).is_none(), "it has answered");
    let began = now();
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
    let began = now();
    let _asked = fixture.ask("a").await;
    sleep(3 * slow / 2).await;
    assert!(fixture.pipeline.why_unheard(began).is_none());
    sleep(slow / 2).await;
    assert!(fixture.pipeline.why_unheard(began).is_some());
}
