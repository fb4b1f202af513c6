//! Runs a script on a server: sends it through the pipeline, and interprets the reply.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use tokio::sync::mpsc;

use super::commands::{RedisCommand, Wire};
use super::pipeline::{self, MAX_IN_FLIGHT, Pipeline};
use crate::protocol::interface::{Answer, Failure, ServerId};
use crate::protocol::operations::Operation;
use crate::protocol::script::{Declared, PubSubMode, ReplyError};
use crate::time::clock::Clock;
use crate::time::clock_offset::Sample;
use crate::time::server_time::ServerTime;
use crate::types::error::ServerError;

pub(super) type RedisPipeline = Pipeline<Wire>;
pub(super) type Response = pipeline::Response<Value>;

pub(super) fn pipeline(
    server: ServerId,
    attempt_timeout: Duration,
) -> (Arc<RedisPipeline>, mpsc::UnboundedReceiver<pipeline::Replacement>) {
    RedisPipeline::new(server, Clock::Boot, attempt_timeout, MAX_IN_FLIGHT)
}

/// Checks that the server answers. The connection is replaced if the reply does not come in time or is a
/// wrong one.
pub(super) async fn ping(pipeline: Arc<RedisPipeline>, nonce: u64) {
    let nonce = nonce.to_string();
    // `call` handles the consequences of a failure for the connection.
    if let Ok(Response {
        value, generation, ..
    }) = Arc::clone(&pipeline).call(RedisCommand::ping(&nonce)).await
    {
        if value.as_str().as_deref() != Some(&nonce) {
            pipeline.desynchronised(generation, format!("{value:?} as the reply to PING {nonce}"));
        }
    }
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
}

impl Default for CallOptions {
    /// The options for a server outside a cluster.
    fn default() -> CallOptions {
        CallOptions {
            pubsub_mode: PubSubMode::Plain,
            importing: false,
            declared: Declared::All,
        }
    }
}

/// Runs a script, and reads its reply.
pub(super) async fn execute<O: Operation>(
    pipeline: &Arc<RedisPipeline>,
    operation: O,
    call_options: CallOptions,
) -> Result<Answer<O::Reply>, Failure> {
    let script_call = operation.script_call(call_options.pubsub_mode, call_options.declared);
    let command = RedisCommand::script(script_call, operation.priority()).asking(call_options.importing);
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

pub(super) fn sample(response: &Response, now: ServerTime) -> Sample {
    Sample {
        sent: response.sent,
        received: response.received,
        now,
    }
}
