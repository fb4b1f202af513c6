//! A connection with newer credentials takes the place of another one, while that still has the messages.

use std::sync::Arc;

use super::{Connection, Ended, Subscriber, connect};
use crate::time::backoff::Backoff;

impl Subscriber {
    /// Opens a connection with newer credentials before those of this one expire. In RESP2 a connection with
    /// subscriptions cannot authenticate again.
    pub(super) fn successor_of(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = Connection> + Send + use<> {
        let (connector, pipeline) = (Arc::clone(&self.connector), Arc::clone(&self.pipeline));
        let outlived = connection.outlived();
        async move {
            outlived.await;
            connect(&connector, &pipeline, &mut Backoff::at_once()).await
        }
    }

    /// Moves all subscriptions to the next connection. Until they are confirmed there, the messages come over
    /// the present one. A message in between comes over both, and its repetition changes nothing.
    pub(super) async fn move_to(
        &mut self,
        mut next: Connection,
        connection: &mut Connection,
        missed: &mut bool,
    ) -> Result<(), Ended> {
        let former = self.disown();
        self.todo.push_front(former);
        self.subscribe(&mut next).await?;
        // The reply comes after all messages from before. Those go on to the listener.
        let pong = self.ping(connection);
        *missed |= connection.unless_lost(pong).await.is_err();
        *connection = next;
        Ok(())
    }
}
