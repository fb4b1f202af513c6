//! One connection to a server: its calls, in the order in which they are sent, their replies, and messages.
//!
//! One task owns the socket. What is sent while it runs is written together. Each reply is read as it comes,
//! whether or not its caller runs. When the connection ends, all calls in flight learn that at once.
//!
//! A subscription has no reply if it succeeds, but a message that confirms it, in the order of the replies.
//! An error is a reply. A server of a cluster also ends subscriptions by itself, and then the error and the
//! message may both come when the client does it too. So a bare `HELLO` follows, which any user may send at
//! any time, and whose reply says that there is no other one.

#[cfg(test)]
pub(super) mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fred::types::Value;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep};

use super::credentials::Renewal;
use super::failure;
use super::primary::Successor;
use super::resp::{Frame, Frames, Malformed};
use crate::protocol::interface::Failure;
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};
use crate::types::error::ServerError;

/// The memory for calls that are not written yet is kept up to this size.
const KEPT: usize = 64 << 10;

/// What carries the bytes: a socket, or TLS over one.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// An open connection. Dropping it closes the socket.
pub(super) struct Connection {
    line: Line,
    since: Instant,
    task: JoinHandle<Failure>,
    successor: Option<Successor>,
    /// What renews the credentials, if a provider has them.
    renewal: Option<Renewal>,
    /// Why the connection has ended, once that is known.
    over: Option<Failure>,
}

/// Sends calls over a connection.
#[derive(Clone)]
pub(super) struct Line(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Wakes the task when there is something to write.
    writer: AtomicWaker,
    /// How long a call waits for its reply.
    patience: Duration,
}

#[derive(Default)]
struct State {
    unwritten: Vec<u8>,
    /// The calls that have no reply yet, the oldest one first.
    in_flight: VecDeque<InFlight>,
    /// How many of them were told that there is no reply in time.
    late: usize,
    is_over: bool,
}

struct InFlight {
    sent: LocalTime,
    awaits: Awaits,
}

/// What a command is answered with, and for whom.
enum Awaits {
    /// A reply that nobody waits for.
    Nothing,
    Reply(Told<Value>),
    /// The confirmation of the subscription of this number to this channel, or an error.
    Subscription(Arc<str>, u64),
    /// The reply to a `HELLO` behind the end of a subscription, which may be answered with an error.
    EndOfSubscription,
}

/// Receives the messages of a connection, and what becomes of its subscriptions.
pub(super) trait Messages: Send + Sync {
    fn message(&self, channel: &str, text: &str);

    /// The subscription of this number is confirmed.
    fn subscribed(&self, channel: &str, number: u64);

    /// The server answered the subscription of this number with these words of an error.
    fn not_subscribed(&self, channel: &Arc<str>, number: u64, said: &str);

    /// A subscription has ended. It may be the server that has ended it.
    fn unsubscribed(&self, channel: &str);

    /// The server answered the end of a subscription with these words of an error.
    fn not_unsubscribed(&self, said: &str);
}

/// For a connection without subscriptions.
impl Messages for () {
    fn message(&self, _: &str, _: &str) {}

    fn subscribed(&self, _: &str, _: u64) {}

    fn not_subscribed(&self, _: &Arc<str>, _: u64, _: &str) {}

    fn unsubscribed(&self, _: &str) {}

    fn not_unsubscribed(&self, _: &str) {}
}

/// What is called once the reply to a call is read, or the connection ends, with the time. If the reply is
/// late, it is called then too.
pub(crate) type Told<R> = Box<dyn FnMut(Result<R, Unanswered>, LocalTime) + Send>;

/// Why there is no reply to a call.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The words of the server's error.
    Error(String),
    Late,
    /// Why the connection ended.
    Lost(Failure),
}

impl Connection {
    /// Serves this stream on the current runtime. A call waits for its reply for so long.
    pub(super) fn new(
        stream: Pin<Box<dyn Stream>>,
        patience: Duration,
        messages: Arc<dyn Messages>,
    ) -> Connection {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            writer: AtomicWaker::new(),
            patience,
        });
        let mut service = Service {
            shared: Arc::clone(&shared),
            stream,
            frames: Frames::default(),
            messages,
            writing: Vec::new(),
            written: 0,
            is_flushed: true,
            alarm: None,
        };
        let serve = async move {
            let why = poll_fn(|context| service.poll(context)).await;
            service.shared.end(&why);
            why
        };
        Connection {
            line: Line(shared),
            since: Instant::now(),
            task: tokio::spawn(serve),
            successor: None,
            renewal: None,
            over: None,
        }
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Treats the connection as lost when another server replaces this one.
    pub(super) fn until(mut self, successor: Successor) -> Connection {
        self.successor = Some(successor);
        self
    }

    pub(super) fn renewed_by(mut self, renewal: Renewal) -> Connection {
        self.renewal = Some(renewal);
        self
    }

    /// Renews the credentials of this connection, for as long as it is polled.
    pub(super) fn keep_authenticated(&self) -> impl Future<Output = Infallible> + Send + use<> {
        let (renewal, line) = (self.renewal.clone(), self.line.clone());
        async move {
            match renewal {
                Some(renewal) => renewal.keep_up(line).await,
                None => std::future::pending().await,
            }
        }
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits until the connection ends, and returns the reason. May be cancelled, and called again.
    pub(super) async fn lost(&mut self) -> Failure {
        if let Some(why) = &self.over {
            return why.clone();
        }
        let replaced = async {
            match &mut self.successor {
                Some(successor) => successor.appears().await,
                None => std::future::pending().await,
            }
        };
        let why = tokio::select! {
            why = &mut self.task => why.unwrap_or_else(|_| over()),
            server = replaced => broken(format!("the primary is {server} now")),
        };
        self.over.insert(why).clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
        self.line.0.end(&over());
    }
}

fn over() -> Failure {
    broken("the connection is over")
}

fn unreadable(Malformed(why): Malformed) -> Failure {
    broken(format!("a reply cannot be read: {why}"))
}

fn broken(why: impl Into<Arc<str>>) -> Failure {
    Failure::Unknown(ServerError::new(why))
}

impl Line {
    /// Sends the commands that `write` appends, unless the connection has ended. The last reply is told to
    /// what `write` returns, with the number of those before it, which are dropped.
    pub(super) fn send(&self, write: impl FnOnce(&mut Vec<u8>) -> (usize, Told<Value>)) {
        self.append(|out| {
            let (ignored, told) = write(out);
            let ignored = (0..ignored).map(|_| Awaits::Nothing);
            ignored.chain([Awaits::Reply(told)])
        });
    }

    /// Sends what `write` appends: commands that are answered like this.
    fn append<A: IntoIterator<Item = Awaits>>(&self, write: impl FnOnce(&mut Vec<u8>) -> A) {
        let sent = Clock::Boot.now();
        let mut state = locked(&self.0.state);
        if state.is_over {
            return;
        }
        let is_first = state.unwritten.is_empty();
        let awaits = write(&mut state.unwritten);
        let awaits = awaits.into_iter().map(|awaits| InFlight { sent, awaits });
        state.in_flight.extend(awaits);
        drop(state);
        if is_first {
            self.0.writer.wake();
        }
    }

    /// Subscribes to a channel by this command. The connection's [`Messages`] hear of the outcome, and of the
    /// number that the caller has given to the subscription.
    pub(super) fn subscribe(&self, command: &str, channel: &Arc<str>, number: u64) {
        let command = [command, channel].map(str::as_bytes);
        self.append(|out| {
            words(out, 2, command.into_iter());
            [Awaits::Subscription(Arc::clone(channel), number)]
        });
    }

    /// Ends the subscription to a channel by this command.
    pub(super) fn unsubscribe(&self, command: &str, channel: &str) {
        let command = [command, channel].map(str::as_bytes);
        self.append(|out| {
            words(out, 2, command.into_iter());
            words(out, 1, [&b"HELLO"[..]].into_iter());
            [Awaits::EndOfSubscription]
        });
    }

    /// Sends a command of these words.
    pub(super) fn ask(&self, command: &[&str]) -> Answering {
        let (told, answering) = answering();
        self.send(|out| {
            words(out, command.len(), command.iter().map(|word| word.as_bytes()));
            (0, told)
        });
        answering
    }

    /// Sends a command of these words, and waits for its reply.
    pub(super) fn call(
        &self,
        command: &[&str],
    ) -> impl Future<Output = Result<Value, Failure>> + Send + use<> {
        let answering = self.ask(command);
        async move { answering.await.map_err(Failure::from) }
    }
}

impl State {
    /// Takes out the oldest call in flight.
    fn answered(&mut self) -> Option<Awaits> {
        self.late = self.late.saturating_sub(1);
        Some(self.in_flight.pop_front()?.awaits)
    }
}

impl Shared {
    /// Tells all calls in flight why they have no reply.
    fn end(&self, why: &Failure) {
        let mut state = locked(&self.state);
        state.is_over = true;
        let unanswered = mem::take(&mut state.in_flight);
        drop(state);
        for call in unanswered {
            if let Awaits::Reply(mut told) = call.awaits {
                told(Err(Unanswered::Lost(why.clone())), Clock::Boot.now());
            }
        }
    }

    /// Passes a reply, or the words of an error, to the call in flight that it answers.
    fn answer(
        &self,
        said: Result<Value, String>,
        at: LocalTime,
        messages: &dyn Messages,
    ) -> Result<(), Failure> {
        let mut state = locked(&self.state);
        let awaits = match (state.in_flight.front().map(|call| &call.awaits), &said) {
            // One more reply follows.
            (Some(Awaits::EndOfSubscription), Err(said)) => {
                drop(state);
                messages.not_unsubscribed(said);
                return Ok(());
            }
            (None, _) | (Some(Awaits::Subscription(..)), Ok(_)) => {
                return Err(broken(format!("out of step: {said:?} is the reply to no call")));
            }
            (Some(_), _) => state.answered(),
        };
        drop(state);
        match (awaits, said) {
            (Some(Awaits::Reply(mut told)), said) => told(said.map_err(Unanswered::Error), at),
            (Some(Awaits::Subscription(channel, number)), Err(said)) => {
                messages.not_subscribed(&channel, number, &said);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes in a message of these words.
    fn push(&self, words: &[&[u8]], messages: &dyn Messages) -> Result<(), Failure> {
        let [kind, channel, rest @ ..] = words else {
            return Ok(());
        };
        // All channels of this client are UTF-8, and so is what it publishes.
        let Ok(channel) = std::str::from_utf8(channel) else {
            return Ok(());
        };
        match (*kind, rest) {
            (b"message" | b"smessage", [text]) => messages.message(channel, &String::from_utf8_lossy(text)),
            (b"subscribe" | b"ssubscribe", _) => {
                let mut state = locked(&self.state);
                let number = match state.in_flight.front().map(|call| &call.awaits) {
                    Some(Awaits::Subscription(asked, number)) if **asked == *channel => *number,
                    _ => return Err(broken(format!("out of step: no subscription to {channel:?}"))),
                };
                drop(state.answered());
                drop(state);
                messages.subscribed(channel, number);
            }
            (b"unsubscribe" | b"sunsubscribe", _) => messages.unsubscribed(channel),
            _ => {}
        }
        Ok(())
    }

    /// Tells those that have waited for too long. Returns how long the next one may still wait.
    fn expire(&self, now: LocalTime) -> Option<Duration> {
        let mut expired = Vec::new();
        let mut state = locked(&self.state);
        let left = loop {
            let late = state.late;
            let Some(next) = state.in_flight.get_mut(late) else {
                break None;
            };
            let left = self.patience.saturating_sub(now.since(next.sent));
            if !left.is_zero() {
                break Some(left);
            }
            expired.push((late, mem::replace(&mut next.awaits, Awaits::Nothing)));
            state.late += 1;
        };
        drop(state);
        for (_, awaits) in &mut expired {
            if let Awaits::Reply(told) = awaits {
                told(Err(Unanswered::Late), now);
            }
        }
        // Their replies may still come. Only this task takes calls out, unless the connection ends.
        let mut state = locked(&self.state);
        for (position, awaits) in expired {
            if let Some(call) = state.in_flight.get_mut(position) {
                call.awaits = awaits;
            }
        }
        left
    }
}

/// What this says of the call.
impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Failure {
        match unanswered {
            Unanswered::Error(said) => failure::of_reply(&said),
            Unanswered::Late => broken("no reply in time"),
            Unanswered::Lost(Failure::Refused(why)) => Failure::Unknown(why),
            Unanswered::Lost(why) => why,
        }
    }
}

/// What the first thing that is known of a reply is told to, and what waits for it.
fn answering() -> (Told<Value>, Answering) {
    let (answer, answered) = oneshot::channel();
    let mut answer = Some(answer);
    let told = move |said, _| {
        if let Some(answer) = answer.take() {
            // The caller may be gone.
            let _ = answer.send(said);
        }
    };
    (Box::new(told), Answering(answered))
}

/// Waits for a reply.
pub(super) struct Answering(oneshot::Receiver<Result<Value, Unanswered>>);

impl Future for Answering {
    type Output = Result<Value, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(told.unwrap_or_else(|_| Err(Unanswered::Lost(over()))))
    }
}

/// Appends a command of these words, of which there are so many.
pub(super) fn words<'a>(out: &mut Vec<u8>, count: usize, words: impl Iterator<Item = &'a [u8]>) {
    header(out, b'*', count);
    for word in words {
        header(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, kind: u8, mut number: usize) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b"0123456789"[number % 10];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[first..]);
    out.extend_from_slice(b"\r\n");
}

/// Reads and writes, for as long as it is polled.
struct Service {
    shared: Arc<Shared>,
    stream: Pin<Box<dyn Stream>>,
    frames: Frames,
    messages: Arc<dyn Messages>,
    /// What is being written, and how much of it is written.
    writing: Vec<u8>,
    written: usize,
    is_flushed: bool,
    /// Set while calls are in flight. It may ring too early, but never too late.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Service {
    /// Does what can be done now. Ready once the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        // This comes first, so that nothing that is sent from here on is overlooked.
        self.shared.writer.register(context.waker());
        // A process that stood still reads what has come before it looks at the time.
        let done = self.read(context).and_then(|()| self.write(context));
        match done {
            Ok(()) => {
                self.check_time(context);
                Poll::Pending
            }
            Err(why) => Poll::Ready(why),
        }
    }

    fn read(&mut self, context: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            let mut space = ReadBuf::new(self.frames.space());
            match self.stream.as_mut().poll_read(context, &mut space) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read.map_err(failure::of_io)?,
            }
            let length = space.filled().len();
            if length == 0 {
                return Err(broken("the server has closed the connection"));
            }
            self.frames.filled(length);
            let at = Clock::Boot.now();
            while let Some(frame) = self.frames.next().map_err(unreadable)? {
                match frame {
                    Frame::Reply(reply) => self.shared.answer(Ok(reply), at, &*self.messages)?,
                    Frame::Error(said) => self.shared.answer(Err(said), at, &*self.messages)?,
                    Frame::Push(words) => self.shared.push(&words, &*self.messages)?,
                }
            }
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.writing.shrink_to(KEPT);
                self.written = 0;
                mem::swap(&mut self.writing, &mut locked(&self.shared.state).unwritten);
            }
            if self.writing.is_empty() {
                break;
            }
            let unwritten = &self.writing[self.written..];
            match self.stream.as_mut().poll_write(context, unwritten) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(over()),
                Poll::Ready(written) => self.written += written.map_err(failure::of_io)?,
            }
            self.is_flushed = false;
        }
        if !self.is_flushed {
            match self.stream.as_mut().poll_flush(context) {
                Poll::Pending => {}
                Poll::Ready(flushed) => {
                    flushed.map_err(failure::of_io)?;
                    self.is_flushed = true;
                }
            }
        }
        Ok(())
    }

    fn check_time(&mut self, context: &mut Context<'_>) {
        while self
            .alarm
            .as_mut()
            .is_none_or(|alarm| alarm.as_mut().poll(context).is_ready())
        {
            self.alarm = None;
            let Some(left) = self.shared.expire(Clock::Boot.now()) else {
                return;
            };
            self.alarm = Some(Box::pin(sleep(left)));
        }
    }
}

impl Drop for Service {
    /// Its runtime has ended.
    fn drop(&mut self) {
        self.shared.end(&over());
    }
}
