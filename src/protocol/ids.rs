//! Ids of clients and requests.

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::types::owner::Owner;

/// The 128-bit random id of one client, as 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(Arc<str>);

impl ClientId {
    const LEN: usize = 32;

    pub(crate) fn random() -> ClientId {
        ClientId::from_number(Uuid::new_v4().as_u128())
    }

    pub(crate) fn from_number(n: u128) -> ClientId {
        ClientId(Uuid::from_u128(n).simple().to_string().into())
    }

    /// An id that a server sent, or a part of a request id.
    pub(crate) fn from_wire(text: &str) -> ClientId {
        ClientId(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of one request: `<client>:<claim_ms>:<n>:<owner>`. The first two parts have a fixed width, and the
/// owner is empty or has a fixed width, so a script can extract them by position. The string carries all that
/// a hand-over must know: which client to wake, how long a grant lasts unclaimed, and for which owner.
///
/// The request of a client that may retain the lock after its last guard has `+` for the second colon.
///
/// A lock that was released but stays taken for a while is held by `<client>:<claim_ms>=<n>:`. No call names
/// this request, so nothing renews, releases or withdraws its hold.
///
/// A request for permits is `<client>:<claim_ms>*<weight>/<capacity>:<n>:`, with five digits for each of the
/// two numbers: it takes `weight` permits, and may hold while, with them, at most `capacity` are in use.
/// Permits that were given back but stay taken have `=` in the place of `*`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// The width in which a lock stores a lease, for the longest one: 30 days in milliseconds.
    const WINDOW_DIGITS: usize = 10;
    const WINDOW_AT: usize = ClientId::LEN + 1;
    const NUMBER_AT: usize = Self::WINDOW_AT + Self::WINDOW_DIGITS + 1;
    /// The longest number has 20 digits.
    const MOST: usize = Self::NUMBER_AT + 20 + 1 + Owner::LEN;
    /// The width of a number of permits.
    const PERMITS_DIGITS: usize = 5;
    const SLASH_AT: usize = Self::NUMBER_AT + Self::PERMITS_DIGITS;
    const PERMITS_END: usize = Self::SLASH_AT + 1 + Self::PERMITS_DIGITS;

    /// The `n`-th request of `client`. The client has `window` (whole milliseconds, at most a day) to claim a
    /// pushed grant.
    pub(crate) fn new(client: &ClientId, window: Duration, n: u64, owner: Option<&Owner>) -> RequestId {
        let mut text = String::with_capacity(Self::MOST);
        text.push_str(&client.0);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ":{:0width$}:{n}:",
            window.as_millis(),
            width = Self::WINDOW_DIGITS
        );
        text.push_str(owner.map_or("", Owner::as_str));
        RequestId(text.into())
    }

    /// The same for a client that may retain the lock.
    pub(crate) fn retaining(client: &ClientId, window: Duration, n: u64) -> RequestId {
        let (claim_ms, width) = (window.as_millis(), Self::WINDOW_DIGITS);
        RequestId(format!("{client}:{claim_ms:0width$}+{n}:").into())
    }

    /// The `n`-th request of `client`, for `weight` of at most `capacity` permits. Both are between 1 and
    /// 99,999.
    pub(crate) fn with_permits(
        client: &ClientId,
        window: Duration,
        n: u64,
        weight: u32,
        capacity: u32,
    ) -> RequestId {
        let claim_ms = window.as_millis();
        let text = format!(
            "{client}:{claim_ms:0window$}*{weight:0permits$}/{capacity:0permits$}:{n}:",
            window = Self::WINDOW_DIGITS,
            permits = Self::PERMITS_DIGITS
        );
        RequestId(text.into())
    }

    /// Parses a request id that a server sent. Returns `None` if the form is wrong.
    pub(crate) fn from_wire(text: &str) -> Option<RequestId> {
        let bytes = text.as_bytes();
        let well_formed = text.is_ascii()
            && bytes.get(ClientId::LEN) == Some(&b':')
            && matches!(bytes.get(Self::NUMBER_AT - 1), Some(b':' | b'=' | b'*' | b'+'))
            && all_digits(&text[Self::WINDOW_AT..Self::NUMBER_AT - 1]);
        let request = well_formed.then(|| RequestId(text.into()))?;
        let is_of_permits = bytes[Self::NUMBER_AT - 1] == b'*' || request.is_of_permits();
        let has_permits = || {
            bytes.get(Self::SLASH_AT) == Some(&b'/')
                && bytes.get(Self::PERMITS_END) == Some(&b':')
                && all_digits(&text[Self::NUMBER_AT..Self::SLASH_AT])
                && all_digits(&text[Self::SLASH_AT + 1..Self::PERMITS_END])
        };
        (!is_of_permits || has_permits()).then_some(request)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn client(&self) -> &str {
        &self.0[..ClientId::LEN]
    }

    /// How long a pushed grant lasts if it is not claimed.
    pub(crate) fn claim_window(&self) -> Duration {
        let digits = &self.0[Self::WINDOW_AT..Self::NUMBER_AT - 1];
        Duration::from_millis(digits.parse().unwrap_or_default())
    }

    /// Whether this is a request for permits.
    pub(crate) fn is_of_permits(&self) -> bool {
        // A number of the request has no slash.
        self.0.as_bytes().get(Self::SLASH_AT) == Some(&b'/')
    }

    /// How many permits it asked for. A request for a lock takes one of one. Its hold may have fewer since.
    pub(crate) fn weight(&self) -> u32 {
        self.permits(Self::NUMBER_AT)
    }

    /// How many permits may be in use with its own.
    pub(crate) fn capacity(&self) -> u32 {
        self.permits(Self::SLASH_AT + 1)
    }

    fn permits(&self, at: usize) -> u32 {
        match self.is_of_permits() {
            true => self.0[at..at + Self::PERMITS_DIGITS].parse().unwrap_or_default(),
            false => 1,
        }
    }

    /// The request that holds the lock after a release of this one that keeps it taken. It is its own owner.
    pub(crate) fn kept(&self) -> RequestId {
        let (start, rest) = self.0.split_at(Self::NUMBER_AT - 1);
        match self.is_of_permits() {
            true => RequestId(format!("{start}={}", &rest[1..]).into()),
            false => RequestId(format!("{start}={}:", self.number()).into()),
        }
    }

    /// Whether the lock was released, and this request only keeps it taken.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.as_bytes()[Self::NUMBER_AT - 1] == b'='
    }

    /// Whether its client may retain the lock.
    pub(crate) fn is_retaining(&self) -> bool {
        self.0.as_bytes()[Self::NUMBER_AT - 1] == b'+'
    }

    /// The number that the client gave to this request.
    pub(crate) fn number(&self) -> u64 {
        let at = match self.is_of_permits() {
            true => Self::PERMITS_END + 1,
            false => Self::NUMBER_AT,
        };
        let rest = &self.0[at..];
        // A search for a character costs more than the number itself.
        let end = rest.bytes().position(|byte| byte == b':');
        rest[..end.unwrap_or(rest.len())].parse().unwrap_or_default()
    }

    /// The owner for which this request holds: the given owner, or the request itself.
    pub(crate) fn owner(&self) -> &str {
        if self.is_owner() {
            &self.0
        } else {
            &self.0[self.0.len() - Owner::LEN..]
        }
    }

    /// Whether this request is its own owner. Then no other request can hold beside it.
    pub(crate) fn is_owner(&self) -> bool {
        self.0.ends_with(':')
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let (client, window) = (ClientId::from_number(7), Duration::from_secs(5));
        let request = RequestId::new(&client, window, 42, None);
        let retaining = RequestId::retaining(&client, window, 42);
        assert!(retaining.is_retaining() && !request.is_retaining());
        for request in [request.kept(), request, retaining] {
            let read = RequestId::from_wire(request.as_str()).expect("a request");
            assert_eq!((read.number(), read.claim_window()), (42, window));
            assert!(read.is_owner() && read.owner() == request.as_str());
        }
    }

    #[test]
    fn a_request_for_permits_is_read_as_it_was_written() {
        let (client, window) = (ClientId::from_number(7), Duration::from_secs(5));
        let request = RequestId::with_permits(&client, window, 42, 3, 99_999);
        assert_eq!(request.as_str(), format!("{client}:0000005000*00003/99999:42:"));
        for request in [request.kept(), request.clone()] {
            let read = RequestId::from_wire(request.as_str()).expect("a request");
            assert_eq!((read.number(), read.claim_window()), (42, window));
            assert_eq!((read.weight(), read.capacity()), (3, 99_999));
            assert!(read.is_owner() && read.owner() == request.as_str());
        }
        assert!(request.kept().is_kept() && !request.is_kept());
        assert_eq!(request.kept().as_str().replace('=', "*"), request.as_str());
    }

    #[test]
    fn a_malformed_request_is_refused() {
        let client = ClientId::from_number(7);
        let of_permits = [
            "*00003/9999:42:",
            "*00003-99999:42:",
            "*0000a/99999:42:",
            "*00003/99999",
        ];
        for end in of_permits.map(|end| format!("0000005000{end}")) {
            assert_eq!(RequestId::from_wire(&format!("{client}:{end}")), None, "{end}");
        }
        for end in ["0000005000-42:", "000005000:42:", "00000+5000:42:", "0000005000"] {
            assert_eq!(RequestId::from_wire(&format!("{client}:{end}")), None, "{end}");
        }
    }
}
