//! The calls about the labels of clients.

use super::Operation;
use crate::store::label::Label;
use crate::store::redis::script::reply::{ReplyError, ReplyReader};
use crate::store::redis::script::script_call::{Declared, ScriptCall};
use crate::store::redis::script::{LABEL, PubSubMode};
use crate::store::{GetLabel, SetLabel};
use crate::time::server_time::{ServerTime, millis};

impl Operation for SetLabel {
    type Reply = ();

    fn key(&self) -> &str {
        &self.key
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

    fn key(&self) -> &str {
        &self.key
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
