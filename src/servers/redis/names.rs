//! The addresses of servers: those that a name has, and which of them did not answer.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::protocol::interface::Failure;
use crate::sync::locked;
use crate::types::error::ServerError;

/// For how long an address that did not answer is tried after the others.
const SILENT_FOR: Duration = Duration::from_secs(60);

/// What a client knows of the addresses of its servers.
#[derive(Default)]
pub(super) struct Names {
    /// The look-ups that are under way.
    lookups: Mutex<HashMap<(String, u16), Lookup>>,
    /// The addresses that did not answer while another one did, and when that was.
    silent: Mutex<HashMap<SocketAddr, Instant>>,
    /// The host names of servers that are known by their addresses.
    announced: Mutex<HashMap<(String, u16), String>>,
}

type Answer = Result<Arc<[SocketAddr]>, ServerError>;
/// The answer, once it is there.
type Lookup = watch::Receiver<Option<Answer>>;

impl Names {
    /// The addresses of a server, in the order in which they should be tried. An address is its own.
    ///
    /// It is an error if the process can have no further thread. fred needs one too, even for an address, and
    /// gets a panic then, not an error.
    pub(super) async fn addresses_of(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        let mut lookup = self.look_up(host, port, thread::Builder::new());
        let answer = match lookup.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            Err(_) => None,
        };
        match answer {
            Some(Ok(addresses)) => Ok(self.in_order(&addresses)),
            Some(Err(error)) => Err(Failure::NotExecuted(error)),
            None => Err(Failure::NotExecuted(ServerError::new(
                "the look-up ended without an answer",
            ))),
        }
    }

    /// Looks a name up on a thread of its own, or joins a look-up that is under way. The system's function
    /// blocks, for half a minute if the name server is silent, and Tokio's threads for such functions belong
    /// to the application.
    fn look_up(&self, host: &str, port: u16, thread: thread::Builder) -> Lookup {
        let mut lookups = locked(&self.lookups);
        lookups.retain(|_, lookup| is_under_way(lookup));
        let name = (host.to_owned(), port);
        if let Some(lookup) = lookups.get(&name) {
            return lookup.clone();
        }
        let (answer, lookup) = watch::channel(None);
        let (asked, told) = (name.clone(), answer.clone());
        let started = thread.name("fairlock-names".to_owned()).spawn(move || {
            let addresses = asked.to_socket_addrs().and_then(distinct);
            let addresses = addresses.map_err(|error| ServerError::new(error.to_string()));
            told.send_replace(Some(addresses));
        });
        if let Err(error) = started {
            let error = format!("no thread to look {host} up: {error}");
            answer.send_replace(Some(Err(ServerError::new(error))));
        }
        lookups.insert(name, lookup.clone());
        lookup
    }

    /// The addresses in their order, but those that were silent recently come last.
    pub(super) fn in_order(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut silent = locked(&self.silent);
        silent.retain(|_, since| since.elapsed() < SILENT_FOR);
        let mut addresses = addresses.to_vec();
        addresses.sort_by_key(|address| silent.contains_key(address));
        addresses
    }

    /// Remembers the host name that a server has announced. Its certificate may be for that.
    pub(super) fn is_called(&self, host: &str, port: u16, name: String) {
        locked(&self.announced).insert((host.to_owned(), port), name);
    }

    pub(super) fn announced(&self, host: &str, port: u16) -> Option<String> {
        locked(&self.announced).get(&(host.to_owned(), port)).cloned()
    }

    /// Remembers that these addresses did not answer while another one did.
    pub(super) fn were_silent(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let now = Instant::now();
        locked(&self.silent).extend(addresses.into_iter().map(|address| (address, now)));
    }
}

#[cfg(test)]
impl Names {
    /// Has a look-up of this name under way, whose answer is sent here.
    pub(super) fn looking_up(&self, host: &str, port: u16) -> watch::Sender<Option<Answer>> {
        let (answer, lookup) = watch::channel(None);
        locked(&self.lookups).insert((host.to_owned(), port), lookup);
        answer
    }
}

fn is_under_way(lookup: &Lookup) -> bool {
    lookup.borrow().is_none() && lookup.has_changed().is_ok()
}

/// Each of them once. There is at least one.
fn distinct(found: impl Iterator<Item = SocketAddr>) -> io::Result<Arc<[SocketAddr]>> {
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_its_own() {
        for (host, address) in [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7")] {
            let addresses = Names::default().addresses_of(host, 7).await.unwrap();
            assert_eq!(addresses, [address.parse().unwrap()]);
        }
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_told_once() {
        let addresses = Names::default().addresses_of("localhost", 7).await.unwrap();
        assert!(
            addresses
                .iter()
                .all(|address| address.port() == 7 && address.ip().is_loopback())
        );
        let twice = addresses.iter().chain(&addresses).copied();
        assert_eq!(distinct(twice).unwrap()[..], addresses[..]);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_an_error_that_says_so() {
        let failure = Names::default().addresses_of("nowhere.invalid", 7).await;
        let Err(Failure::NotExecuted(error)) = failure else {
            panic!("{failure:?}")
        };
        assert!(!error.to_string().contains("thread"), "{error}");
    }

    #[tokio::test]
    async fn a_name_that_gets_no_thread_is_an_error_and_is_looked_up_again() {
        let names = Names::default();
        // There is not so much memory for the stack.
        let impossible = thread::Builder::new().stack_size(1 << 46);
        let lookup = names.look_up("localhost", 7, impossible);
        let error = lookup.borrow().clone().unwrap().unwrap_err().to_string();
        assert!(error.contains("localhost") && error.contains("thread"), "{error}");
        names.addresses_of("localhost", 7).await.unwrap();
    }

    #[test]
    fn calls_that_need_the_same_name_share_one_look_up() {
        let names = Names::default();
        let answer = names.looking_up("a", 7);
        let joined = names.look_up("a", 7, thread::Builder::new());
        assert!(joined.same_channel(&answer.subscribe()));
        let another = names.look_up("a", 8, thread::Builder::new());
        assert!(!another.same_channel(&joined));
    }

    #[test]
    fn an_address_that_was_silent_is_tried_last_for_a_minute() {
        let names = Names::default();
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::new([127, 0, 0, 1].into(), port));
        assert_eq!(names.in_order(&[a, b, c]), [a, b, c]);
        names.were_silent([a]);
        assert_eq!(names.in_order(&[a, b, c]), [b, c, a]);
        let long_ago = Instant::now().checked_sub(SILENT_FOR).unwrap();
        locked(&names.silent).insert(a, long_ago);
        assert_eq!(names.in_order(&[a, b, c]), [a, b, c]);
    }
}
