//! What an operator asks of one server: who holds a lock, and that it be taken away.

use std::sync::Arc;

use crate::engine::client::Client;
use crate::engine::retry::until_answered;
use crate::error::Result;
use crate::fence::Fence;
use crate::store::ids::ClientId;
use crate::store::keys::Keys;
use crate::store::{Answer, GetLabel, Inspect, Inspected, Release, ReleaseOutcome, ReleaseWhat};
use crate::time::deadline::LeaseTerms;

pub(crate) async fn inspect(
    client: &Client,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
) -> Result<Answer<Inspected>> {
    let call = Inspect {
        keys: Arc::clone(keys),
        request: client.next_request(terms, None),
    };
    let (answer, _) = until_answered(client, || client.inspect(call.clone())).await?;
    Ok(answer)
}

/// Ends the hold with this fence. Returns whether there was one. In a quorum, the next grant has a fence of
/// `floor` at least.
pub(crate) async fn force_release(
    client: &Client,
    keys: &Arc<Keys>,
    terms: &LeaseTerms,
    fence: Fence,
    floor: Option<Fence>,
) -> Result<bool> {
    let call = Release {
        keys: Arc::clone(keys),
        request: client.next_request(terms, None),
        what: ReleaseWhat::Force(fence),
        floor,
    };
    let mut released = false;
    loop {
        let (answer, unknown) = until_answered(client, || client.release(call.clone())).await?;
        // What an earlier attempt did, whose reply was lost, is this call's doing.
        let done_before = unknown && answer.reply.outcome == ReleaseOutcome::Taken;
        released |= done_before || answer.reply.outcome == ReleaseOutcome::Released;
        if !answer.reply.more {
            return Ok(released);
        }
    }
}

/// The label of a client. It is missing if its server does not tell it at the first attempt: the rest of a
/// status is worth more than the wait.
pub(crate) async fn label_of(asking: &Client, client: &ClientId) -> Option<String> {
    let call = GetLabel::of(&asking.options.prefix, client);
    let label = asking.store.label_of(call).await.ok()?.reply?;
    Some(label.as_str().to_owned())
}
