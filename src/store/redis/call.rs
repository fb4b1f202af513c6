//! How a script is run on a server: through its pipeline, and with what its answer means.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::commands::{Command, Wire};
use super::script::{Declared, Operation, Publishing, ReplyError};
use crate::error::ServerError;
use crate::store::pipeline::{self, Pipeline, ROOM};
use crate::store::{Answer, Failure, ServerId};
use crate::time::clock::Clock;
use crate::time::clock_offset::Exchange;
use crate::time::server_time::ServerTime;

pub(super) type Lane = Pipeline<Wire>;
pub(super) type Heard = pipeline::Heard<Value>;

/// A pipeline that lives on this runtime.
pub(super) fn lane(
    server: ServerId,
    attempt_timeout: Duration,
) -> (Arc<Lane>, mpsc::UnboundedReceiver<pipeline::Condemned>) {
    let runtime = Handle::current();
    let spawn = move |task| drop(runtime.spawn(task));
    Lane::new(server, Clock::Boot, attempt_timeout, ROOM, Box::new(spawn))
}

/// What a call fails by that was made for the lock alone, and takes more: as a server of a cluster says it.
const ELSEWHERE: &str = "TRYAGAIN the lock is waited for, and its slot is being moved";

/// How a call is made of a server.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub(super) publishing: Publishing,
    /// The server is still importing the slot, and has its keys.
    pub(super) importing: bool,
    pub(super) declared: Declared,
}

impl Default for Manner {
    /// Of a server that is no part of a cluster.
    fn default() -> Manner {
        Manner {
            publishing: Publishing::Plain,
            importing: false,
            declared: Declared::All,
        }
    }
}

/// Runs a script.
pub(super) async fn execute<O: Operation>(
    lane: &Arc<Lane>,
    operation: O,
    manner: Manner,
) -> Result<Answer<O::Reply>, Failure> {
    let command = || {
        let invocation = operation.invocation(manner.publishing, manner.declared);
        Command::script(invocation, operation.priority()).asking(manner.importing)
    };
    let heard = Arc::clone(lane).call(command).await?;
    let line = match &heard.value {
        Value::String(line) => operation.read(line),
        other => Err(ReplyError::OutOfStep(format!("{other:?}"))),
    };
    match line {
        Ok((now, reply)) => Ok(Answer {
            on: lane.connection(heard.generation),
            at: exchange(&heard, now),
            reply,
        }),
        Err(ReplyError::OutOfStep(said)) => Err(lane.out_of_step(heard.generation, said)),
        Err(ReplyError::Elsewhere) => Err(Failure::NotExecuted(ServerError::new(ELSEWHERE))),
        Err(ReplyError::NewerFormat) => Err(Failure::Refused(ServerError::new(
            "the lock is kept in the format of a newer version of this library",
        ))),
    }
}

pub(super) fn exchange(heard: &Heard, now: ServerTime) -> Exchange {
    Exchange {
        sent: heard.sent,
        received: heard.received,
        now,
    }
}
