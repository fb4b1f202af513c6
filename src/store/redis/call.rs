//! Runs a script on a server: sends it through the pipeline, and interprets the reply.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::commands::{Command, Wire};
use super::script::{Declared, Operation, PubSubMode, ReplyError};
use super::slot::SlotGate;
use crate::error::ServerError;
use crate::store::pipeline::{self, MAX_IN_FLIGHT, Pipeline};
use crate::store::{Answer, Call, Failure, Forever, Heard, ServerId};
use crate::time::clock::Clock;
use crate::time::clock_offset::Sample;
use crate::time::server_time::ServerTime;

pub(super) type RedisPipeline = Pipeline<Wire>;
pub(super) type Response = pipeline::Response<Value>;

/// Creates a pipeline whose tasks run on the current runtime.
pub(super) fn pipeline(
    server: ServerId,
    attempt_timeout: Duration,
) -> (Arc<RedisPipeline>, mpsc::UnboundedReceiver<pipeline::Replacement>) {
    let runtime = Handle::current();
    let spawn = move |task| drop(runtime.spawn(task));
    RedisPipeline::new(
        server,
        Clock::Boot,
        attempt_timeout,
        MAX_IN_FLIGHT,
        Box::new(spawn),
    )
}

/// The failure of a call that declared the lock's key alone but needs more keys. A cluster server uses the
/// same error code.
const ELSEWHERE: &str = "TRYAGAIN the lock is waited for, and its slot is being moved";

/// How a call is sent to a server.
#[derive(Clone)]
pub(super) struct CallOptions {
    pub(super) pubsub_mode: PubSubMode,
    /// The server is still importing the slot, and has the keys already.
    pub(super) importing: bool,
    pub(super) declared: Declared,
    /// Keeps the call from being written while no server serves its slot.
    pub(super) gate: Option<SlotGate>,
}

impl Default for CallOptions {
    /// The options for a server outside a cluster.
    fn default() -> CallOptions {
        CallOptions {
            pubsub_mode: PubSubMode::Plain,
            importing: false,
            declared: Declared::All,
            gate: None,
        }
    }
}

/// Runs a script, and reads its reply.
pub(super) async fn execute<O: Operation>(
    pipeline: &Arc<RedisPipeline>,
    operation: O,
    call_options: CallOptions,
) -> Result<Answer<O::Reply>, Failure> {
    let command = || {
        let script_call = operation.script_call(call_options.pubsub_mode, call_options.declared);
        Command::script(script_call, operation.priority())
            .asking(call_options.importing)
            .behind(call_options.gate.clone())
    };
    let response = Arc::clone(pipeline).call(command).await?;
    let line = match &response.value {
        Value::String(line) => operation.read(line),
        // No UTF-8: it contains what somebody else has written.
        Value::Bytes(line) => operation.read(&String::from_utf8_lossy(line)),
        other => Err(ReplyError::Desynchronised(format!("{other:?}"))),
    };
    match line {
        Ok((now, reply)) => Ok(Answer {
            on: pipeline.connection(response.generation),
            at: sample(&response, now),
            reply,
        }),
        Err(ReplyError::Desynchronised(said)) => Err(pipeline.desynchronised(response.generation, said)),
        Err(ReplyError::Unreadable(said)) => {
            let error = format!("the data of {} cannot be read: {said:?}", operation.key());
            Err(Failure::Refused(ServerError::new(error)))
        }
        Err(ReplyError::Elsewhere) => Err(Failure::NotExecuted(ServerError::new(ELSEWHERE))),
        Err(ReplyError::ClockBehind) => Err(Failure::clock_behind()),
        Err(ReplyError::NewerFormat) => Err(Failure::Refused(ServerError::new(
            "the lock is kept in the format of a newer version of this library",
        ))),
    }
}

/// Makes a call now, and again after each pause of this length. A call that fails is not repeated sooner.
pub(super) fn repeated(
    every: Duration,
    call: impl Fn() -> Call<()> + Send + 'static,
    heard: Heard,
) -> Forever {
    Box::pin(async move {
        loop {
            // If this fails, people miss the label for a while, and nothing else does.
            if let Ok(answer) = call().await {
                heard(answer);
            }
            tokio::time::sleep(every).await;
        }
    })
}

pub(super) fn sample(response: &Response, now: ServerTime) -> Sample {
    Sample {
        sent: response.sent,
        received: response.received,
        now,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::error::ServerError;
    use crate::store::ConnectionId;
    use crate::time::clock::LocalTime;

    #[tokio::test(start_paused = true)]
    async fn answers_of_repeated_calls_are_passed_on() {
        const EVERY: Duration = Duration::from_secs(20);
        let (told, mut heard) = mpsc::unbounded_channel();
        let began = tokio::time::Instant::now();
        let call = move || -> Call<()> {
            let passed = began.elapsed();
            let at = Sample {
                sent: LocalTime::ZERO,
                received: LocalTime::ZERO,
                now: ServerTime::from_ms(1).after(passed),
            };
            let answer = Answer {
                on: ConnectionId::default(),
                at,
                reply: (),
            };
            // The second call fails.
            let fails = passed == EVERY;
            let failure = Failure::Unknown(ServerError::new("lost"));
            Box::pin(async move { if fails { Err(failure) } else { Ok(answer) } })
        };
        let heard_at = move |answer: Answer<()>| told.send(answer.at.now.ms()).unwrap();
        let calls = repeated(EVERY, call, Box::new(heard_at));
        let _ = tokio::time::timeout(3 * EVERY - EVERY / 2, calls).await;
        assert_eq!([heard.recv().await, heard.recv().await], [Some(1), Some(40_001)]);
        assert_eq!(heard.recv().await, None);
    }
}
