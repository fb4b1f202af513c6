//! Calls of the lock's scripts on a bare socket.

use fairlock_benches::Outcome;
use fairlock_benches::wire::Wire;

use crate::texts;

/// A time in ms that the server's clock never reaches.
const NEVER_MS: &str = "9000000000000";
const LEASE_MS: &str = "0000030000";

/// The hold of one request.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) request: String,
    pub(crate) fence: String,
}

impl Grant {
    /// Parses a push: version, fence, deadline and request.
    pub(crate) fn pushed(message: &str) -> Outcome<Grant> {
        let words: Vec<&str> = message.split(' ').collect();
        let [_, fence, _, request] = words[..] else {
            return Err(format!("no push: {message:?}").into());
        };
        Ok(Grant {
            request: request.to_owned(),
            fence: fence.to_owned(),
        })
    }
}

/// One client's side of a lock. Its preparations are sent as EVAL, so that the server counts them separately
/// from the measured calls.
#[derive(Debug)]
pub(crate) struct Desk {
    wire: Wire,
    keys: [String; 2],
    channel: String,
    client: String,
    requests: u64,
}

impl Desk {
    /// The ids of clients only have to differ.
    pub(crate) fn open(url: &str, name: &str, client: u128) -> Outcome<Desk> {
        Ok(Desk {
            wire: Wire::connect(url)?,
            keys: ["", "queue:"].map(|kind| format!("fairlock:{kind}{{{name}}}")),
            channel: format!("fairlock:unlock:{{{name}}}:"),
            client: format!("{client:032x}"),
            requests: 0,
        })
    }

    /// The channel on which this client hears of the lock.
    pub(crate) fn channel(&self) -> String {
        format!("{}{}", self.channel, self.client)
    }

    /// The prefix of the waiters' channels, as scripts take it.
    fn address(&self) -> String {
        format!("p{}", self.channel)
    }

    /// Takes the lock, which must be free.
    pub(crate) fn hold(&mut self) -> Outcome<Grant> {
        let (request, reply) = self.acquire()?;
        match reply.split(' ').collect::<Vec<_>>()[..] {
            ["1", _, _, _, fence, ..] => Ok(Grant {
                request,
                fence: fence.to_owned(),
            }),
            _ => Err(format!("the lock is not free: {reply}").into()),
        }
    }

    /// Queues a request.
    pub(crate) fn queue(&mut self) -> Outcome<()> {
        let (_, reply) = self.acquire()?;
        match reply.starts_with("2 ") {
            true => Ok(()),
            false => Err(format!("the lock is not held: {reply}").into()),
        }
    }

    fn acquire(&mut self) -> Outcome<(String, String)> {
        self.requests += 1;
        let request = format!("{}:0000005000:{}:", self.client, self.requests);
        let [lock, queue] = &self.keys;
        let reply = self.wire.command(&[
            "EVAL",
            &texts::inlined(texts::ACQUIRE),
            "2",
            lock,
            queue,
            &request,
            "ask",
            LEASE_MS,
            NEVER_MS,
            &self.address(),
        ])?;
        Ok((request, reply))
    }

    /// How many requests wait for the lock.
    pub(crate) fn waiting(&mut self) -> Outcome<u64> {
        Ok(self.wire.command(&["ZCARD", &self.keys[1]])?.parse()?)
    }

    /// How many subscribers the channel of this client has. The message that counts them is not a push.
    pub(crate) fn listeners(&mut self) -> Outcome<u64> {
        let channel = self.channel();
        Ok(self.wire.command(&["PUBLISH", &channel, "-"])?.parse()?)
    }

    /// Releases a hold.
    pub(crate) fn give_back(&mut self, grant: &Grant) -> Outcome<()> {
        let words = self.release("EVAL", &texts::inlined(texts::RELEASE), grant);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        released(&self.wire.command(&words)?)
    }

    /// The words of a release. The script is named by its hash, or sent along.
    pub(crate) fn release(&self, how: &str, script: &str, grant: &Grant) -> Vec<String> {
        let [lock, queue] = &self.keys;
        let words = [
            how,
            script,
            "2",
            lock,
            queue,
            &grant.request,
            "grant",
            &grant.fence,
            &self.address(),
        ];
        words.map(str::to_owned).into()
    }
}

pub(crate) fn released(reply: &str) -> Outcome<()> {
    match reply.starts_with("1 ") {
        true => Ok(()),
        false => Err(format!("not released: {reply}").into()),
    }
}
