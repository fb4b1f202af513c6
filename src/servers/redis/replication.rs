//! Waits until replicas have the writes. This needs a third connection, because `WAIT` delays everything
//! behind it on its connection.
//!
//! - Each hold is renewed on this connection. After the reply, its request joins the next round. One `WAIT`
//!   serves all requests that have joined, however many.
//! - A round lasts a quarter of the time that the oldest request has waited. A request without a confirmation
//!   joins the next round, until its time ends. A request that comes during a round has to wait for its end,
//!   but loses nothing: a replica that lacks the earlier write lacks the later one too. Rounds of constant
//!   length would not work, because the server counts from its last command on a connection. A replica that
//!   is further away than two rounds would never confirm in time.
//! - A `WAIT` concerns only the writes of its own connection. On a connection other than the renewal's, its
//!   answer would mean nothing, so the renewal must be repeated there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::call::{CallOptions, RedisPipeline, Response, execute, pipeline};
use super::commands::RedisCommand;
use super::connector::Connector;
use super::options::Options;
use super::supervisor::Supervisor;
use crate::protocol::interface::{Call, Failure, Listener, ServerId, StoreFuture};
use crate::protocol::operations::{Confirmed, Renew, Renewed};
use crate::protocol::script::{self, Script};
use crate::servers::redis::script_set::ScriptSet;
use crate::types::error::ServerError;

/// The shortest round. (An otherwise idle server may end it up to 100 ms late.)
const SHORTEST_ROUND: Duration = Duration::from_millis(50);

pub(super) struct Replication {
    pipeline: Arc<RedisPipeline>,
    requests: mpsc::UnboundedSender<WaitRequest>,
    tasks: [AbortHandle; 2],
}

/// A renewed hold that waits for its confirmation.
struct WaitRequest {
    /// The connection of the renewal.
    generation: u64,
    since: Instant,
    until: Instant,
    got: oneshot::Sender<Result<u32, Failure>>,
}

impl Replication {
    /// Opens the connection in the background. Calls wait for it.
    pub(super) fn start(
        server: ServerId,
        connector: &Arc<Connector>,
        options: Options,
        listener: &Weak<dyn Listener>,
    ) -> Replication {
        let (pipeline, condemned) = pipeline(server, options.attempt_timeout);
        let renewals: &[&Script] = match options.quorum {
            Some(_) => &[&script::RENEW],
            None => &[&script::RENEW, &script::PERMITS_RENEW],
        };
        let supervisor = Supervisor {
            server,
            connector: Arc::clone(connector),
            pipeline: Arc::clone(&pipeline),
            scripts: ScriptSet::new(renewals, options.quorum),
            channels: None,
            listener: listener.clone(),
            condemned,
            ping_every: options.ping_every,
            patience: options.server_timeout,
        };
        let (requests, inbox) = mpsc::unbounded_channel();
        let rounds = WaitBatcher {
            pipeline: Arc::clone(&pipeline),
            replicas: options.replicas,
            inbox,
        };
        let tasks = [supervisor.start(), tokio::spawn(rounds.run()).abort_handle()];
        Replication {
            pipeline,
            requests,
            tasks,
        }
    }

    /// Fails if `WAIT` is impossible, because the user has no permission, or the server does not know it.
    pub(super) fn check(&self) -> StoreFuture<()> {
        let pipeline = Arc::clone(&self.pipeline);
        Box::pin(async move {
            let wait = RedisCommand::wait(0, SHORTEST_ROUND);
            pipeline.call(wait).await.map(drop)
        })
    }

    pub(super) fn confirm(
        &self,
        call: Renew,
        within: Duration,
        call_options: CallOptions,
    ) -> Call<Confirmed> {
        let pipeline = Arc::clone(&self.pipeline);
        let requests = self.requests.clone();
        Box::pin(async move {
            let since = Instant::now();
            let answer = execute(&pipeline, call, call_options).await?;
            if !matches!(answer.reply, Renewed::Until(_)) {
                return Ok(answer.confirmed(0));
            }
            let (got, told) = oneshot::channel();
            let wait_request = WaitRequest {
                generation: answer.on.number,
                since,
                until: since + within,
                got,
            };
            requests.send(wait_request).map_err(|_| Failure::Closed)?;
            let got = told.await.unwrap_or(Err(Failure::Closed))?;
            Ok(answer.confirmed(got))
        })
    }

    pub(super) fn close(&self) {
        self.pipeline.close();
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The task that waits for all requests.
struct WaitBatcher {
    pipeline: Arc<RedisPipeline>,
    replicas: u32,
    inbox: mpsc::UnboundedReceiver<WaitRequest>,
}

impl WaitBatcher {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() {
                let Some(first) = self.inbox.recv().await else {
                    return;
                };
                waiting.push(first);
            }
            while let Ok(next) = self.inbox.try_recv() {
                waiting.push(next);
            }
            waiting.retain(|wait_request| !wait_request.got.is_closed());
            let Some(first) = waiting.iter().min_by_key(|wait_request| wait_request.since) else {
                continue;
            };
            let outcome = self.round(SHORTEST_ROUND.max(first.since.elapsed() / 4)).await;
            let now = Instant::now();
            for wait_request in std::mem::take(&mut waiting) {
                let told = match &outcome {
                    Err(failure) => Err(failure.clone()),
                    Ok((generation, _)) if *generation != wait_request.generation => Err(Failure::Unknown(
                        ServerError::new("the connection was lost before the grant was confirmed"),
                    )),
                    Ok((_, got)) if *got >= self.replicas || now >= wait_request.until => Ok(*got),
                    Ok(_) => {
                        waiting.push(wait_request);
                        continue;
                    }
                };
                // The caller may be gone.
                let _ = wait_request.got.send(told);
            }
        }
    }

    /// Waits once. Returns the number of the connection, and how many replicas have all its earlier
    /// writes.
    async fn round(&self, within: Duration) -> Result<(u64, u32), Failure> {
        let wait = RedisCommand::wait(self.replicas, within);
        let response = Arc::clone(&self.pipeline).call(wait).await?;
        let Response {
            value, generation, ..
        } = response;
        match RedisCommand::waited(&value) {
            Some(got) => Ok((generation, got)),
            None => Err(self.pipeline.desynchronised(
                generation,
                format!("{value:?} as the reply to a wait for replicas"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{OPTIONS, Recorder};
    use super::*;
    use crate::protocol::ids::{ClientId, RequestId};
    use crate::protocol::keys::Keys;
    use crate::time::server_time::ServerTime;
    use crate::types::fence::Fence;
    use fairlock_testkit::Server;

    async fn replication(server: &Server) -> Replication {
        let options = Options {
            replicas: 1,
            ..OPTIONS
        };
        let connector = Arc::new(Connector::new(&server.url(), None, options.attempt_timeout).unwrap());
        let listener: Arc<dyn Listener> = Arc::<Recorder>::default();
        let listener = Arc::downgrade(&listener);
        Replication::start(ServerId::default(), &connector, options, &listener)
    }

    #[tokio::test]
    async fn a_connection_does_not_speak_for_the_one_before() {
        let server = Server::start().await;
        let replication = replication(&server).await;
        let enter = async |generation| {
            let (got, told) = oneshot::channel();
            let since = Instant::now();
            let wait_request = WaitRequest {
                generation,
                since,
                until: since,
                got,
            };
            replication.requests.send(wait_request).ok().unwrap();
            told.await.unwrap()
        };
        assert!(matches!(enter(1).await, Ok(0)), "its own connection");
        assert!(
            matches!(enter(0).await, Err(Failure::Unknown(_))),
            "another connection"
        );
    }

    #[tokio::test]
    async fn no_wait_for_a_lost_hold() {
        let server = Server::start().await;
        let replication = replication(&server).await;
        // With this task gone, every wait would fail.
        replication.tasks[1].abort();
        let call = Renew {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: RequestId::new(&ClientId::from_number(1), Duration::from_secs(1), 1, None),
            fence: Fence::new(1).unwrap(),
            lease: Duration::from_secs(1),
            cap: ServerTime::MAX,
            on_demand: false,
        };
        let answer = replication
            .confirm(call, OPTIONS.attempt_timeout, CallOptions::default())
            .await;
        let Confirmed { renewed, got } = answer.unwrap().reply;
        assert!(!matches!(renewed, Renewed::Until(_)), "{renewed:?}");
        assert_eq!(got, 0);
    }
}
