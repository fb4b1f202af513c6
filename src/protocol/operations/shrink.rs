//! Gives back some of the permits of a hold.

use std::sync::Arc;

use super::release::Released;
use super::{CallKind, Operation};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::script::{Declared, PubSubMode, RELEASES, ReplyError, ScriptCall};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// The hold with this fence goes on with `permits`, if it has more. Its deadline and its fence stay. The
/// reply is that of a release.
#[derive(Clone, Debug)]
pub(crate) struct Shrink {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    pub(crate) permits: u32,
}

impl Operation for Shrink {
    type Reply = Released;
    const KIND: CallKind = CallKind::Release;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, mode: PubSubMode, declared: Declared) -> ScriptCall {
        ScriptCall::of_lock(&RELEASES, &self.keys, declared)
            .with(&self.request)
            .with("shrink")
            .with(self.fence)
            .with_address(mode, &self.keys)
            .with("")
            .with("")
            .with(format_args!("{:05}", self.permits))
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Released), ReplyError> {
        Released::read(reply, self.keys.kind, &self.request)
    }
}
