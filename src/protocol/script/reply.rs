//! The reply of a script: one line of words.

use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Grant, read_slot};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// Why a reply cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyError {
    /// The reply belongs to another call, and so may all later replies on the connection.
    Desynchronised(String),
    /// The reply is to this call, but not all of its words can be read: the lock's data on the server are
    /// damaged.
    Unreadable(String),
    /// A newer client has written this lock in a format that this version does not know.
    NewerFormat,
    /// The call declared the lock's key alone, but needs the other keys too.
    Elsewhere,
    /// The floor of the call is more than a day ahead of the server's clock, and nothing was done.
    ClockBehind,
}

/// Reads the words of a reply in order, after the words that every reply begins with. Words that remain
/// unread come from a newer script, and are ignored.
pub(crate) struct ReplyReader<'a> {
    reply: &'a str,
    rest: std::str::Split<'a, char>,
    pub(crate) status: u64,
    pub(crate) now: ServerTime,
    pub(crate) deadline: ServerTime,
}

impl<'a> ReplyReader<'a> {
    pub(crate) fn of(reply: &'a str, request: &str) -> Result<ReplyReader<'a>, ReplyError> {
        let mut words = ReplyReader {
            reply,
            rest: reply.split(' '),
            status: 0,
            now: ServerTime::default(),
            deadline: ServerTime::default(),
        };
        let status = words.rest.next();
        if words.rest.next() != Some(request) {
            let said = format!("a reply that is not to this call: {reply:?}");
            return Err(ReplyError::Desynchronised(said));
        }
        words.status = words.number_in(status)?;
        if words.status == 0 {
            return Err(ReplyError::NewerFormat);
        }
        words.now = ServerTime::from_ms(words.number()?);
        words.deadline = ServerTime::from_ms(words.number()?);
        Ok(words)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, ReplyError> {
        self.rest.next().ok_or_else(|| self.malformed())
    }

    /// A whole number in the range of a script's integers.
    pub(crate) fn number(&mut self) -> Result<u64, ReplyError> {
        let word = self.rest.next();
        self.number_in(word)
    }

    fn number_in(&self, word: Option<&str>) -> Result<u64, ReplyError> {
        let number = word.and_then(|word| word.parse::<i64>().ok());
        let number = number.and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.malformed())
    }

    /// The numbers that are left.
    pub(crate) fn numbers(&mut self) -> Result<Vec<u64>, ReplyError> {
        let mut numbers = Vec::new();
        while let Some(word) = self.rest.next() {
            numbers.push(self.number_in(Some(word))?);
        }
        Ok(numbers)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, ReplyError> {
        Ok(self.number()? != 0)
    }

    pub(crate) fn fence(&mut self) -> Result<Fence, ReplyError> {
        Fence::new(self.number()?).ok_or_else(|| self.malformed())
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.rest.by_ref().take(count).for_each(drop);
    }

    pub(crate) fn own_grant(&mut self) -> Result<Option<Grant>, ReplyError> {
        let request = self.text()?;
        if request == "-" {
            return Ok(None);
        }
        let request = RequestId::from_wire(request).ok_or_else(|| self.malformed())?;
        let fence = self.fence()?;
        let deadline = ServerTime::from_ms(self.number()?);
        Ok(Some(Grant {
            request,
            fence,
            deadline,
            pushed: self.flag()?,
            slot: None,
        }))
    }

    /// The slot of a grant of permits.
    pub(crate) fn slot(&mut self) -> Result<Option<u32>, ReplyError> {
        read_slot(self.text()?).ok_or_else(|| self.malformed())
    }

    pub(crate) fn malformed(&self) -> ReplyError {
        ReplyError::Unreadable(self.reply.to_owned())
    }
}
