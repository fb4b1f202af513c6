//! Sets and reads the labels of clients.

use std::time::Duration;

use super::{CallKind, Operation};
use crate::protocol::ids::ClientId;
use crate::protocol::interface::{Call, KeepAlive, OnAnswer, Priority};
use crate::protocol::keys::label_key;
use crate::protocol::label::Label;
use crate::protocol::script::{Declared, LABEL, PubSubMode, ReplyError, ReplyReader, ScriptCall};
use crate::time::server_time::{ServerTime, millis};

/// Sets the label of a client.
#[derive(Clone, Debug)]
pub(crate) struct SetLabel {
    pub(crate) key: String,
    pub(crate) client: ClientId,
    pub(crate) label: Label,
    /// How long the label is kept if it is not set again.
    pub(crate) kept: Duration,
}

/// Asks for the label of a client.
#[derive(Clone, Debug)]
pub(crate) struct GetLabel {
    pub(crate) key: String,
    pub(crate) client: ClientId,
}

impl GetLabel {
    pub(crate) fn of(prefix: &str, client: &ClientId) -> GetLabel {
        GetLabel {
            key: label_key(prefix, client),
            client: client.clone(),
        }
    }
}

impl Operation for SetLabel {
    type Reply = ();
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        &self.key
    }

    fn priority(&self) -> Priority {
        Priority::Keep
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        ScriptCall::new(&LABEL, &[&self.key])
            .with(&self.client)
            .with(&self.label)
            .with(millis(self.kept))
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, ()), ReplyError> {
        let words = ReplyReader::of(reply, self.client.as_str())?;
        match words.status {
            1 => Ok((words.now, ())),
            _ => Err(words.malformed()),
        }
    }
}

impl Operation for GetLabel {
    type Reply = Option<Label>;
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &str {
        &self.key
    }

    fn priority(&self) -> Priority {
        Priority::Ask
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        ScriptCall::new(&LABEL, &[&self.key]).with(&self.client)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Option<Label>), ReplyError> {
        let mut words = ReplyReader::of(reply, self.client.as_str())?;
        let label = match words.status {
            // No client of this library has set any other text.
            1 => Label::new(words.text()?).ok(),
            2 => None,
            _ => return Err(words.malformed()),
        };
        Ok((words.now, label))
    }
}

/// Makes a call now, and again after each pause of this length. A call that fails is not repeated sooner.
pub(crate) fn repeated(
    every: Duration,
    call: impl Fn() -> Call<()> + Send + 'static,
    heard: OnAnswer,
) -> KeepAlive {
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::protocol::interface::{Answer, ConnectionId, Failure};
    use crate::time::clock::LocalTime;
    use crate::time::clock_offset::Sample;
    use crate::types::error::ServerError;

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
